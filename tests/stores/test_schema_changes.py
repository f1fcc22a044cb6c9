"""One list of changes, rendered by SQLite and PostgreSQL: an old store of either becomes what a new one is."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import attrs
import pytest

from modelyard.domain.record import sequence_field
from modelyard.errors import RecordConflict, StoreError, StoreTooNew
from modelyard.protocols import Store
from modelyard.stores import Index, Record, schema_changes
from modelyard.stores.postgres.store import PostgresStore, migrate
from modelyard.stores.sqlite.store import SqliteStore
from modelyard.stores.table_changes import AddColumn, AddIndex, AddTable, DropIndex, Fill, SchemaChange


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


IN_FILES = (
    *("0010_checkpoints_of_completions", "0011_answered_requests", "0012_browser_sessions", "0013_budget_periods"),
    *("0014_host_keys", "0015_accelerators_of_jobs", "0016_jobs_by_state", "0017_comments_of_scores", "0018_files"),
    *("0019_annotations", "0020_events_by_month", "0021_ledger_by_month", "0022_responses", "0030_traces"),
)
"""Changes that files of users have. A change before the last of them would make those files unreadable."""


def test_what_files_have_is_not_reordered() -> None:
    assert tuple(change.name for change in schema_changes.CHANGES)[: len(IN_FILES)] == IN_FILES
