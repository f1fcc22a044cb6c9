"""What a query and a step see of a SQLite store: the verbs, over statements made at open."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from modelyard.errors import RecordConflict, RecordNotFound
from modelyard.stores.columns import Projection
from modelyard.stores.sqlite.errors import SqliteError, fault_of
from modelyard.stores.sqlite.rows import Listing, Plan, Row

R = TypeVar("R")

_SHORT_PAGE = 4

Execute = Callable[..., Any]
"""`cursor.execute` of the connection that serves the transaction; it answers the cursor."""


def _ended(*_: object) -> Any:
    raise RuntimeError("the transaction has ended")


class SqliteSnapshot:
    """The verbs that read."""

    __slots__ = ("_execute", "_plans", "fault")

    def __init__(self, execute: Execute, plans: Mapping[type, Plan]) -> None:
        self._execute = execute
        self._plans = plans
        self.fault: Exception | None = None

    def end(self) -> None:
        """Refuse every later call."""
        self._execute = _ended

    def get(self, cls: type[R], *key: object) -> R:
        """The record with this key. Raises `RecordNotFound`."""
        plan = self._plans[cls]
        rows = self._look_up(plan.get, plan.key, key)
        if not rows:
            raise RecordNotFound(f"no {cls.__name__} {key}")
        return self._record(plan, rows[0])  # type: ignore[no-any-return]

    def find(self, cls: type[R], unique: str, *values: object) -> R | None:
        """The record with these values of a unique key, or None."""
        plan = self._plans[cls]
        lookup = plan.find[unique]
        rows = self._look_up(lookup.sql, lookup.values, values)
        return self._record(plan, rows[0]) if rows else None

    def page(
        self,
        cls: type[R],
        index: str,
        *where: object,
        after: tuple[object, ...] | None = None,
        limit: int = 100,
        descending: bool = False,
    ) -> list[R]:
        """Up to `limit` records of an index, behind the cursor `after`."""
        plan = self._plans[cls]
        return self._records(plan, self._window(plan.listings[index], where, after, limit, descending))

    def select(
        self,
        cls: type[Any],
        columns: Sequence[str],
        index: str,
        *where: object,
        after: tuple[object, ...] | None = None,
        limit: int = 100,
        descending: bool = False,
    ) -> list[Row]:
        """The same with only these columns of each record."""
        selection = self._plans[cls].selection(index, tuple(columns))
        return selection.values_of(self._window(selection.listing, where, after, limit, descending))

    def count(self, cls: type[Any], index: str, *where: object) -> int:
        """How many records have this index prefix."""
        listing = self._plans[cls].listings[index]
        rows = self._look_up(listing.count, listing.where, where)
        return rows[0][0] if rows else 0

    def _window(self, listing: Listing, where: Row, after: Row | None, limit: int, descending: bool) -> list[Row]:
        if limit < 0:
            raise ValueError(f"the limit {limit} is negative")
        sql, bound = listing.page(after, descending)
        return self._look_up(sql, listing.where, where, (*bound, min(limit, sys.maxsize)))

    def _look_up(self, sql: str, columns: Projection, values: Row, more: Row = ()) -> list[Row]:
        """The rows with these values; none for a value that no record can have."""
        try:
            return self._rows(sql, columns.accept(values) + more)
        except ValueError:
            return []

    def _rows(self, sql: str, values: Row) -> list[Row]:
        try:
            rows: list[Row] = self._execute(sql, values).fetchall()
        except SqliteError as error:
            self.fault = error
            raise fault_of(error) from error
        except OverflowError as error:
            raise ValueError(f"no column holds this: {error}") from error
        return rows

    def _record(self, plan: Plan, row: Row) -> Any:
        return plan.record_of(row)

    def _records(self, plan: Plan, rows: list[Row]) -> list[Any]:
        return [plan.record_of(row) for row in rows]


class SqliteTx(SqliteSnapshot):
    """The verbs that write. In a shared transaction a savepoint opens before the first of them."""

    __slots__ = ("_seen", "_shared", "dirty")

    def __init__(self, execute: Execute, plans: Mapping[type, Plan], shared: bool) -> None:
        super().__init__(execute, plans)
        self._shared = shared
        self._seen: dict[tuple[Plan, Row], tuple[Any, Row]] = {}
        self.dirty = False

    def add(self, record: object) -> None:
        """Keep a new record. Raises `RecordConflict`, `ValueError`."""
        plan = self._plans[type(record)]
        row = plan.row_of(record)
        if self._write(plan.insert, row) != 1:
            raise RecordConflict(f"{type(record).__name__} {plan.key_of(row)} or a unique key of it exists")

    def replace(self, record: object) -> None:
        """Put a record in the place of its key's. Raises `RecordNotFound`, `RecordConflict`, `ValueError`."""
        plan = self._plans[type(record)]
        key = plan.key.accept(plan.key.raw(record))
        seen = (plan, key) in self._seen
        old, row = self._seen.pop((plan, key)) if seen else self._stored(plan, key)
        changes = plan.changes(record, old, row)
        if not changes:
            return
        if self._write(plan.update(tuple(changes)), (*changes.values(), *key)) != 1:
            raise RecordConflict(f"a unique key of {type(record).__name__} {key} is taken")

    def remove(self, cls: type[Any], *key: object) -> None:
        """Drop the record with this key. Raises `RecordNotFound`."""
        plan = self._plans[cls]
        rows = self._look_up(plan.get, plan.key, key)
        if not rows:
            raise RecordNotFound(f"no {cls.__name__} {key}")
        bound = plan.key_of(rows[0])
        self._write(plan.delete, bound)
        self._seen.pop((plan, bound), None)

    def touch(self, sql: str) -> None:
        """Run a statement that writes a page and changes no record, so that the commit has something to sync."""
        self._write(sql, ())

    def _stored(self, plan: Plan, key: Row) -> tuple[Any, Row]:
        rows = self._rows(plan.get, key)
        if not rows:
            raise RecordNotFound(f"no {plan.record.cls.__name__} {key}")
        return plan.record_of(rows[0]), rows[0]

    def _record(self, plan: Plan, row: Row) -> Any:
        record = plan.record_of(row)
        self._seen[plan, plan.key_of(row)] = record, row
        return record

    def _records(self, plan: Plan, rows: list[Row]) -> list[Any]:
        """A short page, such as the head of a queue, is read to be replaced; a long one is not worth remembering."""
        if len(rows) <= _SHORT_PAGE:
            return [self._record(plan, row) for row in rows]
        return super()._records(plan, rows)

    def _write(self, sql: str, values: Row) -> int:
        """The number of rows that changed. Raises `ValueError` for a value that SQLite cannot keep."""
        try:
            if not self.dirty:
                self.dirty = True
                if self._shared:
                    self._execute("SAVEPOINT step")
            changed: int = self._execute(sql, values).rowcount
        except SqliteError as error:
            self.fault = error
            raise fault_of(error) from error
        except (UnicodeEncodeError, OverflowError) as error:
            raise ValueError(f"a value cannot be kept: {error}") from error
        return changed
