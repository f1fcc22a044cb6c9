"""The newest records of a class that are kept apart: each index that a commit changes is a page to write.

A class whose records are `gathered` (`modelyard.domain.record.Record`) has two tables. The newest records lie in one
that has no index; from time to time all of them are moved at once into the other, which has every index. A view that
has the name of the class's table shows both, so statements that read need not know. A record in the first table has a
greater number than each one in the second.
"""

# ruff: noqa: S608 - the names come from declarations, and every value is bound

from collections.abc import Sequence

from sqlite_utils import Database

from modelyard.domain.record import Record

AT_ONCE = 32
"""A record whose number is a multiple of this has the newest ones moved."""


def indexed_table(record: Record) -> str:
    """Return the name of the table that has the indexes of a class."""
    return f"{record.table}_indexed" if record.gathered else record.table


def tables_of(record: Record) -> Sequence[str]:
    """Return the names of the tables that hold the records of a class, that of the greatest numbers first."""
    return (f"{record.table}_newest", indexed_table(record)) if record.gathered else (record.table,)


def insertion(record: Record, names: Sequence[str], next_number: str) -> str:
    """Return the statement that adds a record to the newest ones, unless there is one with its key."""
    given = ", ".join(f'? AS "{name}"' for name in names if name != record.sequence)
    same = " AND ".join(f'"{name}" = given."{name}"' for name in record.key)
    taken = (f'EXISTS (SELECT 1 FROM "{table}" WHERE {same})' for table in tables_of(record))
    return (
        f'INSERT INTO "{record.table}_newest" ({_listed(names)}) SELECT given.*, {next_number}'
        f" FROM (SELECT {given}) AS given WHERE NOT ({' OR '.join(taken)})"
    )


def moving(record: Record, names: Sequence[str]) -> Sequence[str]:
    """Return the statements that move the newest records to the others; none for a class that has one table."""
    if not record.gathered:
        return ()
    newest, indexed = tables_of(record)
    columns = _listed(names)
    return (
        f'INSERT INTO "{indexed}" ({columns}) SELECT {columns} FROM "{newest}"',
        f'DELETE FROM "{newest}"',
    )


def create_newest(database: Database, table: str) -> None:
    """Create the table of the newest records beside the one that has the indexes, and the view of both."""
    columns = database.table(f"{table}_indexed").columns
    types = {column.name: column.type for column in columns}
    key = next(column.name for column in columns if column.is_pk)
    not_null = {column.name for column in columns if column.notnull}
    database.create_table(f"{table}_newest", types, pk=key, not_null=not_null, strict=True)
    names = _listed([*types])
    both = " UNION ALL ".join(f'SELECT {names} FROM "{table}_{part}"' for part in ("indexed", "newest"))
    database.conn.execute(f'CREATE VIEW "{table}" AS {both}')


def keep_newest_of_ledger(database: Database) -> None:
    """Keep the newest rows of the ledger of an older file apart."""
    if database["ledger"].exists():
        database.conn.execute('ALTER TABLE "ledger" RENAME TO "ledger_indexed"')
        create_newest(database, "ledger")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
