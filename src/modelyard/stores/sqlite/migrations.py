"""The schema of a file: what it must be, how it is created, and how an older one is migrated.

A new file gets the declared tables at once. An older one runs the migrations it lacks, in order; the list only grows.
Check and change are one transaction, so that two processes may open one file at the same moment.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from operator import attrgetter
from typing import Any

import attrs

from modelyard.domain.record import KEY
from modelyard.errors import StoreCorrupt, StoreTooNew
from modelyard.stores.schema_changes import CHANGES
from modelyard.stores.sqlite.appearance import create_sequences, number_records
from modelyard.stores.sqlite.connection import fetch_value
from modelyard.stores.sqlite.newest import (
    Database,
    create_newest,
    indexed_table,
    keep_newest_of_ledger,
    sum_newest_of_ledger,
)
from modelyard.stores.sqlite.rows import StatementPlan
from modelyard.stores.table_changes import INITIAL, Dialect, SchemaChange, sql_literal

APPLICATION_ID = 0x4D594152
"""The mark of our files: "MYAR"."""

_COLUMNS = """
    SELECT tables.name, columns.name FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns
    WHERE tables.type = 'table'
"""

_PYTHON_TYPES: Mapping[str, type] = {"TEXT": str, "INTEGER": int, "REAL": float, "BLOB": bytes}


@attrs.frozen
class Migration:
    """A named change that brings a file from the version before it to its own: `apply(database)`.

    It runs inside a transaction and must not begin, commit or roll back.
    """

    name: str
    apply: Callable[[Database], None]


def _rows_of_scores(database: Database) -> None:
    """Add the row and the trial of their prediction to scores, and an index in that order."""
    if not database["scores"].exists():
        return  # a store for other records
    scores = database.table("scores")
    scores.add_column("row_digest", str, not_null_default="")
    scores.add_column("trial", int, not_null_default=0)
    database.conn.execute(
        'UPDATE "scores" SET ("row_digest", "trial") = (p."row_digest", p."trial")'
        ' FROM "predictions" AS p WHERE p."id" = "scores"."prediction_id"'
    )
    scores.drop_index("scores_by_prediction")
    for table in ("predictions", "scores"):  # their index by project also serves an entity
        database.table(table).drop_index(f"{table}_by_entity")
    scores.create_index(["run_id", "row_digest", "trial", "prediction_id", "id"], "scores_by_row")


def _values_by_row(database: Database) -> None:
    """Extend the indexes by row by the columns that comparing two runs reads."""
    also = {
        "predictions": ["run_id", "row_digest", "trial", "id", "error"],
        "scores": ["run_id", "row_digest", "trial", "prediction_id", "id", "created_at", "scorer", "value", "error"],
    }
    for table, columns in also.items():
        if database[table].exists():
            database.table(table).drop_index(f"{table}_by_row")
            database.table(table).create_index(columns, f"{table}_by_row")


def _needs_of_jobs(database: Database) -> None:
    """Add what jobs need of their worker, and what workers decline."""
    if not database["jobs"].exists():
        return
    jobs = database.table("jobs")
    jobs.add_column("base_model", str, not_null_default="")
    database.conn.execute(
        'UPDATE "jobs" SET "base_model" = "models"."base_model" FROM "models" WHERE "models"."id" = "jobs"."lane"'
    )
    jobs.create_index(["place", "kind", "base_model", "created_at", "id"], "jobs_by_needs")
    database.table("workers").add_column("declines", str, not_null_default="[]")


def _owners_and_rates(database: Database) -> None:
    """Let admissions name the process that owns them, and keep rates in the store's time.

    No process of before is known by name, so what was reserved is released. Every rate begins with a full bucket: what
    was left of it was counted by the monotonic clock of one machine.
    """
    if not database["admissions"].exists():
        return  # a store for other records
    database.conn.execute('DELETE FROM "admissions"')
    database.conn.execute("""UPDATE "budgets" SET "reserved" = '0'""")
    database.table("admissions").add_column("owner", str, not_null_default="")
    database.table("rate_windows").drop()
    rates = {"key_id": str, "arrival": float}
    database.create_table("rate_limits", rates, pk="key_id", not_null=rates, strict=True)
    processes = {"id": str, "machine": str, "process": str, "beat": int, "beat_at": float, "silent_at": float}
    known = set(processes) - {"silent_at"}
    database.create_table("processes", processes, pk="id", not_null=known, strict=True)


def _losses_of_jobs(database: Database) -> None:
    """Add which process runs a job, and which of its losses are its own."""
    if not database["job_progress"].exists():
        return
    progress = database.table("job_progress")
    for name, kind, default in (
        ("process", str, ""),
        ("alone", int, 0),
        ("gain", str, "nothing"),
        ("suspect", int, 0),
        ("losses", int, 0),
        ("faults", int, 0),
    ):
        progress.add_column(name, kind, not_null_default=default)
    database.table("workers").add_column("process", str, not_null_default="")


def _loose_artifacts(database: Database) -> None:
    """Let running jobs name the artifacts that no other record names yet."""
    if database["job_progress"].exists():
        database.table("job_progress").add_column("loose", str, not_null_default="")


def _trained_tokens(database: Database) -> None:
    """Add the price of training, and the tokens that were trained on."""
    if not database["ledger"].exists():
        return
    database.table("catalogue_entries").add_column("price_training", str, not_null_default="0")
    for table in ("ledger", "usage_totals"):
        database.table(table).add_column("trained_tokens", int, not_null_default=0)


_SQLITE = Dialect(
    {str: "TEXT", int: "INTEGER", bool: "INTEGER", float: "REAL", bytes: "BLOB", datetime: "TEXT"},
    name='"{}"'.format,
    literal=lambda value: sql_literal(int(value) if isinstance(value, bool) else value),
    implied="seq",
)


def of_change(change: SchemaChange) -> Migration:
    """Return the migration of a change that all stores share."""

    def apply(database: Database) -> None:
        if database[change.of].exists():
            for sql in change.sql(_SQLITE):
                database.conn.execute(sql)

    return Migration(change.name, apply)


MIGRATIONS: tuple[Migration, ...] = (
    Migration("0002_rows_of_scores", _rows_of_scores),
    Migration("0003_values_by_row", _values_by_row),
    Migration("0004_needs_of_jobs", _needs_of_jobs),
    Migration("0005_owners_and_rates", _owners_and_rates),
    Migration("0006_losses_of_jobs", _losses_of_jobs),
    Migration("0007_loose_artifacts", _loose_artifacts),
    Migration("0008_order_of_appearance", number_records),
    Migration("0009_trained_tokens", _trained_tokens),
    *sorted(
        [
            *map(of_change, CHANGES),
            Migration("0036_newest_of_the_ledger", keep_newest_of_ledger),
            Migration("0037_sums_of_the_newest", sum_newest_of_ledger),
        ],
        key=attrgetter("name"),
    ),
)
"""Every change since `INITIAL`, oldest first."""


def refuse_unfit(connection: Any, migrations: Sequence[Migration]) -> None:
    """Raise unless this file is empty, or ours, intact and not newer than this version. Changes nothing.

    Raises `StoreCorrupt` or `StoreTooNew`.
    """
    if _is_empty(connection):
        return
    if fetch_value(connection, "PRAGMA application_id") != APPLICATION_ID:
        raise StoreCorrupt("the file is a database of another application")
    _missing(_applied(connection), migrations)
    verdict = fetch_value(connection, "PRAGMA quick_check(1)")
    if verdict != "ok":
        raise StoreCorrupt(f"the file is damaged: {verdict}; restore a backup")


def migrate(connection: Any, plans: Iterable[StatementPlan], migrations: Sequence[Migration]) -> None:
    """Give the file the declared schema, within a write transaction. Raises as `refuse_unfit` does."""
    database = import_module("sqlite_utils").Database(connection, execute_plugins=False, recursive_triggers=False)
    views = {plan.record.table: plan.view for plan in plans if plan.view}
    for view in database.views:
        if view.name in views:  # it belongs to this version, not to the file
            view.drop()
    if _is_empty(connection):
        _create(database, plans)
        done = [INITIAL, *(migration.name for migration in migrations)]
    else:
        missing = _missing(_applied(connection), migrations)
        for migration in missing:
            migration.apply(database)
        done = [migration.name for migration in missing]
    connection.executemany('INSERT INTO "modelyard_migrations" (name) VALUES (?)', [(name,) for name in done])
    connection.execute(set_version(migrations))
    _refuse_other_columns(connection, plans)
    for sql in views.values():
        connection.execute(sql)


def up_to_date(connection: Any, plans: Iterable[StatementPlan], migrations: Sequence[Migration]) -> bool:
    """Return whether the file already has the declared schema, so that opening it need not write.

    Raises as `migrate` does.
    """
    if _is_empty(connection) or _missing(_applied(connection), migrations):
        return False
    _refuse_other_columns(connection, plans)
    return True


def set_version(migrations: Sequence[Migration]) -> str:
    """Return the statement that sets the schema's version; repeated, it writes a page and changes nothing."""
    return f"PRAGMA user_version={1 + len(migrations)}"


