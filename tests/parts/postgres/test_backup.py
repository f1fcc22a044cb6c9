"""A backup of a PostgreSQL store is a SQLite file with the same records, numbers included."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from modelyard.parts.contracts.store_values import Entry, Item, Specimen
from modelyard.parts.postgres.store import PostgresStore
from modelyard.protocols import Store
from modelyard.stores.sqlite import SqliteStore
from modelyard.testing import CONTRACT_RECORDS


@pytest.fixture
def store(yard_address: str) -> Iterator[Store]:
    with closing(PostgresStore(yard_address, CONTRACT_RECORDS)) as store:
        yield store


def test_a_backup_has_every_record_and_its_number(store: Store, tmp_path: Path) -> None:
    numbers = range(1234)

    def fill(tx: object) -> None:
        for number in numbers:
            tx.add(Item("a\0\1", number, f"label {number}"))
        for name in "abcd":
            tx.add(Entry(name, text=name))
        tx.add(Specimen("s", mapping={"a": [1, {"b": "\0"}]}, blob=b"\0\1", maybe_number=3))
        tx.remove(Entry, "b")

    store.transact(fill)
    store.transact(lambda tx: tx.remove(Entry, "d"))
    store.backup(str(tmp_path / "copy.db"))
    with closing(SqliteStore(tmp_path / "copy.db", CONTRACT_RECORDS)) as copy:
        for one, other in zip(*(kept.read(_everything) for kept in (store, copy)), strict=True):
            assert one == other
        copy.transact(lambda tx: tx.add(Entry("e")))
        store.transact(lambda tx: tx.add(Entry("e")))
        newest = [kept.read(lambda snapshot: snapshot.get(Entry, "e")).seq for kept in (store, copy)]
        assert newest[0] == newest[1] == 5
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("copy.db")] == []


def _everything(snapshot: object) -> list[object]:
    entries = snapshot.page(Entry, "all")
    return [
        snapshot.page(Item, "by_label", limit=2000),
        snapshot.get(Specimen, "s"),
        entries,
        [entry.seq for entry in entries],
    ]
