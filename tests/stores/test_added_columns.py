"""A column that is added to any stored class, as a developer adds it, in a store that has records of all classes."""

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, get_type_hints

import attrs
import pytest

from kept_files import NEWEST, contents_of, records_of, rows_of, unpack
from modelyard.domain.record import Record
from modelyard.domain.usage import UsageTotal
from modelyard.errors import StoreCorrupt
from modelyard.parts import copying
from modelyard.parts.postgres.store import PostgresStore, migrate
from modelyard.protocols import Store
from modelyard.stores import RECORDS
from modelyard.stores.schema_changes import CHANGES
from modelyard.stores.sqlite.store import SqliteStore
from modelyard.stores.table_changes import AddColumn, SchemaChange
from specimens import specimen

TABLES = [record.table for record in RECORDS if contents_of(NEWEST).get(record.table)]


def with_column(cls: Any) -> Any:
    """The class with one more field, `added`."""
    hints, fields = get_type_hints(cls), {}
    for field in attrs.fields(cls):
        if field.name == "seq" and field.default == 0 and not field.eq:
            fields["added"] = attrs.field(default=0, type=int)
        fields[field.name] = attrs.field(
            default=field.default, converter=field.converter, eq=field.eq, repr=field.repr, type=hints[field.name]
        )
    fields.setdefault("added", attrs.field(default=0, type=int))
    return attrs.make_class(cls.__name__, fields, frozen=True, class_body={"__add__": add})


def add(one: Any, other: Any) -> Any:
    """The sum of two totals."""
    sums = {field.name for field in attrs.fields(UsageTotal)} - {"entity", "day", "project", "key_id", "model"}
    return attrs.evolve(one, **{name: getattr(one, name) + getattr(other, name) for name in (*sums, "added")})


def grown(tables: Sequence[str]) -> tuple[list[Record], SchemaChange]:
    """The declarations in which the classes of these tables have the field, and the change that adds it."""
    classes = {record.cls: with_column(record.cls) for record in RECORDS if record.table in tables}
    records = [
        attrs.evolve(
            record,
            cls=classes.get(record.cls, record.cls),
            sums=(*record.sums, "added") if record.sums and record.cls in classes else record.sums,
            totals=record.totals and (classes.get(record.totals[0], record.totals[0]), total_in(classes, record)),
        )
        for record in RECORDS
    ]
    return records, SchemaChange("9000_added", [AddColumn(cls, "added", int, 0) for cls in classes.values()])


def total_in(classes: dict[type, Any], record: Record) -> Callable[[Any], Any]:
    """What one record adds to its total: also what it has in the field, or else one."""
    assert record.totals
    cls, total_of = record.totals

    def total(entry: Any) -> Any:
        plain = total_of(entry)
        if cls not in classes:
            return plain
        values = {field.name: getattr(plain, field.name) for field in attrs.fields(cls)}
        return classes[cls](**values, added=getattr(entry, "added", 1))

    return total


def check(store: Store, before: Any, records: Sequence[Record], tables: Sequence[str]) -> None:
    """All that was there is there, with the default; more is written and read, and replaced."""
    now = rows_of(store, records)
    assert {name: [without(row) for row in rows] for name, rows in now.items()} == before
    changed = [record for record in records if record.table in tables]
    for record in changed:
        assert [one.added for one in records_of(store, record)] == [0] * len(before[record.table])
    for record in changed:
        write(store, record)


def without(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "added"}


def write(store: Store, record: Record) -> None:
    """Add a record with the field, and replace one that was there."""
    first, new = records_of(store, record)[0], specimen(record, "another", added=5)
    store.transact(lambda tx: [tx.add(new), tx.replace(attrs.evolve(first, added=6))])
    for one, value in ((new, 5), (first, 6)):
        key = record.key_of(one)
        assert store.read(lambda snapshot, key=key: snapshot.get(record.cls, *key)).added == value


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES)
def test_a_column_of_any_class_is_added_to_a_file(table: str, tmp_path: Path) -> None:
    path = unpack(NEWEST, tmp_path)
    with closing(SqliteStore(path, RECORDS)) as store:
        before = rows_of(store, RECORDS)
    assert before[table]
    records, change = grown([table])
    with closing(SqliteStore(path, records, changes=[*CHANGES, change])) as store:
        check(store, before, records, [table])
    with closing(SqliteStore(path, records, changes=[*CHANGES, change])) as store:
        assert {one.added for one in records_of(store, of(table, records))} >= {5, 6}


def of(table: str, records: Sequence[Record]) -> Record:
    return next(record for record in records if record.table == table)


BOTH = ["ledger", "usage_totals"]


@pytest.mark.parametrize("tables", [["usage_totals"], BOTH], ids=["of the total", "of both"])
def test_a_sum_that_is_added_is_added_up(tables: Sequence[str], tmp_path: Path) -> None:
    """Also by the rows of the ledger that are not yet among the others, and by those that are moved there."""
    path = unpack(NEWEST, tmp_path)
    SqliteStore(path, RECORDS).close()  # with what has changed since: only then do tables fit the classes that grow
    records, change = grown(tables)
    ledger, totals = (of(table, records) for table in BOTH)
    given = {"trained_tokens": 0, **({"added": 1} if "ledger" in tables else {})}
    with closing(SqliteStore(path, records, changes=[*CHANGES, change])) as store:
        old = records_of(store, totals)
        for number in range(40):
            entry = specimen(ledger, "sums", id=str(number), **given)
            store.transact(lambda tx, entry=entry: tx.add(entry))
            (total,) = set(records_of(store, totals)) - set(old)
            assert (total.added, total.requests, total.prompt_tokens) == (number + 1, number + 1, 7 * number + 7)


def test_a_column_without_a_change_is_refused(tmp_path: Path) -> None:
    path = unpack(NEWEST, tmp_path)
    records, _ = grown(["ledger"])
    with pytest.raises(StoreCorrupt, match="added"):
        SqliteStore(path, records)


def test_columns_of_all_classes_are_added_to_a_schema(yard_address: str, tmp_path: Path) -> None:
    with (
        closing(SqliteStore(unpack(NEWEST, tmp_path), RECORDS)) as kept,
        closing(PostgresStore(yard_address, RECORDS)) as store,
    ):
        copying.copy_store(kept, store, RECORDS, lambda count: None)
        before = rows_of(store, RECORDS)
    records, change = grown(TABLES)
    assert migrate(yard_address, records, changes=[*CHANGES, change]) == ["9000_added"]
    with closing(PostgresStore(yard_address, records, changes=[*CHANGES, change])) as store:
        check(store, before, records, TABLES)
