"""The mapping between a declared record and a row: its SQL, generated once in a process, and both directions."""

# ruff: noqa: S608 - the names come from declarations, and every value is bound

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property, partial
from operator import itemgetter
from typing import Any, Never

import attrs

from modelyard.domain.record import KEY, Record, by_class
from modelyard.errors import StoreCorrupt
from modelyard.stores.columns import Column, Projection, columns_of
from modelyard.stores.conversions_fast import Convert
from modelyard.stores.row_reading import UNREADABLE, Row, record_function
from modelyard.stores.sqlite import newest_fast as newest
from modelyard.stores.sqlite.appearance import next_number, retire_number
from modelyard.stores.sqlite.newest_fast import indexed_table, insertion, moving, tables_of
from modelyard.stores.sqlite.totals_fast import TotalsOf


def _dumping(columns: Sequence[Column]) -> Projection:
    return Projection(columns, [column.kind.dump for column in columns])


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _equal(columns: Iterable[Column]) -> str:
    """Return a condition that holds where these columns have the bound values, None included."""
    return " AND ".join(f'"{c.name}" {"IS" if c.nullable else "="} ?' for c in columns) or "1"


@attrs.frozen
class Lookup:
    """A statement and the columns whose values it binds."""

    sql: str
    values: Projection


@attrs.frozen
class Cursor:
    """The condition "after this cursor" in one direction, and which of the cursor's values it binds, in order."""

    sql: str
    bound: tuple[int, ...]

    @classmethod
    def of(cls, columns: Sequence[Column], descending: bool) -> "Cursor":
        """Build a row value comparison, which an index can serve; if None is among the values, spell it out."""
        if not any(column.nullable for column in columns):
            marks = ", ".join("?" * len(columns))
            sql = f"({_quoted(c.name for c in columns)}) {'<' if descending else '>'} ({marks})"
            return cls(sql, tuple(range(len(columns))))
        parts, bound = [], []
        for at, column in enumerate(columns):
            after, times = _after(column, descending)
            parts.append(f"({_equal(columns[:at])} AND {after})")
            bound += [*range(at), *[at] * times]
        return cls(f"({' OR '.join(parts)})", tuple(bound))


def _after(column: Column, descending: bool) -> tuple[str, int]:
    """Return the condition that one column is after its value, and how often it binds the value. None sorts first."""
    name, sign = f'"{column.name}"', "<" if descending else ">"
    if not column.nullable:
        return f"{name} {sign} ?", 1
    if descending:
        return f"({name} < ? OR (? IS NOT NULL AND {name} IS NULL))", 2
    return f"({name} > ? OR (? IS NULL AND {name} IS NOT NULL))", 2


class IndexStatements:
    """The statements of one index."""

    def __init__(self, table: str, columns: str, where: Sequence[Column], order: Sequence[Column]) -> None:
        self.where: Projection = _dumping(where)
        self.count: str = f'SELECT count(*) FROM "{table}" WHERE {_equal(where)}'
        self._kept = Projection(order, [column.kind.keep for column in order])
        self._order = _dumping(order)
        self._cursors = {descending: Cursor.of(order, descending) for descending in (False, True)}
        self._first, self._next = {}, {}
        for descending, cursor in self._cursors.items():
            by = ", ".join(f'"{c.name}"{" DESC" if descending else ""}' for c in order) or "1"
            select = f'SELECT {columns} FROM "{table}" WHERE {_equal(where)}'
            self._first[descending] = f"{select} ORDER BY {by} LIMIT ?"
            self._next[descending] = f"{select} AND {cursor.sql} ORDER BY {by} LIMIT ?"

    def page(self, after: Row | None, descending: bool) -> tuple[str, Row]:
        """Return the statement of a page and the values that it binds for the cursor.

        Raises `ValueError` for an impossible cursor.
        """
        if after is None:
            return self._first[descending], ()
        values = self._order.accept(self._kept.accept(after))
        return self._next[descending], tuple([values[at] for at in self._cursors[descending].bound])


@attrs.frozen
class ColumnSelection:
    """Some columns of the records of an index: the statements that read them, and how their values are converted."""

    listing: IndexStatements
    table: str
    loads: Sequence[tuple[int, Convert]]

    def values_of(self, rows: Sequence[Row]) -> list[Row]:
        """Convert the values of rows, column by column. Raises `StoreCorrupt` as `StatementPlan.record_of` does."""
        if not rows or not self.loads:
            return list(rows)
        columns: list[Iterable[Any]] = list(zip(*rows, strict=True))
        try:
            for at, load in self.loads:
                columns[at] = [None if value is None else load(value) for value in columns[at]]
        except UNREADABLE as error:
            raise _corrupt(self.table, error) from error
        return list(zip(*columns, strict=True))


