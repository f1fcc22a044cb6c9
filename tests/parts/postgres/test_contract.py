"""The public contract and the state machine, on PostgreSQL."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from modelyard.parts.postgres import writer
from modelyard.parts.postgres.store import PostgresStore
from modelyard.protocols import Store
from modelyard.testing import CONTRACT_RECORDS, RunTwiceStore, StoreContract, machine_over
from postgres_server import PostgresServer

QUICK = settings(max_examples=10, stateful_step_count=20, deadline=None, database=None)


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def store(self, yard_address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
        monkeypatch.setattr(writer, "SETTINGS_KNOWN", 0.05)
        self.address = yard_address
        store = PostgresStore(self.address, CONTRACT_RECORDS)
        yield store
        store.close()

    def reopen(self, store: Store) -> Store:
        store.close()
        return PostgresStore(self.address, CONTRACT_RECORDS)

    def another(self, store: Store) -> Callable[[], Store]:
        return partial(PostgresStore, self.address, CONTRACT_RECORDS)


class TestPostgresStoreRunningEveryStepTwice(StoreContract):
    @pytest.fixture
    def store(self, yard_address: str) -> Iterator[Store]:
        store = RunTwiceStore(PostgresStore(yard_address, CONTRACT_RECORDS))
        yield store
        store.close()


@pytest.mark.parametrize("twice", [False, True])
def test_no_history_distinguishes_postgresql_from_a_dictionary(postgres: PostgresServer, twice: bool) -> None:
    addresses: dict[int, str] = {}

    def opened(address: str) -> Store:
        inner = PostgresStore(address, CONTRACT_RECORDS)
        store: Store = RunTwiceStore(inner) if twice else inner
        addresses[id(store)] = address
        return store

    def reopen(store: Store) -> Store:
        address = addresses.pop(id(store))
        store.close()
        return opened(address)

    machine = machine_over(lambda: opened(postgres.create_database()), reopen)
    run_state_machine_as_test(machine, settings=QUICK)
