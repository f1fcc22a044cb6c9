"""The schema of a file: what it must be, how it is created, and how an older one is migrated.

What a file has had is on record in it (`modelyard.stores.history`). It gets the changes that it lacks, in their order,
and then the declared tables that it never had. Check and change are one transaction, so that two processes may open
one file at the same moment.
"""

import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from importlib import import_module
from typing import Any

from modelyard.domain.record import KEY, Record
from modelyard.errors import StoreCorrupt
from modelyard.stores.history import (
    MIGRATIONS,
    TABLES,
    TableHistory,
    first_names,
    lost_tables,
    refuse_other_columns,
    unknown_changes,
)
from modelyard.stores.sqlite.appearance import SEQUENCES, create_sequences
from modelyard.stores.sqlite.connection import fetch_value
from modelyard.stores.sqlite.migrations import Migration
from modelyard.stores.sqlite.newest_fast import Database, create_newest, indexed_table, tables_of
from modelyard.stores.sqlite.rows import StatementPlan
from modelyard.stores.table_changes import Dialect, SchemaChange, sql_literal

APPLICATION_ID = 0x4D594152
"""The mark of our files: "MYAR"."""

Change = SchemaChange | Migration

_COLUMNS = """
    SELECT tables.name, columns.name FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns
    WHERE tables.type = 'table'
"""
_SQL_TYPES: Mapping[type, str] = {
    **dict.fromkeys((str, datetime), "TEXT"),
    **dict.fromkeys((int, bool), "INTEGER"),
    float: "REAL",
    bytes: "BLOB",
}
_PYTHON_TYPES: Mapping[str, type] = {"TEXT": str, "INTEGER": int, "REAL": float, "BLOB": bytes}


def all_changes(changes: Iterable[SchemaChange], migrations: Iterable[Migration]) -> list[Change]:
    """Return the changes of all stores with those of SQLite: the core's by their numbers, then those of parts."""
    return sorted([*migrations, *changes], key=lambda change: (1, "") if "/" in change.name else (0, change.name))


def refuse_unfit(connection: Any, changes: Sequence[Change]) -> None:
    """Raise unless this file is empty, or ours and not newer than this version. Changes nothing.

    It reads what describes the file, and none of its records: a damaged page is found where it is read, and by
    `verify`. Raises `StoreCorrupt` or `StoreTooNew`.
    """
    if _is_empty(connection):
        return
    if fetch_value(connection, "PRAGMA application_id") != APPLICATION_ID:
        raise StoreCorrupt("the file is a database of another application")
    unknown_changes(_names(connection), changes)


def verify(connection: Any) -> None:
    """Read the whole file. Raises `StoreCorrupt`."""
    verdict = fetch_value(connection, "PRAGMA integrity_check(1)")
    if verdict != "ok":
        raise StoreCorrupt(f"the file is damaged: {verdict.splitlines()[-1]}; restore a backup")