def _is_empty(connection: Any) -> bool:
    marks = [fetch_value(connection, sql) for sql in ("PRAGMA application_id", "SELECT count(*) FROM sqlite_master")]
    return marks == [0, 0]


def _applied(connection: Any) -> list[str]:
    return [name for (name,) in connection.execute('SELECT name FROM "modelyard_migrations" ORDER BY number')]


def _missing(applied: Sequence[str], migrations: Sequence[Migration]) -> Sequence[Migration]:
    """Return the migrations that a file with these `applied` lacks. Raises `StoreTooNew`."""
    known = [INITIAL, *(migration.name for migration in migrations)]
    if list(applied) != known[: len(applied)]:
        unknown = [name for name in applied if name not in known]
        raise StoreTooNew(f"the file has migrations that this version does not know: {unknown}")
    return migrations[len(applied) - 1 :]


def _create(database: Database, plans: Iterable[StatementPlan]) -> None:
    database.conn.execute(f"PRAGMA application_id={APPLICATION_ID}")
    database.create_table(
        "modelyard_migrations", {"number": int, "name": str}, pk="number", not_null={"name"}, strict=True
    )
    create_sequences(database)
    for plan in plans:
        _create_table(database, plan)


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


def _refuse_other_columns(connection: Any, plans: Iterable[StatementPlan]) -> None:
    """Raise `StoreCorrupt` if a table does not have the declared columns, as after a forgotten migration."""
    kept = defaultdict[str, set[str]](set)
    for table, column in connection.execute(_COLUMNS):
        kept[table].add(column)
    for plan in plans:
        for table, columns in plan.tables.items():
            differing = kept[table] ^ columns
            if differing:
                raise StoreCorrupt(f"the table {table} differs in its columns {sorted(differing)}")
