"""The newest records of a class, which lie apart: every reader sees them, and they are moved with all their indexes."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlite_utils import Database

from modelyard.domain.record import Record
from modelyard.domain.usage import RECORDS, LedgerEntry, UsageTotal, total_of
from modelyard.errors import RecordConflict, RecordNotFound
from modelyard.parts.contracts.store_values import Entry, Sale, Tally
from modelyard.protocols import Store
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore, tx
from modelyard.stores.sqlite.connection import connect
from modelyard.stores.sqlite.newest_fast import AT_ONCE, keep_newest_of_ledger
from modelyard.stores.sqlite.rows import plans_of
from modelyard.stores.sqlite.tx import SqliteTx
from modelyard.testing import CONTRACT_RECORDS, StoreContract


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


def test_numbers_that_are_retired_while_records_lie_apart_are_not_given_again(store: SqliteStore) -> None:
    store.transact(lambda tx: tx.add(Entry("a")))
    store.transact(lambda tx: cast(SqliteTx, tx).retire_numbers(Entry, 10))
    store.transact(lambda tx: tx.add(Entry("b")))
    assert [one.seq for one in store.read(lambda snapshot: snapshot.page(Entry, "all"))] == [1, 11]


VIEWS = {"ledger": "b960eaff4872991e", "usage_totals": "2857c31c2edfd717"}
"""Digests of the views of the records."""


def test_a_view_is_that_of_files_which_are_there_already() -> None:
    """A file keeps the view that it was given: one that changes needs a migration, at which all are made again, and the
    functions that a view calls must go on to mean the same.
    """
    views = {plan.record.table: plan.view for plan in plans_of(RECORDS).values() if plan.view}
    assert {name: sha256(sql.encode()).hexdigest()[:16] for name, sql in views.items()} == VIEWS


def test_a_class_whose_key_does_not_come_first_cannot_be_gathered() -> None:
    with pytest.raises(TypeError, match="its key must be its first fields"):
        Record(Entry, "entries", ("text",), sequence="seq", gathered=True)


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


@pytest.mark.slow
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


SALES = st.lists(
    st.tuples(
        st.sampled_from(["sell", "sell", "sell", "sell many", "see", "replace", "remove", "put"]),
        st.integers(0, 5).map(str),
        st.sampled_from("ab"),
        st.integers(-3, 3).map(Decimal),
        st.booleans(),
    ),
    max_size=40,
)


def sell(way: str, id: str, name: str, amount: Decimal, tx: Any) -> object:
    """Make a change of sales or their totals. Returns what it saw, or the error that it raised."""
    tally = Tally(name, "day 0", 7, amount)
    steps = {
        "sell": lambda: tx.add(Sale(id, name, 0, amount)),
        "sell many": lambda: tx.add_all([Sale(f"{id}-{at}", name, 0, amount) for at in range(4)]),
        "see": lambda: tx.find(Tally, "key", name, "day 0"),
        "replace": lambda: tx.replace(tally),
        "remove": lambda: tx.remove(Tally, name, "day 0"),
        "put": lambda: tx.add(tally),
    }
    try:
        return steps[way]()
    except (RecordConflict, RecordNotFound) as error:
        return type(error)


@pytest.mark.slow
@given(changes=SALES)
@settings(max_examples=60, deadline=None)
def test_totals_are_those_of_a_store_in_memory(
    changes: list[tuple[str, str, str, Decimal, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("file") / "yard.db"
    with pytest.MonkeyPatch.context() as patch, closing(SqliteStore(path, CONTRACT_RECORDS, "process")) as store:
        patch.setattr(tx, "AT_ONCE", 3)
        memory = MemoryStore(CONTRACT_RECORDS)
        steps: list[Any] = []
        for *change, last in [*changes, ("see", "", "a", Decimal(0), True)]:
            steps.append(partial(sell, *change))
            if last:  # of its transaction
                assert store.transact(each(steps)) == memory.transact(each(steps))
                steps = []
            totals = [one.read(lambda snapshot: snapshot.page(Tally, "by_day", "day 0")) for one in (store, memory)]
            assert totals[0] == totals[1]


def each(steps: Sequence[Callable[[Any], object]]) -> Callable[[Any], list[object]]:
    """Return the step that makes these one after another."""
    chosen = [*steps]
    return lambda tx: [step(tx) for step in chosen]


def test_the_ledger_of_an_older_file_is_split(tmp_path: Path) -> None:
    database = Database(tmp_path / "old.db")
    database.create_table("ledger", {"seq": int, "id": str}, pk="seq", not_null={"id"}, strict=True)
    database.table("ledger").insert_all([{"id": "a"}, {"id": "b"}])
    keep_newest_of_ledger(database)
    database.conn.execute("INSERT INTO ledger_newest VALUES (3, 'c')")
    assert database.conn.execute("SELECT id FROM ledger_indexed ORDER BY seq").fetchall() == [("a",), ("b",)]
    database.close()


def booked(number: int) -> LedgerEntry:
    """A row of the ledger."""
    at = datetime(2026, 11, 1, number, tzinfo=UTC)
    return LedgerEntry(str(number), "acme", "", "", "echo", "echo", None, 1, 0, 2, 0, False, Decimal(number), at)


def test_the_newest_of_an_older_file_are_in_its_totals_once(tmp_path: Path) -> None:
    path = tmp_path / "yard.db"
    SqliteStore(path, RECORDS).close()
    with closing(connect(str(path), "rw", 0)) as connection:  # as the version before wrote it
        for sql in (
            "DROP VIEW usage_totals",
            "ALTER TABLE usage_totals_indexed RENAME TO usage_totals",
            "ALTER TABLE ledger_newest DROP COLUMN day",
            "ALTER TABLE ledger_newest DROP COLUMN requests",
            "DELETE FROM modelyard_migrations WHERE name = '0037_sums_of_the_newest'",
        ):
            connection.execute(sql)
        for number in (1, 2):
            row = plans_of(RECORDS)[LedgerEntry].whole_row.checked(attrs.evolve(booked(number), seq=number))
            connection.execute(f"INSERT INTO ledger_newest VALUES ({', '.join('?' * len(row))})", row)
        total = plans_of(RECORDS)[UsageTotal].row_of(total_of(booked(1)) + total_of(booked(2)))
        connection.execute(f"INSERT INTO usage_totals VALUES ({', '.join('?' * len(total))})", total)
    with closing(SqliteStore(path, RECORDS)) as store:
        shown = lambda snapshot: snapshot.page(UsageTotal, "by_entity", "acme")  # noqa: E731
        (total,) = store.read(shown)
        assert (total.requests, total.cost) == (2, 3)
        store.transact(lambda tx: tx.add(booked(4)))
        (total,) = store.read(shown)
        assert (total.requests, total.cost) == (3, 7)
        rows = store.read(lambda snapshot: snapshot.page(LedgerEntry, "all"))
        assert [(row.id, row.seq) for row in rows] == [("1", 1), ("2", 2), ("4", 3)]


def test_counts_too_great_to_be_added_keep_no_other_record_from_being_booked(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "yard.db", RECORDS, "process")) as store:
        for number in range(3 * AT_ONCE):
            row = attrs.evolve(booked(1), id=str(number), prompt_tokens=2**62)
            store.transact(lambda tx, row=row: tx.add(row))
            if number in (1, AT_ONCE, 3 * AT_ONCE - 1):
                (total,) = store.read(lambda snapshot: snapshot.page(UsageTotal, "by_entity", "acme"))
                assert (total.prompt_tokens, total.requests) == (2**63 - 1, number + 1)


def test_counts_too_great_to_be_added_may_be_added_together(tmp_path: Path) -> None:
    rows = [attrs.evolve(booked(1), id=str(number), prompt_tokens=2**62) for number in range(8)]
    with closing(SqliteStore(tmp_path / "yard.db", RECORDS, "process")) as store:
        store.transact(lambda tx: tx.add_all(rows))
        (total,) = store.read(lambda snapshot: snapshot.page(UsageTotal, "by_entity", "acme"))
    assert (total.prompt_tokens, total.requests) == (2**63 - 1, 8)
