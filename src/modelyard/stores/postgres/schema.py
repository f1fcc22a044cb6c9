"""The schema in the database: how it is created from the declared records, and what it must be.

A schema is migrated only on request (`modelyard migrate`), and a running server refuses one that was migrated under it:
so two versions never write the same tables.
"""

# ruff: noqa: S608 - the names come from declarations, and every value is bound

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from modelyard.errors import StoreCorrupt, StoreError, StoreTooNew
from modelyard.stores.postgres.locks import LOCK, lock_key
from modelyard.stores.postgres.pages import quoted
from modelyard.stores.postgres.rows import RecordPlan
from modelyard.stores.postgres.values import SQL_TYPES, sql_type
from modelyard.stores.schema_changes import CHANGES, INITIAL, Dialect, SchemaChange, sql_literal

COMMITS = "modelyard_commits"
"""The table in which every store numbers its commits, so that it can find out whether one took place."""
MIGRATIONS = "modelyard_migrations"
"""The table of the names of the migrations, in their order."""

_COLUMNS = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = $1"
_EXISTS = "SELECT to_regclass($1) IS NOT NULL"


def open_schema(connection: Any, schema: str, plans: Mapping[type, RecordPlan], migrations: Sequence[str]) -> None:
    """Create the schema if the database has none; else refuse an unfit one.

    Raises `StoreTooNew`, `StoreCorrupt` or `StoreError`.
    """
    with connection.transaction():
        connection.execute(LOCK, (lock_key(schema, "schema"),))
        if not _has_table(connection, schema, MIGRATIONS):
            _create(connection, schema, plans, migrations)
        missing = missing_migrations(connection, schema, migrations)
        if missing:
            raise StoreError(
                f"the schema {schema} lacks the migrations {missing}; stop older servers, then run: modelyard migrate"
            )
        _refuse_other_columns(connection, schema, plans.values())


def migrate_schema(
    connection: Any,
    schema: str,
    plans: Mapping[type, RecordPlan],
    changes: Sequence[SchemaChange] = CHANGES,
) -> list[str]:
    """Run the changes that a schema lacks, while no step runs. Returns their names.

    Raises `StoreTooNew` or `StoreCorrupt`, and then changes nothing.
    """
    dialect = Dialect(SQL_TYPES, lambda name: f'"{schema}"."{name}"', sql_literal, orders_nulls=True)
    names = versions_of(changes)
    with connection.transaction():
        for lock in ("schema", "steps"):
            connection.execute(LOCK, (lock_key(schema, lock),))
        connection.execute(f'SET LOCAL search_path TO "{schema}"')
        missing = missing_migrations(connection, schema, names)
        for change in changes:
            if change.name in missing and _has_table(connection, schema, change.of):
                for sql in change.sql(dialect):
                    connection.execute(sql)
        _record_migrations(connection, schema, missing, len(names) - len(missing))
        _refuse_other_columns(connection, schema, plans.values())
    return missing


def versions_of(changes: Sequence[SchemaChange]) -> list[str]:
    """Return the names that a schema of this version has on record, oldest first."""
    return [INITIAL, *(change.name for change in changes)]


def missing_migrations(connection: Any, schema: str, migrations: Sequence[str]) -> list[str]:
    """Return the names of the migrations that the schema lacks. Raises `StoreTooNew`."""
    rows = connection.execute(f'SELECT name FROM "{schema}"."{MIGRATIONS}" ORDER BY number')
    applied = [name for (name,) in rows]
    if applied != [*migrations[: len(applied)]]:
        unknown = [name for name in applied if name not in migrations]
        raise StoreTooNew(f"the schema {schema} has migrations that this version does not know: {unknown}")
    return [*migrations[len(applied) :]]


def _create(connection: Any, schema: str, plans: Mapping[type, RecordPlan], migrations: Sequence[str]) -> None:
    with connection.pipeline():
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
        connection.execute(f'CREATE TABLE "{schema}"."{MIGRATIONS}" (number bigint PRIMARY KEY, name text NOT NULL)')
        connection.execute(
            f'CREATE TABLE "{schema}"."{COMMITS}"'
            " (writer text PRIMARY KEY, number bigint NOT NULL, at timestamptz NOT NULL) WITH (fillfactor = 50)"
        )
        for plan in plans.values():
            for sql in _definitions(plan):
                connection.execute(sql)
        _record_migrations(connection, schema, migrations, 0)


def _record_migrations(connection: Any, schema: str, names: Sequence[str], last: int) -> None:
    for number, name in enumerate(names, last + 1):
        connection.execute(f'INSERT INTO "{schema}"."{MIGRATIONS}" VALUES ($1, $2)', (number, name))


def _has_table(connection: Any, schema: str, table: str) -> bool:
    found: bool = connection.execute(_EXISTS, (f'"{schema}"."{table}"',)).fetchone()[0]
    return found


def _definitions(plan: RecordPlan) -> Iterator[str]:
    record = plan.record
    columns = [f'"{column.name}" {_type(plan, column)}' for column in plan.columns]
    yield f"CREATE TABLE {plan.table} ({', '.join(columns)}, PRIMARY KEY ({quoted(record.key)}))"
    for name, unique in record.unique.items():
        yield _index(plan, "UNIQUE INDEX", f"{record.table}_unique_{name}", unique)
    ordered = {record.key, *record.unique.values()}
    for name in record.indexes:
        indexed = record.indexes[name].where + record.order_of(name)
        if not any(other[: len(indexed)] == indexed for other in ordered):
            ordered.add(indexed)
            yield _index(plan, "INDEX", f"{record.table}_by_{name.removeprefix('by_')}", indexed)


def _type(plan: RecordPlan, column: Any) -> str:
    if column.name == plan.record.sequence:
        return "bigint GENERATED BY DEFAULT AS IDENTITY"
    return sql_type(column) + ("" if column.nullable else " NOT NULL")


def _index(plan: RecordPlan, kind: str, name: str, columns: Sequence[str]) -> str:
    nullable = {column.name for column in plan.columns if column.nullable}
    listed = ", ".join(f'"{column}"{" NULLS FIRST" if column in nullable else ""}' for column in columns)
    return f'CREATE {kind} "{name}" ON {plan.table} ({listed})'


def _refuse_other_columns(connection: Any, schema: str, plans: Iterable[RecordPlan]) -> None:
    """Raise `StoreCorrupt` if a table does not have the declared columns, as after a forgotten migration."""
    kept = defaultdict[str, set[str]](set)
    for table, column in connection.execute(_COLUMNS, (schema,)):
        kept[table].add(column)
    for plan in plans:
        differing = kept[plan.record.table] ^ {column.name for column in plan.columns}
        if differing:
            raise StoreCorrupt(f"the table {plan.table} differs in its columns {sorted(differing)}")
