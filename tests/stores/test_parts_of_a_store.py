"""Parts of a platform come and go, each with records and changes of its own; a store knows what it has had."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import attrs
import pytest

from kept_files import NEWEST, contents_of, rows_of, unpack
from modelyard.errors import StoreCorrupt, StoreError, StoreTooNew
from modelyard.parts import copying
from modelyard.parts.postgres.store import PostgresStore, migrate
from modelyard.parts.traces import records as trace
from modelyard.stores import RECORDS, Index, Record
from modelyard.stores.schema_changes import CHANGES
from modelyard.stores.sqlite.store import SqliteStore
from modelyard.stores.table_changes import AddColumn, AddIndex, AddTable, SchemaChange
from postgres_server import PostgresServer

Yard = SqliteStore | PostgresStore


@attrs.frozen
class Shed:
    id: str


@attrs.frozen
class Note:
    id: str


@attrs.frozen
class TitledNote:
    id: str
    title: str = "none"


SHEDS = [Record(Shed, "sheds", ("id",))]
NOTES = [Record(Note, "notes", ("id",))]
TITLED = [Record(TitledNote, "notes", ("id",), indexes={"by_title": Index((), ("title",))})]
TITLES = SchemaChange(
    "notes/0001_titles",
    [AddColumn(TitledNote, "title", str, "none"), AddIndex(TitledNote, "by_title", ["title", "id"])],
)


@attrs.frozen
class Kind:
    """How to open a store of a kind with records and changes, how to migrate it first, and how to drop its table."""

    open: Callable[..., Yard]
    migrate: Callable[..., object]
    drop: Callable[[str], object]

    def opened(self, records: Sequence[Record], *changes: SchemaChange) -> Yard:
        self.migrate(records, changes=changes)
        return self.open(records, changes=changes)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.servers)])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    if request.param == "sqlite":
        path = tmp_path / "yard.db"
        return Kind(partial(SqliteStore, path), lambda records, changes: None, partial(drop, path))
    address, server = request.getfixturevalue("yard_address"), request.getfixturevalue("postgres")

    def migrate_there(records: Sequence[Record], changes: Sequence[SchemaChange]) -> None:
        if server.execute("SELECT to_regclass('modelyard.modelyard_migrations') IS NOT NULL", database(address))[0][0]:
            migrate(address, records, changes=changes)

    def drop_there(table: str) -> None:
        server.execute(f"DROP TABLE modelyard.{table}", database(address))

    return Kind(partial(PostgresStore, address), migrate_there, drop_there)


def database(address: str) -> str:
    return address.partition("?")[0].rpartition("/")[2]


def drop(path: Path, table: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"DROP TABLE {table}")


def keep(store: Yard, *records: object) -> None:
    with closing(store):
        store.transact(lambda tx: [tx.add(record) for record in records])


def kept(store: Yard, cls: type) -> list[object]:
    with closing(store):
        return list(store.read(lambda snapshot: snapshot.page(cls, "by_title")))


def test_a_part_without_changes_is_opened_on_any_store(kind: Kind) -> None:
    keep(kind.open(SHEDS, changes=[]), Shed("a"))
    keep(kind.open([*SHEDS, *NOTES], changes=[]), Note("n"))
    with closing(kind.open([*SHEDS, *NOTES], changes=[])) as store:
        assert store.read(lambda snapshot: (snapshot.get(Shed, "a"), snapshot.get(Note, "n"))) == (Shed("a"), Note("n"))


def test_changes_of_a_table_that_a_store_never_had_are_done(kind: Kind) -> None:
    keep(kind.open(SHEDS, changes=[]), Shed("a"))
    for id in "nm":
        keep(kind.open([*SHEDS, *TITLED], changes=[TITLES]), TitledNote(id))
    assert kept(kind.open(TITLED, changes=[TITLES]), TitledNote) == [TitledNote("m"), TitledNote("n")]


def test_a_part_that_is_not_open_is_left_alone(kind: Kind) -> None:
    keep(kind.open([*SHEDS, *TITLED], changes=[TITLES]), TitledNote("n", "x"))
    keep(kind.open(SHEDS, changes=[]), Shed("a"))
    assert kept(kind.open([*SHEDS, *TITLED], changes=[TITLES]), TitledNote) == [TitledNote("n", "x")]


def test_a_change_waits_until_its_classes_are_declared(kind: Kind) -> None:
    keep(kind.open([*SHEDS, *NOTES], changes=[]), Note("n"))
    keep(kind.opened(SHEDS, TITLES), Shed("a"))
    assert kept(kind.opened([*SHEDS, *TITLED], TITLES), TitledNote) == [TitledNote("n")]


def test_a_newer_version_of_what_is_open_is_refused(kind: Kind) -> None:
    second = SchemaChange("notes/0002_more", [])
    kind.open([*SHEDS, *TITLED], changes=[TITLES, second]).close()
    with pytest.raises(StoreTooNew, match="notes/0002_more"):
        kind.open([*SHEDS, *TITLED], changes=[TITLES])
    with pytest.raises(StoreTooNew, match="title"):
        kind.open([*SHEDS, *NOTES], changes=[])  # when the part had no changes yet
    kind.open(SHEDS, changes=[]).close()
    kind.opened(SHEDS, SchemaChange("0002_of_the_core", [])).close()
    with pytest.raises(StoreTooNew, match="0002_of_the_core"):
        kind.open(SHEDS, changes=[])


def test_a_table_that_is_lost_is_not_made_again(kind: Kind) -> None:
    kind.open([*SHEDS, *NOTES], changes=[]).close()
    kind.drop("notes")
    kind.open(SHEDS, changes=[]).close()
    for records, changes in ((NOTES, []), (TITLED, [TITLES])):
        with pytest.raises(StoreCorrupt, match=r"lost the tables \['notes'\]"):
            kind.open([*SHEDS, *records], changes=changes)


def test_a_change_of_classes_that_are_not_declared_together_is_a_mistake(kind: Kind) -> None:
    kind.open(SHEDS, changes=[]).close()
    mixed = SchemaChange("0002_mixed", [AddColumn(Shed, "x", str), AddTable(Note)])
    with pytest.raises(TypeError, match="0002_mixed names Note"):
        kind.opened(SHEDS, mixed)


def test_a_copy_without_records_that_are_there_is_refused(kind: Kind, tmp_path: Path) -> None:
    keep(kind.open([*SHEDS, *NOTES], changes=[]), Note("n"))
    with (
        closing(kind.open(SHEDS, changes=[])) as source,
        closing(SqliteStore(tmp_path / "copy.db", SHEDS)) as target,
    ):
        assert list(source.other_tables()) == ["notes"]
        with pytest.raises(StoreError, match="notes"):
            copying.copy_store(source, target, SHEDS, lambda count: None)
        if isinstance(source, PostgresStore):
            with pytest.raises(StoreError, match="notes"):
                source.backup(str(tmp_path / "backup.db"))
    with closing(kind.open([*SHEDS, *NOTES], changes=[])) as source:
        source.transact(lambda tx: tx.remove(Note, "n"))
    with closing(kind.open(SHEDS, changes=[])) as source:
        assert list(source.other_tables()) == [], "a table without rows leaves nothing out"


def test_servers_without_a_part_go_on_when_it_is_migrated(yard_address: str) -> None:
    first = SchemaChange("notes/0000_first", [AddIndex(Note, "by_id", ["id"])])
    with (
        closing(PostgresStore(yard_address, SHEDS, changes=[])) as other,
        closing(PostgresStore(yard_address, [*SHEDS, *NOTES], changes=[first])) as older,
    ):
        newer = partial(PostgresStore, yard_address, [*SHEDS, *TITLED], changes=[first, TITLES])
        with pytest.raises(StoreError, match="modelyard migrate"):
            newer()
        older.transact(lambda tx: tx.add(Note("n")))
        assert migrate(yard_address, [*SHEDS, *TITLED], changes=[first, TITLES]) == ["notes/0001_titles"]
        other.transact(lambda tx: tx.add(Shed("a")))
        with pytest.raises(StoreTooNew, match="restart"):
            older.transact(lambda tx: tx.add(Note("m")))
        assert kept(newer(), TitledNote) == [TitledNote("n")]


def test_a_table_that_a_change_adds_waits_for_a_request(yard_address: str, postgres: PostgresServer) -> None:
    PostgresStore(yard_address, SHEDS, changes=[]).close()
    adding = SchemaChange("0002_notes", [AddTable(Note)])
    with pytest.raises(StoreError, match="0002_notes"):
        PostgresStore(yard_address, [*SHEDS, *NOTES], changes=[adding])
    assert postgres.execute("SELECT to_regclass('modelyard.notes')", database(yard_address))[0][0] is None
    assert migrate(yard_address, [*SHEDS, *NOTES], changes=[adding]) == ["0002_notes"]
    keep(PostgresStore(yard_address, [*SHEDS, *NOTES], changes=[adding]), Note("n"))


# ---- files from before tables were recorded ------------------------------------------------------------------------


def test_a_file_of_before_is_opened_without_a_part_and_with_it_again(tmp_path: Path) -> None:
    path, tables = unpack(NEWEST, tmp_path), {record.table for record in trace.RECORDS}
    core = [record for record in RECORDS if record.table not in tables]
    changes = [change for change in CHANGES if change.classes.isdisjoint(record.cls for record in trace.RECORDS)]
    with closing(SqliteStore(path, [*core, *NOTES], changes=changes)) as store:
        store.transact(lambda tx: tx.add(Note("n")))
        assert set(store.other_tables()) == tables
    with closing(SqliteStore(path, RECORDS)) as store:
        assert {table: len(rows) for table, rows in rows_of(store, RECORDS).items()} == {
            table: len(contents_of(NEWEST).get(table, ())) for table in (record.table for record in RECORDS)
        }
        assert store.other_tables() == ["notes"]


@pytest.mark.parametrize("table", ["uploads", "annotations", "ledger_indexed", "ledger_newest"])
def test_a_file_of_before_that_has_lost_a_table_is_refused(table: str, tmp_path: Path) -> None:
    path = unpack(NEWEST, tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP VIEW usage_totals")
        connection.execute("DROP VIEW ledger")
        connection.execute(f"DROP TABLE {table}")
    with pytest.raises(StoreCorrupt, match=table.removesuffix("_indexed")):
        SqliteStore(path, RECORDS)
