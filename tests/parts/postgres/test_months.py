"""Tables that are kept by months: where records go, what a month that is dropped takes with it, and how a table that
was whole becomes the first part.
"""

from contextlib import closing
from datetime import UTC, datetime, timedelta

import attrs
import pytest

from modelyard import open_platform
from modelyard.clock import uuid7_from
from modelyard.domain.job import JobEvent
from modelyard.domain.record import sequence_field
from modelyard.domain.usage import LedgerEntry
from modelyard.errors import RecordConflict, StoreError
from modelyard.parts.postgres import months
from modelyard.parts.postgres.part import PART
from modelyard.parts.postgres.store import PostgresStore, migrate
from modelyard.protocols import Month, MonthlyStore, Store
from modelyard.stores import Index, Record
from modelyard.stores.table_changes import KeepByMonth, SchemaChange
from postgres_server import PostgresServer


@attrs.frozen
class Line:
    id: str
    text: str = ""
    seq: int = sequence_field()


WHOLE = [Record(Line, "lines", ("id",), indexes={"all": Index(()), "by_text": Index(("text",))}, sequence="seq")]
BY_MONTH = [attrs.evolve(WHOLE[0], months="id")]
CHANGE = [SchemaChange("0002_by_month", [KeepByMonth(Line)])]
REST = "-7000-8000-000000000000"
"""What follows the time in an id."""
LONG_AGO = uuid7_from(datetime(2024, 2, 29, tzinfo=UTC)) + REST


def everything(store: Store) -> list[str]:
    return [line.id for line in store.read(lambda snapshot: snapshot.page(Line, "all"))]


def part_of(server: PostgresServer, address: str, id: str) -> str:
    database = address.partition("?")[0].rpartition("/")[2]
    found = server.execute(f"SELECT tableoid::regclass::text FROM modelyard.lines WHERE id = '{id}'", database)
    return str(found[0][0]).rpartition(".")[2]


def test_records_are_in_the_part_of_their_month_and_go_with_it(postgres: PostgresServer, yard_address: str) -> None:
    before = datetime.now(UTC)
    with closing(PostgresStore(yard_address, BY_MONTH)) as store:
        after = datetime.now(UTC)
        assert isinstance(store, MonthlyStore)
        this, following, _ = months = store.months(Line)
        assert this.first <= uuid7_from(after)
        assert uuid7_from(before) < this.end == following.first
        assert this.name in {f"lines_{moment:%Y_%m}" for moment in (before, after)}
        young, later, named = this.first + REST, following.first + REST, "named by hand"
        store.transact(lambda tx: [tx.add(Line(id, "x")) for id in (young, later, named)])
        assert part_of(postgres, yard_address, young) == this.name
        assert part_of(postgres, yard_address, named) == "lines_rest"
        assert store.month_page(Line, this, None, 10) == [Line(young, "x")]
        assert store.month_page(Line, this, (young,), 10) == []
        with pytest.raises(RecordConflict):
            store.transact(lambda tx: tx.add(Line(young)))
        store.drop_month(Line, this)
        assert everything(store) == [later, named]
        assert store.months(Line) == months[1:]
        with pytest.raises(StoreError, match="no partition"):
            store.drop_month(Line, Month("jobs", "", ""))
        store.transact(lambda tx: tx.add(Line(young)))  # it may still come, and is in the rest then
        last = store.read(lambda snapshot: snapshot.page(Line, "all", descending=True))[0]
        assert last.id == young
        assert last.seq > 3
    with closing(PostgresStore(yard_address, BY_MONTH)) as store:
        assert store.months(Line) == months[1:], "a month of which the rest has records stays there"
        assert everything(store) == [later, named, young]


def test_a_whole_table_becomes_the_first_part(postgres: PostgresServer, yard_address: str) -> None:
    old, young, odd = LONG_AGO, uuid7_from(datetime.now(UTC) - timedelta(days=1)) + REST, "zzz"
    with closing(PostgresStore(yard_address, WHOLE, changes=[])) as store:
        store.transact(lambda tx: [tx.add(Line(id, "x")) for id in (old, young, odd)])
    assert migrate(yard_address, BY_MONTH, changes=CHANGE) == ["0002_by_month"]
    with closing(PostgresStore(yard_address, BY_MONTH, changes=CHANGE)) as store:
        first, *others = store.months(Line)
        assert first.first == ""
        assert [month.first for month in others] == [first.end, *(month.end for month in others[:-1])]
        assert len(others) in {2, 3}, "another one where a month began since it was changed"
        store.transact(lambda tx: tx.add(Line(young + "+", "y")))
        found = store.read(lambda snapshot: snapshot.page(Line, "all"))
        assert [line.seq for line in found] == [1, 2, 3, 4]
        assert part_of(postgres, yard_address, odd) == "lines_rest"
        assert [line.id for line in store.month_page(Line, first, None, 2)] == [old, young]
        store.drop_month(Line, first)
        assert everything(store) == [odd]
    database = yard_address.partition("?")[0].rpartition("/")[2]
    names = "SELECT indexname FROM pg_indexes WHERE tablename = 'lines' ORDER BY 1"
    assert [name for (name,) in postgres.execute(names, database)] == ["lines_by_all", "lines_by_text", "lines_pkey"]


def test_what_cannot_be_kept_by_months_is_not_declared() -> None:
    with pytest.raises(TypeError, match="must lead its key"):
        Record(Line, "lines", ("id",), unique={"text": ("text",)}, months="id")


def test_a_worker_adds_the_months_that_come_once_a_day(yard_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("modelyard.parts.postgres.store.time.monotonic", lambda: now[0])
    with open_platform(yard_address, artifacts="memory://") as platform:
        store, add_months = platform._runtime.store, platform.each_second[PART.name]
        monkeypatch.setattr(months, "_AHEAD", 5)
        add_months()
        assert len(store.months(LedgerEntry)) == 3
        now[0] += 86_400
        add_months()
        assert [len(store.months(cls)) for cls in (LedgerEntry, JobEvent)] == [5, 5]


def test_the_upkeep_of_another_store_is_nothing() -> None:
    with open_platform() as platform:
        for do in platform.each_second.values():
            do()


def test_a_month_that_was_never_given_a_partition_is_warned_of(
    yard_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(PostgresStore(yard_address, BY_MONTH)) as store:
        this, _, last = store.months(Line)
        store.transact(lambda tx: [tx.add(Line(id)) for id in (this.first + REST, last.first + REST, "named by hand")])
        assert store.check()["warning"] is None, "a name has no month"
        late = last.end + REST
        store.transact(lambda tx: tx.add(Line(late)))
        assert f"lines_rest has records of a month, from {late} on" in str(store.check()["warning"])
