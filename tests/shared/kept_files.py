"""Files that earlier versions wrote (`tests/stores/fixtures/make_fixture.py`), and what they held."""

import json
import lzma
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from modelyard.domain.record import Record
from modelyard.protocols import Store
from modelyard.stores.sqlite.rows import plans_of

NEWEST = "yard-cfe9d08a"
"""The last one that was written before files recorded which tables were made in them."""

_FIXTURES = Path(__file__).parents[1] / "stores" / "fixtures"
Rows = dict[str, list[dict[str, Any]]]


def unpack(name: str, folder: Path) -> Path:
    """Put a copy of a file into a folder."""
    path = folder / "yard.db"
    path.write_bytes(lzma.decompress((_FIXTURES / f"{name}.db.xz").read_bytes()))
    return path


def contents_of(name: str) -> Rows:
    """What a file held when it was written: the rows of each table, as they are stored, by their first values."""
    rows: Rows = json.loads((_FIXTURES / f"{name}.json").read_text())
    return rows


def records_of(store: Store, record: Record) -> list[Any]:
    """All records of a class, with their numbers, in the order of their keys."""
    return store.read(lambda snapshot: cast(Any, snapshot).scan(record.cls, None, 1000))


def rows_of(store: Store, records: Iterable[Record]) -> Rows:
    """What a store holds, as SQLite stores it, in the order of the keys."""
    plans = plans_of(records)
    return {
        plan.record.table: [
            dict(zip((column.name for column in plan.columns), plan.whole_row.checked(one), strict=True))
            for one in records_of(store, plan.record)
        ]
        for plan in plans.values()
    }


def schema(path: Path) -> Any:
    """Every index with its columns, and every column of each table of records."""
    with closing(sqlite3.connect(path)) as connection:
        parts = connection.execute(
            """SELECT m.name, i.seqno, i.name, '' FROM sqlite_master m, pragma_index_info(m.name) i
               WHERE m.type = 'index'
               UNION ALL
               SELECT m.name, 0, c.name, c.type || c."notnull" FROM sqlite_master m, pragma_table_info(m.name) c
               WHERE m.type = 'table'"""
        )
        return sorted(part for part in parts if not part[0].startswith("modelyard_"))