class _NoFrames:
    """Hides the libraries of data frames, which take longer to load than a file to open, from the imports of one
    thread."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in ("pandas", "numpy") and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(name)


def _sqlite_utils() -> Any:
    hiding: Any = _NoFrames()
    sys.meta_path.insert(0, hiding)
    try:
        return import_module("sqlite_utils")
    finally:
        sys.meta_path.remove(hiding)


def migrate(connection: Any, plans: Iterable[StatementPlan], changes: Sequence[Change]) -> None:
    """Give the file the declared schema, within a write transaction. Raises as `refuse_unfit` does."""
    database = _sqlite_utils().Database(connection, execute_plugins=False, recursive_triggers=False)
    plans, new = [*plans], _is_empty(connection)
    if new:
        _create(database)
    history = _history(connection, plans)
    views = {plan.record.table: plan.view for plan in plans if plan.view}
    for view in database.views:
        if view.name in views:  # it belongs to this version, not to the file
            view.drop()
    lacking = history.lacking(changes, _records(plans))
    if not new:
        _apply(database, lacking, plans, history)
    _create_tables(database, plans)
    done = (first_names(changes) if new else []) + [change.name for change in lacking]
    _record(connection, done, history.tables | {plan.record.table for plan in plans})
    connection.execute(set_version(changes))
    _refuse_other_columns(connection, plans, changes)
    for sql in views.values():
        connection.execute(sql)


def _apply(
    database: Database, changes: Iterable[Change], plans: Sequence[StatementPlan], history: TableHistory
) -> None:
    """Run changes on the tables that the file had before."""
    dialect, records = _dialect(database.conn, plans), _records(plans)
    for change in changes:
        if isinstance(change, Migration):
            change.apply(database)
            continue
        for sql in change.sql(records, history.tables, dialect):
            database.conn.execute(sql)


def _records(plans: Iterable[StatementPlan]) -> Mapping[type, Record]:
    return {plan.record.cls: plan.record for plan in plans}


def up_to_date(connection: Any, plans: Iterable[StatementPlan], changes: Sequence[Change]) -> bool:
    """Return whether the file already has the declared schema, so that opening it need not write.

    Raises as `migrate` does.
    """
    if _is_empty(connection):
        return False
    plans = [*plans]
    history = _history(connection, plans)
    views = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'")}
    if (
        history.lacking(changes, _records(plans))
        or any(plan.record.table not in history.tables for plan in plans)
        or any(plan.view and plan.record.table not in views for plan in plans)
    ):
        return False
    _refuse_other_columns(connection, plans, changes)
    return True


def other_tables(connection: Any, plans: Iterable[StatementPlan]) -> list[str]:
    """Return the names of tables with records that are not declared."""
    plans = [*plans]
    others = _history(connection, plans).tables - {plan.record.table for plan in plans}
    there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
    return [
        name
        for name in sorted(others & there)
        if fetch_value(connection, f'SELECT EXISTS (SELECT 1 FROM "{name}")')  # noqa: S608 - a table's own name
    ]


def is_bare(connection: Any) -> bool:
    """Return whether a file has no record of any kind."""
    return _is_empty(connection) or not other_tables(connection, ())


def set_version(changes: Sequence[Change]) -> str:
    """Return the statement that sets the schema's version; repeated, it writes a page and changes nothing."""
    return f"PRAGMA user_version={1 + len(changes)}"


def _is_empty(connection: Any) -> bool:
    marks = [fetch_value(connection, sql) for sql in ("PRAGMA application_id", "SELECT count(*) FROM sqlite_master")]
    return marks == [0, 0]


def _tables(connection: Any) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _names(connection: Any) -> list[str]:
    if MIGRATIONS not in _tables(connection):
        raise lost_tables([MIGRATIONS])
    return [name for (name,) in connection.execute(f'SELECT name FROM "{MIGRATIONS}"')]  # noqa: S608 - a name of ours


def _history(connection: Any, plans: Iterable[StatementPlan]) -> TableHistory:
    """Read what the file has had. Raises `StoreCorrupt` for a table that is lost."""
    plans, names, tables = [*plans], _names(connection), _tables(connection)
    groups = [tables_of(plan.record) for plan in plans]
    needed = {table for group in groups if not tables.isdisjoint(group) for table in group}
    needed |= {SEQUENCES} if "0008_order_of_appearance" in names else set()
    if lost := needed - tables:
        raise lost_tables(sorted(lost))
    made = [name for (name,) in connection.execute(f'SELECT name FROM "{TABLES}"')] if TABLES in tables else None  # noqa: S608
    there = tables | {name.removesuffix("_indexed") for name in tables}
    return TableHistory.of(names, made, there, [plan.record for plan in plans])


def _record(connection: Any, names: Iterable[str], tables: Iterable[str]) -> None:
    """Put on record which changes and tables the file has had."""
    connection.executemany(f'INSERT INTO "{MIGRATIONS}" (name) VALUES (?)', [(name,) for name in names])  # noqa: S608 - ours
    connection.execute(f'CREATE TABLE IF NOT EXISTS "{TABLES}" (name TEXT PRIMARY KEY NOT NULL) STRICT, WITHOUT ROWID')
    connection.executemany(
        f'INSERT OR IGNORE INTO "{TABLES}" VALUES (?)',  # noqa: S608 - a name of ours
        [(table,) for table in sorted(tables)],
    )


