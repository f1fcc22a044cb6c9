"""A standby takes over under load: no acknowledged record is lost, and the clients continue on it by themselves."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import attrs
import pytest

from modelyard.errors import OutcomeUnknown
from modelyard.parts.contracts.store_values import Counter, Item
from modelyard.parts.postgres.store import PostgresStore
from modelyard.protocols import Snapshot, Tx
from modelyard.testing import CONTRACT_RECORDS
from polling import until
from postgres_server import PostgresServer, server_folder

WRITERS = 4
ENOUGH = 20
PATIENCE = 120.0


@pytest.fixture
def pair(postgres: PostgresServer) -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A server that the test may stop, and its standby."""
    folder = server_folder()
    assert folder is not None
    primary = PostgresServer(folder)
    standby = PostgresServer(folder, of=primary)
    yield primary, standby
    standby.close()
    primary.close()


def add_counted(number: int, tx: Tx) -> None:
    tx.add(Item("kept", number))
    counter = tx.get(Counter, "kept")
    tx.replace(attrs.evolve(counter, value=counter.value + 1))


def kept(snapshot: Snapshot) -> tuple[set[int], int]:
    items = snapshot.page(Item, "by_shelf", "kept", limit=10**6)
    return {item.number for item in items}, snapshot.get(Counter, "kept").value


def test_a_standby_that_takes_over_under_load_has_every_acknowledged_record(
    pair: tuple[PostgresServer, PostgresServer],
) -> None:
    primary, standby = pair
    primary.create_database()
    primary.follow_synchronously()
    address = f"postgresql://yard@/yard1?host={primary.folder},{standby.folder}&target_session_attrs=read-write"
    acknowledged: list[int] = []
    unknown: list[int] = []
    numbers, ended = iter(range(10**9)), threading.Event()

    def write(store: PostgresStore) -> None:
        while not ended.is_set():
            number = next(numbers)
            try:
                store.transact(partial(add_counted, number))
            except OutcomeUnknown:
                unknown.append(number)
            else:
                acknowledged.append(number)

    with (
        closing(PostgresStore(address, CONTRACT_RECORDS, patience=PATIENCE)) as one,
        closing(PostgresStore(address, CONTRACT_RECORDS, patience=PATIENCE)) as other,
        ThreadPoolExecutor(WRITERS) as pool,
    ):
        one.transact(lambda tx: tx.add(Counter("kept")))
        writers = [pool.submit(write, (one, other)[at % 2]) for at in range(WRITERS)]
        try:
            until(lambda: len(acknowledged) >= ENOUGH)
            primary.stop("immediate")
            before = len(acknowledged)
            standby.promote()
            until(lambda: len(acknowledged) >= before + ENOUGH)
        finally:
            ended.set()
        for writer in writers:
            writer.result()
        there, count = one.read(kept)
        assert set(acknowledged) <= there <= {*acknowledged, *unknown}
        assert count == len(there)
        assert other.read(kept) == (there, count)
