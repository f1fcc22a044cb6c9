"""The public contract and the state machine, on every store of ours."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from modelyard.protocols import Store
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore
from modelyard.testing import CONTRACT_RECORDS, RunTwiceStore, StoreContract, machine_over

QUICK = settings(max_examples=15, stateful_step_count=20, deadline=None, database=None)


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = MemoryStore(CONTRACT_RECORDS)
        yield store
        store.close()


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def store(self, contract_file: Path) -> Iterator[Store]:
        self.path = contract_file
        store = SqliteStore(self.path, CONTRACT_RECORDS)
        yield store
        store.close()

    def reopen(self, store: Store) -> Store:
        store.close()
        return SqliteStore(self.path, CONTRACT_RECORDS)

    def another(self, store: Store) -> Callable[[], Store]:
        return partial(SqliteStore, self.path, CONTRACT_RECORDS)


@pytest.mark.slow
class TestSqliteStoreThatLastsAsLongAsTheProcess(StoreContract):
    @pytest.fixture
    def store(self, contract_file: Path) -> Iterator[Store]:
        store = SqliteStore(contract_file, CONTRACT_RECORDS, "process")
        yield store
        store.close()


class TestSqliteStoreRunningEveryStepTwice(StoreContract):
    @pytest.fixture
    def store(self, contract_file: Path) -> Iterator[Store]:
        store = RunTwiceStore(SqliteStore(contract_file, CONTRACT_RECORDS))
        yield store
        store.close()


@pytest.mark.slow
def test_no_history_distinguishes_memory_from_a_dictionary() -> None:
    run_state_machine_as_test(machine_over(lambda: MemoryStore(CONTRACT_RECORDS)), settings=QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("twice", [False, True])
def test_no_history_distinguishes_sqlite_from_a_dictionary(tmp_path: Path, twice: bool) -> None:
    numbers = iter(range(10**6))
    paths: dict[int, Path] = {}

    def wrapped(path: Path) -> Store:
        inner = SqliteStore(path, CONTRACT_RECORDS, "process")
        store: Store = RunTwiceStore(inner) if twice else inner
        paths[id(store)] = path
        return store

    def reopen(store: Store) -> Store:
        path = paths.pop(id(store))
        store.close()
        return wrapped(path)

    run_state_machine_as_test(machine_over(lambda: wrapped(tmp_path / f"{next(numbers)}.db"), reopen), settings=QUICK)
