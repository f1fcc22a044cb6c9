"""The statements of one index: pages and counts. Each is one range of the index, or a few that are joined.

No index answers `IS NOT DISTINCT FROM`, so which values are None decides on the statement.
"""

# ruff: noqa: S608 - the names come from declarations, and every value is bound

from collections.abc import Iterable, Sequence
from typing import Any

from modelyard.parts.postgres.values import dumping
from modelyard.stores.columns import Column, Projection

Row = tuple[Any, ...]
Statement = tuple[str, Row]

MOST = 2**62


def quoted(names: Iterable[str]) -> str:
    """Return names as SQL identifiers, with commas between them."""
    return ", ".join(f'"{name}"' for name in names)


class _Binding:
    """The parts of a statement, and the positions of the values that it binds."""

    def __init__(self) -> None:
        self.positions: list[int] = []

    def mark(self, at: int) -> str:
        if at not in self.positions:
            self.positions.append(at)
        return f"${self.positions.index(at) + 1}"

    def equal(self, columns: Sequence[Column], nones: Sequence[bool], start: int) -> list[str]:
        return [
            f'"{column.name}" IS NULL' if none else f'"{column.name}" = {self.mark(start + at)}'
            for at, (column, none) in enumerate(zip(columns, nones, strict=True))
        ]


class IndexPages:
    """The statements of one index of a table."""

    def __init__(self, table: str, where: Sequence[Column], order: Sequence[Column]) -> None:
        self.where: Projection = dumping(where)
        self._table, self._where, self._order = table, where, order
        self._kept = Projection(order, [column.kind.keep for column in order])
        self._cursor = dumping(order)
        self._made: dict[Any, tuple[str, Sequence[int]]] = {}

    def count(self, where: Row) -> Statement:
        """Return the statement that counts the records with these values of the prefix."""
        binding = _Binding()
        conditions = binding.equal(self._where, [value is None for value in where], 0)
        sql = f"SELECT count(*) FROM {self._table} WHERE {_all(conditions)}"
        return sql, tuple([where[at] for at in binding.positions])

    def page(self, selected: str, where: Row, after: Row | None, limit: int, descending: bool) -> Statement:
        """Return the statement of a page. Raises `TypeError` or `ValueError` for an impossible cursor."""
        cursor = () if after is None else self._cursor.accept(self._kept.accept(after))
        values = (*where, *cursor, min(limit, MOST))
        shape = (selected, tuple([value is None for value in values]), after is None, descending, limit == 1)
        found = self._made.get(shape)
        if found is None:
            found = self._made[shape] = self._make(*shape)
        sql, positions = found
        return sql, tuple([values[at] for at in positions])

    def _make(
        self, selected: str, nones: Sequence[bool], first: bool, descending: bool, only_one: bool
    ) -> tuple[str, Sequence[int]]:
        binding, prefix = _Binding(), len(self._where)
        by = ", ".join(f'"{column.name}"{_direction(column, descending)}' for column in self._order) or "1"
        same = binding.equal(self._where, nones[:prefix], 0)
        ranges = [[]] if first else self._after(binding, nones[prefix:-1], prefix, descending)
        # With a limit that is bound, the server takes a tenth of the rows for wanted, and plans anew each time.
        ends = f"ORDER BY {by} LIMIT {1 if only_one else binding.mark(len(nones) - 1)}"
        conditions = [_all([*same, *range_]) for range_ in ranges]
        if len(conditions) == 1:
            sql = f"SELECT {selected} FROM {self._table} WHERE {conditions[0]} {ends}"
        else:
            parts = " UNION ALL ".join(f"(SELECT * FROM {self._table} WHERE {one} {ends})" for one in conditions)
            sql = f"SELECT {selected} FROM ({parts}) AS ranges {ends}"
        return sql, binding.positions

    def _after(self, binding: _Binding, nones: Sequence[bool], start: int, descending: bool) -> list[list[str]]:
        """Return the conditions of each range after the cursor. None sorts first."""
        order, sign = self._order, "<" if descending else ">"
        last = max((at + 1 for at, column in enumerate(order) if column.nullable), default=0)
        ranges: list[list[str]] = []
        if rest := order[last:]:
            marks = ", ".join(binding.mark(start + at) for at in range(last, len(order)))
            following = f"({quoted(column.name for column in rest)}) {sign} ({marks})"
            ranges.append([*binding.equal(order[:last], nones[:last], start), following])
        for at in range(last - 1, -1, -1):
            same, name = binding.equal(order[:at], nones[:at], start), f'"{order[at].name}"'
            if not nones[at]:
                ranges.append([*same, f"{name} {sign} {binding.mark(start + at)}"])
                if descending and order[at].nullable:
                    ranges.append([*same, f"{name} IS NULL"])
            elif not descending:
                ranges.append([*same, f"{name} IS NOT NULL"])
        return ranges or [["false"]]


def _direction(column: Column, descending: bool) -> str:
    if not column.nullable:
        return " DESC" if descending else ""
    return " DESC NULLS LAST" if descending else " NULLS FIRST"


def _all(conditions: Sequence[str]) -> str:
    return " AND ".join(conditions) or "true"
