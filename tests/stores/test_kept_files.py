"""Files that earlier versions wrote open, hold what they held, and become what a new file is."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kept_files import NEWEST, Rows, contents_of, rows_of, schema, unpack
from modelyard import open_platform
from modelyard.errors import StoreCorrupt
from modelyard.stores import RECORDS, SqliteStore

pytestmark = pytest.mark.parts

CHANGED: Mapping[str, Mapping[str, Any]] = {
    NEWEST: {},
    "yard-ebcc80f": {"admissions": [], "rate_windows": None},  # 0005: no process of before is known by name
}
"""The tables whose rows were changed on purpose, and what they hold now."""


@pytest.fixture(params=CHANGED)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def as_it_was(now: Rows, then: Rows) -> Rows:
    """What a store holds, of those tables and columns only that it had then."""
    return {
        table: [{column: row[column] for column in rows[0]} for row in now[table]] if rows else now[table]
        for table, rows in then.items()
    }


def in_order(rows: Rows) -> Mapping[str, list[str]]:
    """The rows of each table by their text, with numbers for true and false, as SQLite stores them."""
    return {
        table: sorted(str([int(value) if value in (0, 1) else value for value in row.values()]) for row in found)
        for table, found in rows.items()
    }


def test_it_holds_what_it_held(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path)
    expected = {**contents_of(name), **CHANGED[name]}
    kept = {table: rows for table, rows in expected.items() if rows is not None}
    for _ in range(2):
        with closing(SqliteStore(path, RECORDS)) as store:
            assert in_order(as_it_was(rows_of(store, RECORDS), kept)) == in_order(kept)
            assert store.other_tables() == []


def test_it_gets_the_tables_of_a_new_file(name: str, tmp_path: Path) -> None:
    path = unpack(name, tmp_path)
    SqliteStore(path, RECORDS).close()
    SqliteStore(tmp_path / "new.db", RECORDS).close()
    assert schema(path) == schema(tmp_path / "new.db")


def test_a_platform_continues(name: str, tmp_path: Path) -> None:
    with open_platform(unpack(name, tmp_path)) as platform:
        assert platform.chat.complete(model="echo", messages="hello").text == "hello"
        (total,) = platform.usage.total()
        assert total.requests == 36
        assert [job.status for job in platform.training.list()] == ["queued"]


SINCE: Mapping[str, frozenset[str]] = {
    NEWEST: frozenset({"processes", "rate_limits"}),  # made when they are missing, as in files from before they were
    "yard-ebcc80f": frozenset({"rate_windows"}),  # 0005 drops it
}
"""The tables that a file may lack."""


def test_a_file_that_has_lost_a_table_is_corrupt(name: str, tmp_path: Path) -> None:
    for table in sorted(tables_of(unpack(name, tmp_path)) - SINCE[name]):
        path = unpack(name, tmp_path)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f'DROP TABLE "{table}"')
        with pytest.raises(StoreCorrupt, match=r"has lost the tables .*restore a backup"):
            SqliteStore(path, RECORDS)


def tables_of(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        return {name for (name,) in found}
