"""The mapping between a declared record and a row of PostgreSQL: its SQL, and both directions."""

# ruff: noqa: S608 - the names come from declarations, and every value is bound

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from itertools import compress, permutations
from operator import is_not
from typing import Any, Never

import attrs

from modelyard.domain.record import KEY, Record
from modelyard.errors import StoreCorrupt
from modelyard.parts.postgres.locks import LOCK, lock_key, try_domain_lock
from modelyard.parts.postgres.pages import IndexPages, Row, Statement, quoted
from modelyard.parts.postgres.values import NEEDLESS, array_type, dumping, load_of, packing
from modelyard.stores.columns import Column, Projection, columns_of
from modelyard.stores.conversions_fast import Convert
from modelyard.stores.row_reading import UNREADABLE, record_function

_FEW = 2
"""Rows that are inserted one by one; more of them are one statement."""


def _equal(columns: Sequence[Column], first: int = 1) -> str:
    return " AND ".join(f'"{column.name}" = ${first + at}' for at, column in enumerate(columns))


def _unnested(columns: Sequence[Column]) -> str:
    arrays = ", ".join(f"${at + 1}::{array_type(column)}" for at, column in enumerate(columns))
    return f"SELECT * FROM unnest({arrays})"


@attrs.frozen
class KeyLookup:
    """A statement that finds the record with these values."""

    sql: str
    values: Projection


