"""What a change of tables consists of: its parts, which every store that keeps tables renders in its own SQL."""


# ruff: noqa: S608 - the names and the expressions come from this module

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs

INITIAL = "0001_initial"
"""The name under which the creation of the declared tables is recorded."""


def sql_literal(value: object) -> str:
    """Return a string, a number or a boolean as standard SQL has it."""
    if isinstance(value, str):
        return "'{}'".format(value.replace("'", "''"))
    return repr(value).lower()


@attrs.frozen
class Dialect:
    """How a store writes SQL: its types, its name for a table or an index, and its literals.

    `orders_nulls` is whether an index says where None sorts, as it must where that is not first. `implied` is the
    column with which every index ends without saying so: the sequence, where it is a table's own key. `sequence` is the
    type of a sequence. `by_month` returns the statements that partition a table, from its name, the column, the key and
    the sequence; None where a store keeps a table in one piece.
    """

    types: Mapping[type, str]
    name: Callable[[str], str]
    literal: Callable[[object], str]
    orders_nulls: bool = False
    implied: str = ""
    sequence: str = "INTEGER"
    by_month: Callable[[str, str, Sequence[str], str | None], Iterable[str]] | None = None


@attrs.frozen
class AddColumn:
    """Add a column of a type that `Dialect.types` has. Without a default it may be None, and is."""

    table: str
    column: str
    type: type
    default: object = None

    def sql(self, dialect: Dialect) -> Iterator[str]:
        """Yield the statements of the change."""
        default = "" if self.default is None else f" NOT NULL DEFAULT {dialect.literal(self.default)}"
        yield f'ALTER TABLE {dialect.name(self.table)} ADD COLUMN "{self.column}" {dialect.types[self.type]}{default}'


@attrs.frozen
class AddTable:
    """Add a table; only the columns in `nullable` may be None. `sequence` names the column of a record's sequence."""

    table: str
    columns: Mapping[str, type]
    key: Sequence[str]
    nullable: frozenset[str] = frozenset()
    sequence: str = ""

    def sql(self, dialect: Dialect) -> Iterator[str]:
        """Yield the statements of the change."""
        columns = [
            f'"{name}" {dialect.types[type_]}{"" if name in self.nullable else " NOT NULL"}'
            for name, type_ in self.columns.items()
        ]
        key = ", ".join(f'"{name}"' for name in self.key)
        strict = "" if dialect.orders_nulls else " STRICT"
        counted = self.sequence and self.sequence == dialect.implied
        if self.sequence:
            columns.append(f'"{self.sequence}" {dialect.sequence}')
        primary = f'"{self.sequence}"' if counted else key
        yield f"CREATE TABLE {dialect.name(self.table)} ({', '.join(columns)}, PRIMARY KEY ({primary})){strict}"
        if counted:
            yield f'CREATE UNIQUE INDEX "{self.table}_unique_key" ON {dialect.name(self.table)} ({key})'


@attrs.frozen
class AddIndex:
    """Add an index. `nullable` are those of its columns that may be None, which sorts first."""

    table: str
    name: str
    columns: Sequence[str]
    unique: bool = False
    nullable: frozenset[str] = frozenset()

    def sql(self, dialect: Dialect) -> Iterator[str]:
        """Yield the statements of the change."""
        columns = [
            f'"{name}"{" NULLS FIRST" if dialect.orders_nulls and name in self.nullable else ""}'
            for name in self.columns
            if name != dialect.implied
        ]
        kind = "UNIQUE INDEX" if self.unique else "INDEX"
        yield f'CREATE {kind} "{self.name}" ON {dialect.name(self.table)} ({", ".join(columns)})'


@attrs.frozen
class DropIndex:
    """Drop an index."""

    table: str
    name: str

    def sql(self, dialect: Dialect) -> Iterator[str]:
        """Yield the statements of the change."""
        yield f"DROP INDEX {dialect.name(self.name)}"


@attrs.frozen
class Fill:
    """Set a column to an expression over the row, in SQL that every store understands."""

    table: str
    column: str
    expression: str

    def sql(self, dialect: Dialect) -> Iterator[str]:
        """Yield the statements of the change."""
        yield f'UPDATE {dialect.name(self.table)} SET "{self.column}" = {self.expression}'


@attrs.frozen
class KeepByMonth:
    """Partition a table by the months in the UUIDv7 of a column, where a store does that (`Dialect.by_month`).

    What is in the table becomes the first partition; `sequence` is the column that numbers its records.
    """

    table: str
    column: str
    key: Sequence[str]
    sequence: str | None = None

    def sql(self, dialect: Dialect) -> Iterator[str]:
        """Yield the statements of the change."""
        if dialect.by_month is not None:
            yield from dialect.by_month(self.table, self.column, self.key, self.sequence)


@attrs.frozen
class SchemaChange:
    """A named change of tables. A store for other records, which lacks the table `of`, skips it."""

    name: str
    of: str
    parts: Sequence[AddColumn | AddTable | AddIndex | DropIndex | Fill | KeepByMonth]

    def sql(self, dialect: Dialect) -> Iterator[str]:
        """Yield the statements of the change, in their order."""
        for part in self.parts:
            yield from part.sql(dialect)
