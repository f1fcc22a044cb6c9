"""Keep the newest rows of the ledger apart: without it, a completion over HTTP takes 29 % more instructions.

Each index that a commit changes is a page to write.

A class whose records are `gathered` (`modelyard.domain.record.Record`) has two tables. The newest records lie in one
that has no index; from time to time all of them are moved at once into the other, which has every index. A view that
has the name of the class's table shows both, so statements that read need not know. A record in the first table has a
greater number than each one in the second.
"""

# ruff: noqa: S608 - the names come from declarations, and every value is bound

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from modelyard.domain.record import EMPTY, Record
from modelyard.stores.sqlite.totals_fast import TotalsOf, listed

if TYPE_CHECKING:
    from sqlite_utils import Database as Database
else:
    Database = Any  # only a change of a file's schema loads it

AT_ONCE = 32
"""A record whose number is a multiple of this has the newest ones moved."""


def indexed_table(record: Record) -> str:
    """Return the name of the table that has the indexes of a class."""
    return f"{record.table}_indexed" if record.gathered or record.sums else record.table


def tables_of(record: Record) -> Sequence[str]:
    """Return the names of the tables that hold the records of a class, that of the greatest numbers first."""
    return (f"{record.table}_newest", indexed_table(record)) if record.gathered else (indexed_table(record),)


def insertion(record: Record, names: Sequence[str], next_number: str) -> str:
    """Return the statement that adds a record to the newest ones, unless there is one with its key.

    `names` are those of the columns, that of the number last. The statement binds the key twice, and then the values.
    Where the key is taken, the first column is given no value: it must have one, so that the record is left out. A
    query with that condition would read the table to which it adds, which SQLite then copies first.
    """
    same = " AND ".join(f'"{name}" = ?' for name in record.key)
    taken = " OR ".join(f'EXISTS (SELECT 1 FROM "{table}" WHERE {same})' for table in tables_of(record))
    values = [f"CASE WHEN {taken} THEN NULL ELSE ? END", *["?"] * (len(names) - 2), next_number]
    return f'INSERT OR IGNORE INTO "{record.table}_newest" ({listed(names)}) VALUES ({", ".join(values)})'


def moving(record: Record, names: Iterable[str], totals: TotalsOf | None) -> Sequence[str]:
    """Return the statements that move the newest records to the others, and add them to their totals.

    A class that has one table has none.
    """
    if not record.gathered:
        return ()
    newest, indexed = tables_of(record)
    columns = listed(names)
    return (
        *([totals.adding()] if totals else []),
        f'INSERT INTO "{indexed}" ({columns}) SELECT {columns} FROM "{newest}"',
        f'DELETE FROM "{newest}"',
    )


def view(record: Record, names: Iterable[str]) -> str:
    """Return the statement that creates the view of all records of a class."""
    newest, indexed = tables_of(record)
    columns = listed(names)
    return (
        f'CREATE VIEW "{record.table}" AS SELECT {columns} FROM "{indexed}" UNION ALL SELECT {columns} FROM "{newest}"'
    )


def create_newest(database: Database, table: str, of_total: Mapping[str, str] = EMPTY) -> None:
    """Create the table of the newest records beside the one that has the indexes.

    `of_total` are the types of the columns that the newest records have for their totals.
    """
    columns = database.table(f"{table}_indexed").columns
    types = {column.name: column.type for column in columns} | dict(of_total)
    key = next(column.name for column in columns if column.is_pk)
    not_null = {column.name for column in columns if column.notnull} | of_total.keys()
    database.create_table(f"{table}_newest", types, pk=key, not_null=not_null, strict=True)


# ---- the migrations ------------------------------------------------------------------------------------------------


def keep_newest_of_ledger(database: Database) -> None:
    """Keep the newest rows of the ledger of an older file apart."""
    if database["ledger"].exists():
        database.conn.execute('ALTER TABLE "ledger" RENAME TO "ledger_indexed"')
        create_newest(database, "ledger")


def sum_newest_of_ledger(database: Database) -> None:
    """Let the totals of an older file, to which every row was added at once, be those of the rows that were moved."""
    if not database["ledger_newest"].exists():
        return
    connection, columns = database.conn, listed(column.name for column in database.table("ledger_newest").columns)
    connection.execute(f'INSERT INTO "ledger_indexed" ({columns}) SELECT {columns} FROM "ledger_newest"')
    connection.execute('DROP TABLE "ledger_newest"')
    create_newest(database, "ledger", {"day": "TEXT", "requests": "INTEGER"})
    connection.execute('ALTER TABLE "usage_totals" RENAME TO "usage_totals_indexed"')
