"""The order of appearance in a file: an integer key that only grows, and the migration that introduced it.

The number of a record is the integer key of its table, so the order costs no index of its own, and every other index
ends with it. Only one transaction writes at a time, so numbers are committed in their order.
"""

# ruff: noqa: S608 - the names come from declarations, and every value is bound

from collections.abc import Mapping, Sequence

from modelyard.domain.record import Record
from modelyard.stores.sqlite.newest_fast import Database, indexed_table, tables_of

SEQUENCES = "modelyard_sequences"
"""The table that holds the `last` number of each sequence whose newest record was removed."""

KEEP_LAST = (
    f'INSERT INTO "{SEQUENCES}" ("name", "last") VALUES (?, ?)'
    ' ON CONFLICT ("name") DO UPDATE SET "last" = max("last", excluded."last")'
)
"""The statement that keeps the numbers of a table up to a bound one from being used again."""

_SETTINGS = ":settings"
COUNT_SETTINGS = (
    f"""INSERT INTO "{SEQUENCES}" ("name", "last") VALUES ('{_SETTINGS}', 1)"""
    ' ON CONFLICT ("name") DO UPDATE SET "last" = "last" + 1'
)
"""The statement that counts a change of a setting (`Record.settings`)."""

SETTINGS_VERSION = f"""SELECT max("last") FROM "{SEQUENCES}" WHERE "name" = '{_SETTINGS}'"""
"""The statement that reads how many changes of settings there were, or None."""


def next_number(record: Record) -> str:
    """Return the expression for the number of the next record to appear.

    Each of the newest records has a greater number than all others, also than one that was removed.
    """
    removed = f"""(SELECT "last" FROM "{SEQUENCES}" WHERE "name" = '{record.table}')"""
    *newest, others = [f'(SELECT max("{record.sequence}") FROM "{table}")' for table in tables_of(record)]
    last = f"max(coalesce({others}, 0), coalesce({removed}, 0))"
    return f"1 + coalesce({newest[0]}, {last})" if newest else f"1 + {last}"


def retire_number(record: Record, condition: str) -> str:
    """Return the statement that keeps the number of a record from being used again, if it is the newest of its table.

    `condition` finds the record.
    """
    table, sequence = indexed_table(record), record.sequence
    return (
        f"""INSERT INTO "{SEQUENCES}" ("name", "last") SELECT '{record.table}', "{sequence}" FROM "{table}\""""
        f' WHERE {condition} AND "{sequence}" = (SELECT max("{sequence}") FROM "{table}")'
        ' ON CONFLICT ("name") DO UPDATE SET "last" = excluded."last"'
    )


def create_sequences(database: Database) -> None:
    """Create the table of the last numbers of sequences."""
    columns = {"name": str, "last": int}
    database.create_table(SEQUENCES, columns, pk="name", not_null={"last"}, strict=True, if_not_exists=True)


# ---- the migration -------------------------------------------------------------------------------------------------

_INDEXES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "ledger": {"by_entity": ["entity"], "by_time": ["entity", "created_at"]},
    "stored_completions": {"by_entity": ["entity"], "by_project": ["entity", "project"]},
    "models": {"by_entity": ["entity"], "by_project": ["entity", "project"]},
    "trajectory_logs": {"by_model": ["model_id"], "by_split": ["model_id", "split"], "by_entity": ["entity"]},
    "jobs": {
        "by_place": ["place"],
        "by_needs": ["place", "kind", "base_model"],
        "by_lane": ["lane", "place"],
        "by_of_lane": ["lane"],
        "by_entity": ["entity"],
        "by_project": ["entity", "project"],
        "by_status": ["entity", "status"],
        "by_fingerprint": ["fingerprint"],
    },
    "api_keys": {"by_entity": ["entity"], "by_all": []},
    "evaluation_runs": {
        "by_entity": ["entity"],
        "by_project": ["entity", "project"],
        "by_source": ["source_evaluation_run_id"],
        "by_model": ["model"],
    },
    "predictions": {
        "by_project": ["entity", "project"],
        "by_run": ["run_id"],
        "by_open_first": ["run_id", "finished_at"],
    },
    "scores": {
        "by_project": ["entity", "project"],
        "by_run": ["run_id"],
        "by_row": ["run_id", "row_digest", "trial", "prediction_id", "id", "scorer", "value", "error"],
    },
    "object_versions": {
        "by_object": [],
        "by_digest": ["entity", "project", "kind", "object_id", "digest", "index"],
        "by_kind": ["entity", "project", "kind"],
        "by_entity": ["entity"],
        "by_table": ["entity", "project", "table_digest"],
    },
}
"""The indexes that were sorted by time or id, and what they hold now. One that holds nothing is served by another."""

_STARTED = frozenset({"predictions", "evaluation_runs"})


def number_records(database: Database) -> None:
    """Give the records of an older file numbers, by their time and id, and sort its listings by them."""
    create_sequences(database)
    for table, indexes in _INDEXES.items():
        if database[table].exists():
            _number(database, table, indexes, "started_at" if table in _STARTED else "created_at")
    if database["tombstones"].exists():
        _number_tombstones(database)


def _number(database: Database, name: str, indexes: Mapping[str, Sequence[str]], time: str) -> None:
    connection, before = database.conn, database.table(name)
    columns = before.columns
    listed = ", ".join(f'"{column.name}"' for column in columns)
    replaced = {f"{name}_{index}" for index in indexes}
    kept = [
        sql
        for index, sql in connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL", [name]
        )
        if index not in replaced
    ]
    connection.execute(f'ALTER TABLE "{name}" RENAME TO "{name}_before"')
    types = {column.name: column.type for column in columns} | {"seq": "INTEGER"}
    not_null = {column.name for column in columns if column.notnull or column.is_pk}
    table = database.create_table(name, types, pk="seq", not_null=not_null, strict=True)
    connection.execute(f'INSERT INTO "{name}" ({listed}) SELECT {listed} FROM "{name}_before" ORDER BY "{time}", "id"')
    connection.execute(f'DROP TABLE "{name}_before"')
    table.create_index(["id"], f"{name}_unique_key", unique=True)
    for sql in kept:
        connection.execute(sql)
    for index, indexed in indexes.items():
        if indexed:
            table.create_index(indexed, f"{name}_{index}")


def _number_tombstones(database: Database) -> None:
    """Give deleted models the number of the last one before them, so that their place in listings stays."""
    database.table("tombstones").add_column("seq", int, not_null_default=0)
    database.conn.execute(
        'UPDATE "tombstones" AS t SET "seq" = coalesce((SELECT max("seq") FROM "models" AS m'
        ' WHERE (m."created_at", m."id") < (t."created_at", t."id")), 0) WHERE t."parent" = \'\''
    )
