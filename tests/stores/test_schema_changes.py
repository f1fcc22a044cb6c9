"""One list of changes, rendered by SQLite and PostgreSQL: an old store of either becomes what a new one is."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path

import attrs
import pytest

from each import each_case
from kept_files import NEWEST, unpack
from modelyard.domain.record import sequence_field
from modelyard.errors import RecordConflict, StoreError, StoreTooNew
from modelyard.part import standard_parts
from modelyard.parts.postgres.store import PostgresStore, migrate
from modelyard.protocols import Store
from modelyard.stores import RECORDS, Index, Record, columns_of
from modelyard.stores.history import BEFORE
from modelyard.stores.schema_changes import CHANGES as CHANGES_OF_THE_CORE
from modelyard.stores.sqlite.migrations import MIGRATIONS
from modelyard.stores.sqlite.schema import all_changes
from modelyard.stores.sqlite.store import SqliteStore
from modelyard.stores.table_changes import INITIAL, AddColumn, AddIndex, AddTable, DropIndex, Fill, SchemaChange
from part_tests import in_common


@attrs.frozen
class OldPart:
    id: str
    place: str | None = None


@attrs.frozen
class Part:
    id: str
    place: str | None = None
    name: str = "it's"
    ratio: float = 0.5
    spare: bool = True
    weight: int | None = None
    copied: str = ""


@attrs.frozen
class Box:
    id: str
    room: int | None = None


@attrs.frozen
class Letter:
    id: str
    room: int
    seq: int = sequence_field()


@attrs.frozen
class Elsewhere:
    id: str


OLD = [Record(OldPart, "parts", key=("id",), indexes={"by_place": Index(("place",))})]
NEW = [
    Record(Part, "parts", key=("id",), indexes={"by_weight": Index((), ("weight",))}),
    Record(Box, "boxes", key=("id",), unique={"room": ("room",)}),
    Record(Letter, "letters", key=("id",), indexes={"by_room": Index(("room",))}, sequence="seq"),
]
CHANGES = [
    SchemaChange(
        "0002_more",
        [
            AddColumn(Part, "name", str, "it's"),
            AddColumn(Part, "ratio", float, 0.5),
            AddColumn(Part, "spare", bool, True),
            AddColumn(Part, "weight", int),
            AddColumn(Part, "copied", str, ""),
            Fill(Part, "copied", "coalesce(place, 'nowhere')"),
            DropIndex(Part, "by_place"),
            AddIndex(Part, "by_weight", ["weight", "id"]),
        ],
    ),
    SchemaChange("0003_boxes", [AddTable(Box)]),
    SchemaChange("0004_letters", [AddTable(Letter), AddIndex(Letter, "by_room", ["room", "seq"])]),
    SchemaChange("0005_of_others", [AddColumn(Elsewhere, "x", str)]),
]
CHANGES_HERE = ["0002_more", "0003_boxes", "0004_letters"]


@attrs.frozen
class Kind:
    """How to open an old store of a kind, and how to open it with the changes."""

    old: Callable[[], Store]
    new: Callable[[], Store]
    migrate: Callable[[], object] = attrs.field(default=lambda: None)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.servers)])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    if request.param == "sqlite":
        path = tmp_path / "yard.db"
        new = partial(SqliteStore, path, NEW, changes=CHANGES)
        return Kind(partial(SqliteStore, path, OLD, changes=[]), new)
    address = request.getfixturevalue("yard_address")
    return Kind(
        partial(PostgresStore, address, OLD, changes=[]),
        partial(PostgresStore, address, NEW, changes=CHANGES),
        partial(migrate, address, NEW, changes=CHANGES),
    )


def test_an_old_store_becomes_what_a_new_one_is(kind: Kind) -> None:
    with closing(kind.old()) as store:
        store.transact(lambda tx: [tx.add(OldPart("a", "here")), tx.add(OldPart("b"))])
    kind.migrate()
    with closing(kind.new()) as store:
        store.transact(lambda tx: [tx.add(Part("c", weight=-1)), tx.add(Box("x")), tx.add(Box("y"))])
        found = store.read(lambda snapshot: snapshot.page(Part, "by_weight"))
    assert found == [
        Part("a", "here", copied="here"),
        Part("b", copied="nowhere"),
        Part("c", weight=-1),
    ]
    kind.migrate()


def test_a_table_that_is_added_numbers_its_records_as_a_declared_one_does(kind: Kind) -> None:
    kind.old().close()
    kind.migrate()
    with closing(kind.new()) as store:
        store.transact(lambda tx: [tx.add(Letter(id, 1)) for id in ("z", "a")])
        with pytest.raises(RecordConflict):
            store.transact(lambda tx: tx.add(Letter("z", 2)))
        store.transact(lambda tx: tx.remove(Letter, "a"))
        store.transact(lambda tx: tx.add(Letter("b", 1)))
        found = store.read(lambda snapshot: snapshot.page(Letter, "by_room", 1))
    assert [letter.id for letter in found] == ["z", "b"]
    assert found[1].seq > found[0].seq + 1


def test_postgresql_migrates_on_request_and_older_servers_refuse_from_then_on(yard_address: str) -> None:
    with closing(PostgresStore(yard_address, OLD, changes=[])) as older:
        with pytest.raises(StoreError, match="modelyard migrate"):
            PostgresStore(yard_address, NEW, changes=CHANGES)
        older.transact(lambda tx: tx.add(OldPart("a")))
        assert migrate(yard_address, NEW, changes=CHANGES) == CHANGES_HERE
        with pytest.raises(StoreTooNew, match="restart"):
            older.transact(lambda tx: tx.add(OldPart("b")))
    with pytest.raises(StoreTooNew, match="does not know"):
        migrate(yard_address, OLD, changes=CHANGES[:1])
    with closing(PostgresStore(yard_address, NEW, changes=CHANGES)) as newer:
        assert [part.id for part in newer.read(lambda snapshot: snapshot.page(Part, "by_weight"))] == ["a"]


def test_a_change_that_fails_changes_nothing(yard_address: str) -> None:
    PostgresStore(yard_address, OLD, changes=[]).close()
    broken = [CHANGES[0], SchemaChange("0003_broken", [Fill(Part, "missing", "1")])]
    with pytest.raises(StoreError):
        migrate(yard_address, NEW, changes=broken)
    with closing(PostgresStore(yard_address, OLD, changes=[])) as store:
        store.transact(lambda tx: tx.add(OldPart("a")))


# ---- the list of the core -------------------------------------------------------------------------------------------

DIGESTS = Path(__file__).parent / "fixtures" / "tables.json"
"""What each table of the core, and of the parts of the first version, is like, as a digest."""


def digest_of(record: Record) -> str:
    columns = [(name, column.kind.sql, column.nullable) for name, column in columns_of(record).items()]
    indexes = [(name, index.where, record.order_of(name), index.also) for name, index in record.indexes.items()]
    layout = (record.sequence, sorted(record.sums), record.months, record.gathered)
    table = (columns, record.key, sorted(record.unique.items()), sorted(indexes), layout)
    return sha256(repr(table).encode()).hexdigest()[:16]


@each_case("record", RECORDS, ids=[record.table for record in RECORDS])
def test_a_class_that_changes_has_a_change(record: Record) -> None:
    """A store has tables as its version made them. Where a class gets a column or an index, add a `SchemaChange` with
    `AddColumn` or `AddIndex` at the end of `CHANGES`, and then put the digest of the class into the file; where the
    class is new, a change with `AddTable`.
    """
    known = json.loads(DIGESTS.read_text())
    for own in in_common("TABLES").values():
        known |= own
    assert known.get(record.table) == digest_of(record)


def test_the_last_index_that_a_change_adds_is_the_declared_one() -> None:
    """Else a store that was migrated has another index than a new one, or lacks it."""
    declared = {record.cls: record for record in RECORDS}
    added = {
        (part.of, part.name): None if isinstance(part, DropIndex) else tuple(part.columns)
        for change in CHANGES_OF_THE_CORE
        for part in change.parts
        if isinstance(part, AddIndex | DropIndex)
    }
    assert len(added) > 8
    for (cls, name), columns in added.items():
        record = declared[cls]
        kind, _, rest = name.partition("_")
        index = next((one for one in record.indexes if one.removeprefix("by_") == rest), None)
        if columns is None:
            assert index is None
        elif kind == "unique":
            assert columns == record.unique[rest]
        else:
            assert index is not None
            assert columns == record.indexes[index].where + record.order_of(index)


def test_each_table_is_of_the_first_version_or_added_by_a_change() -> None:
    table_of = {record.cls: record.table for record in RECORDS}
    added = {
        change.name: [table_of.pop(part.of) for part in change.parts if isinstance(part, AddTable)]
        for change in CHANGES_OF_THE_CORE
    }
    of_parts = {record.table for part in standard_parts() for record in part.records()}
    before = {table for tables in BEFORE.values() for table in tables.split()}
    made = {*table_of.values()} - (of_parts - before)  # a table of a part is made when the part is first opened
    assert made == {*BEFORE[INITIAL].split(), "processes", "rate_limits"}
    assert [added.get(name, []) for name in BEFORE if name != INITIAL] == [
        tables.split() for name, tables in BEFORE.items() if name != INITIAL
    ]


def test_the_changes_from_before_tables_were_recorded_are_those_of_files(tmp_path: Path) -> None:
    with closing(sqlite3.connect(unpack(NEWEST, tmp_path))) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM modelyard_migrations ORDER BY number")]
    assert names == [*BEFORE]
    assert [INITIAL, *(change.name for change in all_changes(CHANGES_OF_THE_CORE, MIGRATIONS))][: len(names)] == names