class RecordPlan:
    """The statements and conversions for the records of one class, in one schema."""

    def __init__(self, record: Record, schema: str) -> None:
        columns = columns_of(record)
        names = self._names = [*columns]
        self.record = record
        self.columns: list[Column] = [*columns.values()]
        self._given = [column for name, column in columns.items() if name != record.sequence]
        self._width = len(self._given)
        self._key = [columns[name] for name in record.key]
        self._key_at = [names.index(name) for name in record.key]
        self.unique: Mapping[str, Sequence[int]] = {
            name: [names.index(column) for column in chosen] for name, chosen in record.unique.items()
        }
        self._unique_columns = {at for positions in self.unique.values() for at in positions}
        self.settings: frozenset[int] = frozenset(names.index(name) for name in record.settings)
        self.companion: RecordPlan | None = None
        self.key: Projection = dumping(self._key)
        self._row, self._whole_row = dumping(self._given), dumping(self.columns)
        self._pack, self._pack_whole = packing(self._given), packing(self.columns)
        self._write_statements(columns, schema)
        self._write_queries(columns)

    def _write_statements(self, columns: Mapping[str, Column], schema: str) -> None:
        """Write the SQL of single records, and of many."""
        record = self.record
        self.table: str = f'"{schema}"."{record.table}"'
        self.numbers: str = f'"{schema}"."{record.table}_{record.sequence}_seq"'
        self.selected: str = quoted(self._names)
        self.get: str = f"SELECT {self.selected} FROM {self.table} WHERE {_equal(self._key)}"
        self.delete: str = f"DELETE FROM {self.table} WHERE {_equal(self._key)}"
        into = f"INSERT INTO {self.table} ({quoted([column.name for column in self._given])})"
        self._insert = f"{into} VALUES ({', '.join(f'${at + 1}' for at in range(self._width))})"
        self._insert_many = f"{into} {_unnested(self._given)}"
        self._restore = f"INSERT INTO {self.table} ({self.selected}) {_unnested(self.columns)} ON CONFLICT DO NOTHING"
        self.accumulate: str = self._adding(columns) if record.sums else ""
        numbers = lock_key(schema, "numbers", record.table)
        self.number_lock: Statement | None = (LOCK, (numbers,)) if record.sequence else None
        self._domain = f'first."{record.domain[1]}"' if record.domain else ""
        self._domain_lock: str = try_domain_lock(schema, record.domain[0], self._domain) if record.domain else "true"
        self._updates: dict[tuple[int, ...], str] = {}

    def _write_queries(self, columns: Mapping[str, Column]) -> None:
        """Write the SQL that finds a record by its unique keys, and lists records."""
        record = self.record
        self.find: Mapping[str, KeyLookup] = {
            name: self._lookup([columns[column] for column in chosen]) for name, chosen in record.unique.items()
        } | {KEY: KeyLookup(self.get, self.key)}
        self.by_key: IndexPages = IndexPages(self.table, [], self._key)
        self.listings: Mapping[str, IndexPages] = {
            name: IndexPages(self.table, [columns[c] for c in index.where], [columns[c] for c in record.order_of(name)])
            for name, index in record.indexes.items()
        }
        self._selections: dict[tuple[str, ...], tuple[str, list[tuple[int, Convert]]]] = {}

    def _adding(self, columns: Mapping[str, Column]) -> str:
        """Return the statement that inserts a record, or adds its sums to those of the one with its key, exactly."""
        sums = (
            f'"{name}" = (kept."{name}"::numeric + excluded."{name}"::numeric)::text'
            if columns[name].kind.load is Decimal
            else f'"{name}" = kept."{name}" + excluded."{name}"'
            for name in self.record.sums
        )
        insert = self._insert.replace(" (", " AS kept (", 1)
        return f"{insert} ON CONFLICT ({quoted(self.record.key)}) DO UPDATE SET {', '.join(sums)}"

    def _lookup(self, columns: Sequence[Column]) -> KeyLookup:
        return KeyLookup(f"SELECT {self.selected} FROM {self.table} WHERE {_equal(columns)}", dumping(columns))

    # ---- records and rows ----

    def row_of(self, record: object) -> Row:
        """Return the values that SQL binds for a new record, which has no number in its sequence yet.

        Raises `TypeError` or `ValueError` for what cannot be stored.
        """
        return self._row.checked(record)

    def key_of(self, row: Row) -> Row:
        """Return the key of a row, as SQL binds it."""
        return tuple([row[at] for at in self._key_at])

    def is_whole(self, row: Row) -> bool:
        """Return whether a row has its number, which only the server gives."""
        return len(row) == len(self.columns)

    @cached_property
    def record_of(self) -> Callable[[Row], Any]:
        """The function from a row to its record. It raises `StoreCorrupt` for a row that no such record has written."""
        return record_function(self.record.cls, self.columns, self._corrupt, load_of, NEEDLESS)

    def changes(self, new: object, old: object, row: Row) -> dict[int, Any]:
        """Return the values to bind, by position, that turn the row of the record `old` into that of `new`.

        Raises `TypeError` or `ValueError` for what cannot be stored.
        """
        values, changed = self._row.admitted(new), {}
        for at in compress(range(self._width), map(is_not, values, self._row.raw(old))):
            dumped = self._row.convert_one(at, values[at])
            if dumped != row[at]:
                changed[at] = dumped
        return changed

    def touches_unique(self, positions: Iterable[int]) -> bool:
        """Return whether one of these columns is part of a unique key."""
        return not self._unique_columns.isdisjoint(positions)

    def selection(self, columns: tuple[str, ...]) -> tuple[str, list[tuple[int, Convert]]]:
        """Return the SQL of these columns and how their values are loaded. Raises `KeyError` for unknown ones."""
        found = self._selections.get(columns)
        if found is None:
            chosen = [columns_of(self.record)[name] for name in columns]
            found = self._selections[columns] = quoted(columns), _loads(chosen)
        return found

    def values_of(self, rows: Sequence[Row], loads: Sequence[tuple[int, Convert]]) -> list[Row]:
        """Load the values of selected columns. Raises `StoreCorrupt` as `record_of` does."""
        if not rows or not loads:
            return [*rows]
        columns: list[Iterable[Any]] = [*zip(*rows, strict=True)]
        try:
            for at, load in loads:
                columns[at] = [None if value is None else load(value) for value in columns[at]]
        except UNREADABLE as error:
            raise self._corrupt(error) from error
        return [*zip(*columns, strict=True)]

    def _corrupt(self, error: Exception) -> StoreCorrupt:
        return StoreCorrupt(f"a row of {self.table} cannot be read: {error!r}")

    # ---- statements ----

    def inserts(self, rows: Sequence[Row]) -> Iterable[Statement]:
        """Yield the statements that insert rows, in their order."""
        if len(rows) > _FEW:
            yield self._insert_many, self._pack(rows)
        else:
            for row in rows:
                yield self._insert, row

    def take(self, index: str, where: Row, offset: int) -> Statement:
        """Return the statement that takes the first record of an index prefix that is free, after `offset` others.

        After its columns comes whether its domain could be locked, too, and after that the columns of its `companion`,
        or nothing if another step has that. Raises `ValueError` for impossible values.
        """
        listing, companion = self.listings[index], self.companion
        page, values = listing.page(self.selected, listing.where.accept(where), None, 1, False)
        start = f"OFFSET ${len(values) + 1} " if offset else ""
        first = f"({page} {start}FOR UPDATE SKIP LOCKED) AS first"
        taken, also = f"first.*, {self._domain_lock}", ""
        if companion is not None:
            (key,) = companion.record.key
            taken += "".join(f', also."{name}"' for name in companion._names)
            one = f'SELECT * FROM {companion.table} WHERE "{key}" = {self._domain} FOR UPDATE SKIP LOCKED'
            also = f"LEFT JOIN LATERAL ({one}) AS also ON true"
        return f"SELECT {taken} FROM {first} {also}", (*values, offset) if offset else values

    def restore(self, records: Sequence[object]) -> Statement:
        """Return the statement that stores records with the numbers that they have, but for those that are there."""
        return self._restore, self._pack_whole([self._whole_row.checked(one) for one in records])

    def last_number(self) -> Statement:
        """Return the statement that reads the greatest number that a record was given."""
        return f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {self.numbers}", ()

    def retire_numbers(self, last: int) -> Statement:
        """Return the statement that keeps the numbers up to this one from being used again."""
        current = self.last_number()[0]
        return f"SELECT setval('{self.numbers}', greatest($1, ({current}), 1))", (last,)

    def update(self, key: Row, changes: Mapping[int, Any]) -> Statement:
        """Return the statement that sets the columns at these positions."""
        positions = tuple(changes)
        sql = self._updates.get(positions)
        if sql is None:
            sets = ", ".join(f'"{self._names[at]}" = ${n + 1}' for n, at in enumerate(positions))
            where = _equal(self._key, len(positions) + 1)
            sql = self._updates[positions] = f"UPDATE {self.table} SET {sets} WHERE {where}"
        return sql, (*changes.values(), *key)


def _loads(columns: Iterable[Column]) -> list[tuple[int, Convert]]:
    return [(at, load) for at, column in enumerate(columns) if (load := load_of(column)) is not None]


class RecordPlans(dict[type, RecordPlan]):
    """RecordPlans by the class of their records."""

    def __missing__(self, cls: type) -> Never:
        raise TypeError(f"{cls.__name__} is not a declared record")


def plans_of(records: Iterable[Record], schema: str) -> Mapping[type, RecordPlan]:
    """Build the plan of each declaration, and find the companion of each: what its domain has besides it."""
    plans = RecordPlans({record.cls: RecordPlan(record, schema) for record in records})
    of_domains = [plan for plan in plans.values() if plan.record.domain and plan.record.key == (plan.record.domain[1],)]
    for plan, other in permutations(of_domains, 2):
        if plan.record.domain[0] == other.record.domain[0]:  # type: ignore[index]  # they have domains
            plan.companion = other
    return plans
