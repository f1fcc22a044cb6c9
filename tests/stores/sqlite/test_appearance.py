"""The order of appearance in a file: what it costs to list by it, and how a file of before gets it."""

import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from each import check_each
from modelyard import open_platform
from modelyard.domain.job import Job
from modelyard.domain.models import Model
from modelyard.domain.record import Record
from modelyard.domain.schema import RECORDS
from modelyard.domain.usage import LedgerEntry
from modelyard.stores.sqlite import SqliteStore
from modelyard.stores.sqlite.connection import connect
from modelyard.stores.sqlite.newest_fast import indexed_table
from modelyard.stores.sqlite.rows import StatementPlan

KEPT = Path(__file__).parents[1] / "files" / "yard-0.1.0.zip"
LISTINGS = [(record, index) for record in RECORDS for index in record.indexes]
NUMBERED = [record for record in RECORDS if record.sequence]


def schema(path: Path) -> dict[str, str]:
    """The statements that make a file's tables and indexes, without white space."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {name: "".join(sql.split()).lower() for name, sql in rows}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fresh") / "yard.db"
    SqliteStore(path, RECORDS).close()
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with zipfile.ZipFile(KEPT) as kept:
        kept.extractall(tmp_path)
    return tmp_path / "yard.db"


@pytest.mark.parametrize("descending", [False, True], ids=["up", "down"])
def test_every_listing_is_read_along_an_index(fresh: Path, descending: bool) -> None:
    def check(record_and_index: tuple[Record, str]) -> None:
        record, index = record_and_index
        listing = StatementPlan(record).listings[index]
        for sql in (listing._first[descending], listing._next[descending]):
            steps = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", [None] * sql.count("?"))]
            if record.gathered or record.sums:  # with the newest, which are few and have no index
                assert steps[:2] == ["MERGE (UNION ALL)", "LEFT"], steps
                steps = steps[2 : steps.index("RIGHT")]
                if record.sums:  # whether there is one of the newest for it
                    assert steps[1].startswith("CORRELATED"), steps
                    assert steps[2:] == ["SCAN added"], steps
                    steps = steps[:1]
            assert not any("TEMP B-TREE" in step for step in steps), steps
            assert not record.indexes[index].where or not any(step.startswith("SCAN") for step in steps), steps

    with closing(connect(str(fresh), "ro", 0)) as connection:
        check_each({f"{record.table} {index}": (record, index) for record, index in LISTINGS}, check)


@pytest.mark.parametrize("record", NUMBERED, ids=lambda record: record.table)
def test_all_records_are_the_table_itself(fresh: Path, record: Record) -> None:
    assert f"{record.table}_by_all" not in schema(fresh)
    assert '"seq"integerprimarykey' in schema(fresh)[indexed_table(record)]


def by_time(path: Path) -> Iterator[tuple[str, list[str]]]:
    with closing(sqlite3.connect(path)) as connection:
        kept = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        for record in [one for one in NUMBERED if one.table in kept]:
            time = "started_at" if record.table in ("predictions", "evaluation_runs") else "created_at"
            found = connection.execute(f'SELECT id FROM "{record.table}" ORDER BY "{time}", id').fetchall()
            yield record.table, [id_ for (id_,) in found]


def test_records_of_before_keep_their_order(old: Path) -> None:
    before = dict(by_time(old))
    assert all(before[table] for table in ("ledger", "jobs", "models", "predictions", "scores"))
    with closing(SqliteStore(old, RECORDS)) as store:
        for record in [one for one in NUMBERED if one.table in before]:
            index = next((name for name, one in record.indexes.items() if not one.where), None)
            if index is not None:
                found = store.read(lambda s, r=record, i=index: s.page(r.cls, i, limit=10_000))  # type: ignore[misc]
                assert [one.id for one in found] == before[record.table]
    with closing(sqlite3.connect(old)) as connection:
        for table, ids in before.items():
            found = connection.execute(f'SELECT id FROM "{table}" ORDER BY seq').fetchall()
            assert [id_ for (id_,) in found] == ids


def test_the_place_of_a_model_that_was_deleted_before_stays(old: Path) -> None:
    with closing(sqlite3.connect(old)) as connection, connection:
        ((first, created),) = connection.execute("SELECT id, created_at FROM models ORDER BY created_at LIMIT 1")
        gone = "00000000-0000-7000-8000-000000000000"  # of the same moment, and before it
        row = (gone, "local", "desk", "", 0, created)
        connection.execute("INSERT INTO tombstones VALUES (?, ?, ?, ?, ?, ?)", row)
    with open_platform(old) as platform:
        everything = [model.id for model in platform.models.list()]
        assert [model.id for model in platform.models.list().page(after=gone)] == everything
        assert everything[0] == first
        new = platform.models.create("newest", base_model="tabular-mini")
        assert [model.id for model in platform.models.list().page(after=everything[-1])] == [new.id]


def test_times_are_still_summed_exactly(old: Path) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    with open_platform(old) as platform:
        rows = list(platform.usage.list())
        middle = sorted(row.created_at for row in rows)[len(rows) // 2]
        for since, until in ((None, middle), (middle, None), (noon, middle)):
            expected = [
                row
                for row in rows
                if (since or row.created_at) <= row.created_at < (until or middle.max.replace(tzinfo=UTC))
            ]
            found = platform.usage.total(since=since, until=until)
            assert sum(total.requests for total in found) == len(expected)


def test_the_queue_and_the_ledger_share_the_order_with_their_parts(old: Path) -> None:
    with closing(SqliteStore(old, RECORDS)) as store:
        for cls in (Job, Model, LedgerEntry):
            whole = store.read(lambda s, cls=cls: s.page(cls, "all", limit=1000))  # type: ignore[misc]
            part = store.read(lambda s, cls=cls: s.page(cls, "by_entity", "local", limit=1000))  # type: ignore[misc]
            assert part == [one for one in whole if one.entity == "local"]
            assert [one.seq for one in whole] == sorted({one.seq for one in whole})