def _corrupt(table: str, error: Exception) -> StoreCorrupt:
    return StoreCorrupt(f"a row of {table} cannot be read: {error!r}")


def _loads(columns: Iterable[Column]) -> list[tuple[int, Convert]]:
    return [(at, column.kind.load) for at, column in enumerate(columns) if column.kind.load is not None]


def _picker(positions: Sequence[int]) -> Callable[[Row], Row]:
    """Return a function that picks these values out of a row: with one slice if they are at its front, as keys mostly
    are.
    """
    if list(positions) == list(range(len(positions))):
        return itemgetter(slice(len(positions)))
    return lambda row: tuple([row[at] for at in positions])


class StatementPlan:
    """The statements and conversions for the records of one class.

    `totals` says how they are added up, or for a class of totals what is added up in them.
    """

    def __init__(self, record: Record, totals: TotalsOf | None = None) -> None:
        columns = columns_of(record)
        names = list(columns)
        self.record = record
        self.totals = totals
        self.gathered, self.sums = record.gathered, bool(record.sums)
        self.columns: list[Column] = list(columns.values())
        self.kept: bool = not (record.sequence or record.sums)
        """Whether to keep records for later transactions: what is listed as it appears is rarely read in two."""
        self.settings: frozenset[int] = frozenset(names.index(name) for name in record.settings)
        given = [name for name in names if name != record.sequence]
        self._row = _dumping([columns[name] for name in given])
        self.add_total: str = totals.adding_one() if totals else ""
        self.key_of: Callable[[tuple[Any, ...]], tuple[Any, ...]] = _picker([names.index(name) for name in record.key])
        self._table, self._names = record.table, names
        self._key = [columns[name] for name in record.key]
        self._indexed = indexed_table(record)
        added = totals.record if totals else record
        self.move_newest: Sequence[str] = moving(added, columns_of(added), totals)
        self.view: str = newest.view(record, names) if self.gathered else totals.view() if totals else ""
        of_total = [*totals.columns] if totals and self.gathered else []
        self.tables: Mapping[str, set[str]] = {
            table: {*names, *(of_total if table != self._indexed else [])} for table in tables_of(record)
        }
        selected, marks = _quoted(names), ["?"] * len(given)
        number = next_number(record) if record.sequence else ""
        self.next_number: str = f"SELECT {number}" if number else ""
        marks += [number] if number else []
        self.insert: str = (
            f'INSERT INTO "{self._indexed}" ({selected}) VALUES ({", ".join(marks)}) ON CONFLICT DO NOTHING'
        )
        if record.gathered:
            self.insert = insertion(record, [*given, *of_total, names[-1]], number)
        by_key = _equal(self._key)
        self.retire: str | None = record.sequence and retire_number(record, by_key)
        self.key: Projection = _dumping(self._key)
        self.get: str = f'SELECT {selected} FROM "{self._table}" WHERE {by_key}'
        self.delete: str = f'DELETE FROM "{self._indexed}" WHERE {by_key}'
        last = f'SELECT rowid FROM "{self._indexed}" ORDER BY rowid DESC LIMIT ?'
        self.delete_last: str = f'DELETE FROM "{self._indexed}" WHERE rowid IN ({last})'
        # A key of one integer is the rowid itself, so that a record with a small one is not the last.
        self.adds_last: bool = not record.sums and (
            bool(record.sequence) or [column.kind.sql for column in self._key] != ["INTEGER"]
        )
        self.find: dict[str, Lookup] = {
            name: self._lookup([columns[c] for c in chosen]) for name, chosen in record.unique.items()
        }
        self.find[KEY] = Lookup(self.get, self.key)
        self.listings: dict[str, IndexStatements] = {name: self._listing(name, names) for name in record.indexes}
        self.by_key: IndexStatements = IndexStatements(self._table, selected, [], self._key)
        self.insert_many: Callable[[int], str] = cache(self._insert_many)
        self.restore: str = self.insert_many(1)
        self.whole_row: Projection = _dumping(self.columns)
        self.update: Callable[[tuple[int, ...]], str] = cache(self._update)
        self.selection: Callable[[str, tuple[str, ...]], ColumnSelection] = cache(self._selection)

    def _insert_many(self, size: int) -> str:
        """Return the statement that inserts so many rows with their numbers, but for those that have a taken key."""
        rows = ", ".join([f"({', '.join('?' * len(self._names))})"] * size)
        return f'INSERT INTO "{self._indexed}" ({_quoted(self._names)}) VALUES {rows} ON CONFLICT DO NOTHING'

    def _lookup(self, columns: Sequence[Column]) -> Lookup:
        condition = " AND ".join(f'"{column.name}" = ?' for column in columns)
        return Lookup(f'SELECT {_quoted(self._names)} FROM "{self._table}" WHERE {condition}', _dumping(columns))

    def _listing(self, index: str, selected: Sequence[str]) -> IndexStatements:
        columns = columns_of(self.record)
        where, order = self.record.indexes[index].where, self.record.order_of(index)
        return IndexStatements(self._table, _quoted(selected), [columns[c] for c in where], [columns[c] for c in order])

    def _selection(self, index: str, names: tuple[str, ...]) -> ColumnSelection:
        """Return what reads these columns of the records of an index. Raises `KeyError` for unknown ones."""
        loads = _loads([columns_of(self.record)[name] for name in names])
        return ColumnSelection(self._listing(index, names), self._table, loads)

    def _update(self, changed: tuple[int, ...]) -> str:
        """Return the statement that sets the columns at these positions only.

        SQLite rewrites every index whose columns a SET names.
        """
        assignments = ", ".join(f'"{self._names[at]}" = ?' for at in changed)
        return f'UPDATE OR IGNORE "{self._indexed}" SET {assignments} WHERE {_equal(self._key)}'

    @cached_property
    def row_of(self) -> Callable[[object], Row]:
        """The function to the values that `insert` binds for a new record, which has no number in its sequence yet.

        It raises `TypeError` or `ValueError` for what cannot be stored.
        """
        row = self._row.checked
        if not self.gathered:
            return row
        key_of, of_total = self.key_of, self._of_total

        def newest_row(record: object) -> Row:
            values = row(record)
            key = key_of(values)
            return (*key, *key, *values, *of_total(record))

        return newest_row

    @property
    def _of_total(self) -> Callable[[object], Row]:
        """The function to the values of a new record that only its total has."""
        if self.totals is None:
            return lambda record: ()
        total_of, row = self.totals.total_of, _dumping([*self.totals.columns.values()]).checked
        return lambda record: row(total_of(record))

    @property
    def row_alone(self) -> Callable[[object], Row]:
        """The function to the values of a new record without those of its total."""
        return self._row.checked

    def rows_of_totals(self, records: Sequence[object]) -> list[Row]:
        """Return the rows of what records add to their totals. Raises `ValueError` for what cannot be stored."""
        return [*map(self._row_of_total, self.totals.added_up(records))] if self.totals else []

    @cached_property
    def _row_of_total(self) -> Callable[[object], Row]:
        assert self.totals is not None
        return _dumping([*columns_of(self.totals.sums).values()]).checked

    @cached_property
    def record_of(self) -> Callable[[Row], Any]:
        """The function from a row to its record. It raises `StoreCorrupt` for a row that no such record has written."""
        return record_function(self.record.cls, self.columns, partial(_corrupt, self._table))

    @cached_property
    def changes(self) -> Callable[[Any, Any], tuple[dict[int, Any], bool]]:
        """The function from a new record and the old one to the values to bind, by position.

        It returns as well whether reading them gives back the values of the new record as they are. It raises
        `TypeError` or `ValueError` for what cannot be stored.
        """
        return self._row.changes


class Plans(dict[type, StatementPlan]):
    """Plans by the class of their records."""

    def __missing__(self, cls: type) -> Never:
        raise TypeError(f"{cls.__name__} is not a declared record")


_plan = cache(StatementPlan)  # a declaration never changes


def plans_of(records: Iterable[Record]) -> Mapping[type, StatementPlan]:
    """Build the plan of each declaration. Raises `TypeError` for totals of which nobody says what they add up."""
    declared = by_class([*records])
    totals: dict[type, TotalsOf] = {}
    for record in declared.values():
        if record.totals:
            of_total, total_of = record.totals
            totals[record.cls] = totals[of_total] = TotalsOf(record, declared[of_total], total_of)
    for record in declared.values():
        if record.sums and record.cls not in totals:
            raise TypeError(f"{record.cls.__name__} has sums, but no record has totals of that class")
    return Plans({cls: _plan(record, totals.get(cls)) for cls, record in declared.items()})
