"""The newest records of a class, which lie apart: every reader sees them, and they are moved with all their indexes."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlite_utils import Database

from modelyard.domain.record import Record
from modelyard.errors import RecordConflict, RecordNotFound
from modelyard.protocols import Store
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore, tx
from modelyard.stores.sqlite.newest import AT_ONCE, keep_newest_of_ledger
from modelyard.testing import CONTRACT_RECORDS, StoreContract
from modelyard.testing.contracts.store_values import Entry


@pytest.fixture
def moved_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tx, "AT_ONCE", 2)


class TestSqliteStoreThatMovesOften(StoreContract):
    @pytest.fixture
    def store(self, contract_file: Path, moved_often: None) -> Iterator[Store]:
        store = SqliteStore(contract_file, CONTRACT_RECORDS, "process")
        yield store
        store.close()


def counts(path: Path) -> tuple[int, int]:
    """How many records lie in the table without an index, and in the other."""
    with closing(sqlite3.connect(path)) as connection:
        tables = ("entries_newest", "entries_indexed")
        found = [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]
    return found[0], found[1]


def test_the_newest_lie_apart_and_are_moved_together(store: SqliteStore, path: Path) -> None:
    for number in range(AT_ONCE - 1):
        store.transact(lambda tx, id=str(number): tx.add(Entry(id)))
    assert counts(path) == (AT_ONCE - 1, 0)
    store.transact(lambda tx: tx.add(Entry("one more")))
    assert counts(path) == (0, AT_ONCE)
    store.transact(lambda tx: tx.add(Entry("after")))
    assert counts(path) == (1, AT_ONCE)


def test_a_process_that_opens_the_file_sees_the_newest(store: SqliteStore, path: Path) -> None:
    store.transact(lambda tx: tx.add(Entry("a")))
    with closing(SqliteStore(path, CONTRACT_RECORDS)) as other:
        assert [one.id for one in other.read(lambda snapshot: snapshot.page(Entry, "all"))] == ["a"]
        with pytest.raises(RecordConflict):
            other.transact(lambda tx: tx.add(Entry("a")))
        other.transact(lambda tx: tx.add(Entry("b")))
    found = store.read(lambda snapshot: snapshot.page(Entry, "all"))
    assert [(one.id, one.seq) for one in found] == [("a", 1), ("b", 2)]


def test_who_knows_the_file_as_it_was_is_refused(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.OperationalError, match="is a view"):
        connection.execute("INSERT INTO entries (id, topic, text) VALUES ('a', '', '')")


def test_one_of_the_newest_is_replaced_and_removed_as_any_other(store: SqliteStore) -> None:
    store.transact(lambda tx: [tx.add(Entry("a")), tx.add(Entry("b"))])
    store.transact(lambda tx: tx.replace(Entry("b", text="changed")))
    assert store.read(lambda snapshot: snapshot.get(Entry, "b")).text == "changed"
    store.transact(lambda tx: tx.add(Entry("c")))
    store.transact(lambda tx: tx.remove(Entry, "c"))
    store.transact(lambda tx: tx.add(Entry("d")))
    assert [(one.id, one.seq) for one in store.read(lambda snapshot: snapshot.page(Entry, "all"))] == [
        ("a", 1),
        ("b", 2),
        ("d", 4),
    ]


def test_an_undone_move_is_made_again(store: SqliteStore, path: Path) -> None:
    for number in range(AT_ONCE - 1):
        store.transact(lambda tx, id=str(number): tx.add(Entry(id)))

    def fail(tx: Any) -> None:
        tx.add(Entry("undone"))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.transact(fail)
    assert counts(path) == (AT_ONCE - 1, 0)
    store.transact(lambda tx: tx.add(Entry("kept")))
    assert counts(path) == (0, AT_ONCE)


IDS = st.integers(0, 4).map(str)
CHANGES = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "add_all", "replace", "remove"]), IDS, st.sampled_from("ab")),
    max_size=40,
)


def change(store: Store, way: str, id: str, topic: str) -> object:
    """Make one change. Returns what it raised."""
    entry = Entry(id, topic, f"text of {id}")
    steps = {
        "add": lambda tx: tx.add(entry),
        "add_all": lambda tx: tx.add_all([entry, *(Entry(f"{id}-{at}", topic) for at in range(5))]),
        "replace": lambda tx: tx.replace(attrs.evolve(entry, text="changed")),
        "remove": lambda tx: tx.remove(Entry, id),
    }
    try:
        store.transact(steps[way])
    except (RecordConflict, RecordNotFound) as error:
        return type(error)
    return None


def shown(store: Store) -> list[Any]:
    """What listings in every order, pages, counts and look-ups show."""

    def query(snapshot: Any) -> list[Any]:
        found: list[Any] = [snapshot.count(Entry, "all"), [snapshot.find(Entry, "key", str(at)) for at in range(5)]]
        for index, *where in (("all",), ("by_topic", "a"), ("by_text", "a"), ("by_text", "b")):
            for descending in (False, True):
                after, pages = None, []
                while page := snapshot.page(Entry, index, *where, after=after, limit=3, descending=descending):
                    pages += [(one, one.seq) for one in page]
                    after = RECORD.cursor(index, page[-1])
                found.append(pages)
            found.append(snapshot.select(Entry, ["id", "seq"], index, *where))
            found.append(snapshot.count(Entry, index, *where))
        return found

    return store.read(query)


RECORD: Record = next(record for record in CONTRACT_RECORDS if record.cls is Entry)


@given(changes=CHANGES)
@settings(max_examples=40, deadline=None)
def test_it_shows_what_a_store_in_memory_shows(
    changes: list[tuple[str, str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("file") / "yard.db"
    with pytest.MonkeyPatch.context() as patch, closing(SqliteStore(path, CONTRACT_RECORDS, "process")) as store:
        patch.setattr(tx, "AT_ONCE", 3)
        memory = MemoryStore(CONTRACT_RECORDS)
        for way, id, topic in changes:
            assert change(store, way, id, topic) == change(memory, way, id, topic)
            ids = [
                [one.id for one in each.read(lambda snapshot: snapshot.page(Entry, "all"))] for each in (store, memory)
            ]
            assert ids[0] == ids[1]
        numbered, expected = shown(store), shown(memory)
        assert without_numbers(numbered) == without_numbers(expected)


def without_numbers(found: Any) -> Any:
    """The same without the numbers of records: stores may leave out different ones."""
    if isinstance(found, list):
        return [without_numbers(one) for one in found]
    return found[0] if isinstance(found, tuple) else found


def test_the_ledger_of_an_older_file_is_split(tmp_path: Path) -> None:
    database = Database(tmp_path / "old.db")
    database.create_table("ledger", {"seq": int, "id": str}, pk="seq", not_null={"id"}, strict=True)
    database.table("ledger").insert_all([{"id": "a"}, {"id": "b"}])
    keep_newest_of_ledger(database)
    database.conn.execute("INSERT INTO ledger_newest VALUES (3, 'c')")
    assert database.conn.execute("SELECT id FROM ledger ORDER BY seq").fetchall() == [("a",), ("b",), ("c",)]
    database.close()
