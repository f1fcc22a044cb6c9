"""What a change of tables consists of. Each part names a class, and every store renders it in its own SQL.

A store finds the tables of a class itself: it may have several (`stores.sqlite.newest_fast`), and a new column is added
to each of them.

A part applies to a table that the store had before. A table that it never had is made from its class as it is now, with
all columns and indexes, so the parts that name this class are left out. Whatever version a store is of, each of its
tables gets the changes that came after it was made, and `AddTable` needs no columns.
"""

# ruff: noqa: S608 - the names and the expressions come from this module

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

import attrs

from modelyard.domain.record import Record
from modelyard.stores.columns import columns_of

INITIAL = "0001_initial"
"""The name under which the creation of the declared tables is recorded."""


def sql_literal(value: object) -> str:
    """Return a string, a number or a boolean as standard SQL has it."""
    if isinstance(value, str):
        return "'{}'".format(value.replace("'", "''"))
    return repr(value).lower()


def _only_table(record: Record) -> Sequence[str]:
    return (record.table,)


@attrs.frozen
class Dialect:
    """How a store writes SQL: its types, its name for a table or an index, and its literals.

    `tables` returns the tables that hold the records of a class, that with the indexes last. `lacking` returns those to
    which a new column of a class is added. `orders_nulls` is whether an index says where None sorts, as it must where
    that is not first. `implied` is whether every index ends with the sequence without saying so. `by_month` returns
    the statements that partition the table of a class by months; None where a store keeps a table in one piece.
    """

    types: Mapping[type, str]
    name: Callable[[str], str]
    literal: Callable[[object], str]
    tables: Callable[[Record], Sequence[str]] = _only_table
    lacking: Callable[[Record, str], Sequence[str]] = lambda record, column: (record.table,)
    orders_nulls: bool = False
    implied: bool = False
    by_month: Callable[[Record], Iterable[str]] | None = None


@attrs.frozen
class AddTable:
    """Say that this version adds the table of a class.

    A table that a store never had is made anyway. This makes servers of the version before refuse the store, and a
    store that is migrated on request wait for the request.
    """

    of: type

    def sql(self, record: Record, dialect: Dialect) -> Iterator[str]:
        """Yield nothing: the table is there."""
        return iter(())


@attrs.frozen
class AddColumn:
    """Add a column of a type that `Dialect.types` has, with a default as it is stored ("0" of an amount, "{}" of a
    mapping). Without a default it may be None, and is.
    """

    of: type
    column: str
    type: type
    default: object = None

    def sql(self, record: Record, dialect: Dialect) -> Iterator[str]:
        default = "" if self.default is None else f" NOT NULL DEFAULT {dialect.literal(self.default)}"
        for table in dialect.lacking(record, self.column):
            yield f'ALTER TABLE {dialect.name(table)} ADD COLUMN "{self.column}" {dialect.types[self.type]}{default}'


@attrs.frozen
class AddIndex:
    """Add an index over columns, unless it is there. Its name follows that of the table: "by_state", "unique_id"."""

    of: type
    name: str
    columns: Sequence[str]
    unique: bool = False

    def sql(self, record: Record, dialect: Dialect) -> Iterator[str]:
        nullable = {name for name, column in columns_of(record).items() if column.nullable and dialect.orders_nulls}
        columns = [
            f'"{name}"{" NULLS FIRST" if name in nullable else ""}'
            for name in self.columns
            if not (dialect.implied and name == record.sequence)
        ]
        kind, table = "UNIQUE INDEX" if self.unique else "INDEX", dialect.tables(record)[-1]
        name = f'IF NOT EXISTS "{record.table}_{self.name}"'
        if columns:  # else the table is in this order
            yield f"CREATE {kind} {name} ON {dialect.name(table)} ({', '.join(columns)})"


@attrs.frozen
class DropIndex:
    """Drop an index, if it is there, named as `AddIndex` names it."""

    of: type
    name: str

    def sql(self, record: Record, dialect: Dialect) -> Iterator[str]:
        yield f"DROP INDEX IF EXISTS {dialect.name(f'{record.table}_{self.name}')}"


@attrs.frozen
class Fill:
    """Set a column to an expression over the row, in SQL that every store understands."""

    of: type
    column: str
    expression: str

    def sql(self, record: Record, dialect: Dialect) -> Iterator[str]:
        for table in dialect.tables(record):
            yield f'UPDATE {dialect.name(table)} SET "{self.column}" = {self.expression}'


@attrs.frozen
class KeepByMonth:
    """Partition the table of a class by months (`Record.months`), where a store does that (`Dialect.by_month`).

    What is in the table becomes the first partition.
    """

    of: type

    def sql(self, record: Record, dialect: Dialect) -> Iterator[str]:
        return iter(dialect.by_month(record) if dialect.by_month else ())


@attrs.frozen
class SchemaChange:
    """A named change of tables. That of a part of a platform begins with the part's name: "notes/0001_titles".

    All classes that it names are declared together. A store that is opened without them leaves it for later.
    """

    name: str
    parts: Sequence[AddTable | AddColumn | AddIndex | DropIndex | Fill | KeepByMonth]

    @property
    def classes(self) -> frozenset[type]:
        """The classes that it names."""
        return frozenset(part.of for part in self.parts)

    def sql(self, records: Mapping[type, Record], had: Container[str], dialect: Dialect) -> Iterator[str]:
        """Yield the statements for the tables that a store `had`, in their order."""
        for part in self.parts:
            record = records.get(part.of)
            if record is None:
                raise TypeError(f"the change {self.name} names {part.of.__name__}, which is not a declared record")
            if record.table in had:
                yield from part.sql(record, dialect)