def _create(database: Database) -> None:
    database.conn.execute(f"PRAGMA application_id={APPLICATION_ID}")
    database.create_table(MIGRATIONS, {"number": int, "name": str}, pk="number", not_null={"name"}, strict=True)
    create_sequences(database)


def _create_tables(database: Database, plans: Iterable[StatementPlan]) -> None:
    """Create the declared tables that are not there, from their classes as they are now."""
    there = set(database.table_names())
    for plan in plans:
        if indexed_table(plan.record) in there:
            continue
        if plan not in _CREATED:
            _create_table(database, plan)
            _CREATED[plan] = _statements(database.conn, tables_of(plan.record))
            continue
        for sql in _CREATED[plan]:
            database.conn.execute(sql)


_CREATED: dict[StatementPlan, Sequence[str]] = {}
"""The statements that create the tables of a class and their indexes, which take longer to write than to execute."""


def _statements(connection: Any, tables: Sequence[str]) -> Sequence[str]:
    kept = "SELECT sql FROM sqlite_master WHERE tbl_name IN (?, ?) AND sql IS NOT NULL ORDER BY rowid"
    return [sql for (sql,) in connection.execute(kept, (tables[0], tables[-1]))]


def _create_table(database: Database, plan: StatementPlan) -> None:
    record = plan.record
    sequence = (record.sequence,) if record.sequence else ()
    key = sequence or record.key
    types = {column.name: _PYTHON_TYPES[column.kind.sql] for column in plan.columns}
    not_null = {column.name for column in plan.columns if not column.nullable} - {*sequence}
    table = database.create_table(
        indexed_table(record), types, pk=key if len(key) > 1 else key[0], not_null=not_null, strict=True
    )
    unique = {KEY: record.key, **record.unique} if sequence else record.unique
    for name, columns in unique.items():
        table.create_index(columns, f"{record.table}_unique_{name}", unique=True)
    ordered = {key, *(columns + sequence for columns in unique.values())}  # an index ends with the integer key
    for name, index in record.indexes.items():
        columns = index.where + record.order_of(name)
        if not any(other[: len(columns)] == columns for other in ordered):
            ordered.add(columns)
            if columns[-1:] == sequence and not index.also:
                columns = columns[:-1]
            table.create_index(columns + index.also, f"{record.table}_by_{name.removeprefix('by_')}")
    if record.gathered:
        of_total = plan.totals.columns if plan.totals else {}
        create_newest(database, record.table, {name: column.kind.sql for name, column in of_total.items()})


def _dialect(connection: Any, plans: Iterable[StatementPlan]) -> Dialect:
    """Return how this file is changed."""

    def lacking(record: Record, column: str) -> list[str]:
        """Return the tables of the class, and that of newest records which have what only their total has."""
        of_total = [
            tables_of(plan.record)[0]
            for plan in plans
            if plan.gathered and plan.totals and plan.totals.sums.cls is record.cls and column in plan.totals.columns
        ]
        found = _columns(connection)
        return [table for table in (*tables_of(record), *of_total) if column not in found[table]]

    return Dialect(
        _SQL_TYPES,
        name='"{}"'.format,
        literal=lambda value: sql_literal(int(value) if isinstance(value, bool) else value),
        tables=tables_of,
        lacking=lacking,
        implied=True,
    )


def _columns(connection: Any) -> Mapping[str, AbstractSet[str]]:
    """Return the names of the columns of each table."""
    found = defaultdict[str, set[str]](set)
    for table, column in connection.execute(_COLUMNS):
        found[table].add(column)
    return found


def _refuse_other_columns(connection: Any, plans: Iterable[StatementPlan], changes: Sequence[Change]) -> None:
    declared = {table: columns for plan in plans for table, columns in plan.tables.items()}
    refuse_other_columns(_columns(connection), declared, unknown_changes(_names(connection), changes))
