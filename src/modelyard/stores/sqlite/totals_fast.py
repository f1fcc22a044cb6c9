"""Add up totals when rows are moved: without it and the newest, a completion over HTTP takes 29 % more instructions.

Until then a view adds up the totals of the newest records.

The total of a record has columns of its own, such as the day of a moment. The table of the newest records has these
beside the columns of the record, so that SQL alone can add up what was added (`modelyard.domain.record.Record.totals`).
"""

# ruff: noqa: S608 - the names come from declarations, and every value is bound

import sys
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from operator import attrgetter
from typing import Any

import attrs

from modelyard.domain.record import Record
from modelyard.domain.usage import EXACT
from modelyard.stores.columns import Column, columns_of

_SUM, _TOTAL = "modelyard_sum", "modelyard_total"


def _exact_sum(one: str, other: str) -> str:
    """Add two amounts as they are stored."""
    return str(EXACT.add(Decimal(one), Decimal(other)))


class _ExactTotal:
    """The sum of a column of amounts."""

    def __init__(self) -> None:
        self._sum = Decimal(0)

    def step(self, amount: str) -> None:
        self._sum = EXACT.add(self._sum, Decimal(amount))

    def finalize(self) -> str:
        """Return the sum as it is stored."""
        return str(self._sum)


def add_exact_sums(connection: Any) -> None:
    """Let the statements of a connection add amounts exactly: SQLite's own sum would go through floats."""
    connection.create_function(_SUM, 2, _exact_sum, deterministic=True)
    connection.create_aggregate(_TOTAL, 1, _ExactTotal)


@attrs.frozen
class TotalsOf:
    """How the records of a class are added up: `sums` is the declaration of their totals."""

    record: Record
    sums: Record
    total_of: Callable[[Any], Any]

    @property
    def columns(self) -> Mapping[str, Column]:
        """The columns of a total that are not those of a record."""
        known = columns_of(self.record)
        return {name: column for name, column in columns_of(self.sums).items() if name not in known}

    def added_up(self, records: Iterable[Any]) -> list[Any]:
        """Return what records add to each of their totals. Raises `ValueError` for a sum that no column can hold."""
        totals: dict[Any, Any] = {}
        key_of = attrgetter(*self.sums.key)
        for one in map(self.total_of, records):
            key = key_of(one)
            totals[key] = totals[key] + one if key in totals else one
        for total in totals.values():
            for name in self.sums.sums:
                if type(value := getattr(total, name)) is int and abs(value) > sys.maxsize:
                    raise ValueError(f"the sum {value} of {name} is too great for a column")
        return [*totals.values()]

    def adding_one(self) -> str:
        """Return the statement that adds one total to that with its key."""
        return self._adding(f"VALUES ({', '.join('?' * len(columns_of(self.sums)))})")

    def adding(self) -> str:
        """Return the statement that adds the newest records to the totals."""
        return self._adding(self._of_newest())

    def _adding(self, added: str) -> str:
        columns = columns_of(self.sums)
        sums = [f'"{name}" = {_plus(columns[name], _quoted(name), _of("excluded", name))}' for name in self.sums.sums]
        return (
            f'INSERT INTO "{self.sums.table}_indexed" ({listed(columns)}) {added}'
            f" ON CONFLICT ({listed(self.sums.key)}) DO UPDATE SET {', '.join(sums)}"
        )

    def view(self) -> str:
        """Return the statement that creates the view of all totals: each with what the newest records add to it.

        The two halves have columns of the same affinity, and neither is an aggregate by itself, so that SQLite merges
        them by an index.
        """
        columns = columns_of(self.sums)
        kept = [_of("kept", name) for name in columns]
        sums = [self._with_newest(column) for column in columns.values()]
        same = " AND ".join(f"{_of('added', name)} = {_of('kept', name)}" for name in self.sums.key)
        return (
            f'CREATE VIEW "{self.sums.table}" AS SELECT {", ".join(kept)} FROM "{self.sums.table}_indexed" AS kept'
            f' WHERE NOT EXISTS (SELECT 1 FROM "{self.record.table}_newest" AS added WHERE {same})'
            f" UNION ALL SELECT {', '.join(sums)} FROM ({self._of_newest()}) AS added"
            f' LEFT JOIN "{self.sums.table}_indexed" AS kept ON {same}'
        )

    def _with_newest(self, column: Column) -> str:
        """Return the expression for what is added to a column, together with what is kept."""
        name = column.name
        if name not in self.sums.sums:
            return _of("added", name)
        nothing = "'0'" if _is_amount(column) else "0"
        sum_ = _plus(column, _of("added", name), f"coalesce({_of('kept', name)}, {nothing})")
        return f"CAST({sum_} AS {column.kind.sql}) AS {_quoted(name)}"

    def _of_newest(self) -> str:
        """Return the query for what the newest records add to each total."""
        chosen = [self._sum_of_newest(column) for column in columns_of(self.sums).values()]
        table = f"{self.record.table}_newest"
        return f'SELECT {", ".join(chosen)} FROM "{table}" WHERE true GROUP BY {listed(self.sums.key)}'

    def _sum_of_newest(self, column: Column) -> str:
        name = _quoted(column.name)
        if column.name not in self.sums.sums:
            return name
        return f"{f'{_TOTAL}({name})' if _is_amount(column) else f'CAST(total({name}) AS INTEGER)'} AS {name}"


def _is_amount(column: Column) -> bool:
    return column.kind.load is Decimal


def _plus(column: Column, one: str, other: str) -> str:
    """Return the expression for a sum. That of integers is the greatest one where it would be greater, so that no count
    that a server invents keeps others from being booked.
    """
    return f"{_SUM}({one}, {other})" if _is_amount(column) else f"CAST({one} + {other} AS INTEGER)"


def _quoted(name: str) -> str:
    return f'"{name}"'


def _of(table: str, name: str) -> str:
    return f'{table}."{name}"'


def listed(names: Iterable[str]) -> str:
    """Return names as SQL lists them."""
    return ", ".join(map(_quoted, names))
