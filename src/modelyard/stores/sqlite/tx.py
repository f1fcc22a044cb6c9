"""What a query and a step see of a SQLite store: its operations, with statements prepared when it was opened."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, TypeVar

from modelyard.clock import unix_time
from modelyard.domain.record import KEY
from modelyard.errors import RecordConflict, RecordNotFound
from modelyard.protocols import Clock
from modelyard.stores.columns import Projection
from modelyard.stores.history import UNFINISHED
from modelyard.stores.row_reading import Row
from modelyard.stores.sqlite.appearance import COUNT_SETTINGS, KEEP_LAST
from modelyard.stores.sqlite.errors import SqliteError, to_store_error
from modelyard.stores.sqlite.newest_fast import AT_ONCE
from modelyard.stores.sqlite.notices import SETTINGS
from modelyard.stores.sqlite.recent_records_fast import RecentRecords
from modelyard.stores.sqlite.rows import IndexStatements, StatementPlan

R = TypeVar("R")

_SHORT_PAGE = 4
_FEW = 3
"""Records that are added one by one; more of one class are added together."""
_SIZES = (64, 32, 16, 8, 4, 2, 1)
"""How many rows a statement may insert: few sizes, so that few statements are prepared."""

Execute = Callable[..., Any]
"""`cursor.execute` of the connection that serves the transaction; it returns the cursor."""


def _ended(*_: object) -> Any:
    raise RuntimeError("the transaction has ended")


class _EndedPlans(dict[type, StatementPlan]):
    __missing__ = _ended


_ENDED_PLANS = _EndedPlans()


class SqliteSnapshot:
    """The read operations of a transaction."""

    __slots__ = ("_clock", "_execute", "_plans", "error")

    def __init__(self, execute: Execute, plans: Mapping[type, StatementPlan], clock: Clock) -> None:
        self._execute = execute
        self._plans = plans
        self._clock = clock
        self.error: Exception | None = None

    @property
    def time(self) -> float:
        """The clock that the store was opened with, in seconds since the epoch."""
        return unix_time(self._clock.now())

    def end(self) -> None:
        self._execute, self._plans = _ended, _ENDED_PLANS

    def get(self, cls: type[R], *key: object) -> R:
        record = self._found(self._plans[cls], key)
        if record is None:
            raise RecordNotFound(f"no {cls.__name__} {key}")
        return record  # type: ignore[no-any-return]

    def find(self, cls: type[R], unique: str, *values: object) -> R | None:
        """Return the record with these values of a unique key, or None."""
        plan = self._plans[cls]
        if unique == KEY:
            return self._found(plan, values)  # type: ignore[no-any-return]
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
        """Return up to `limit` records of an index, after the cursor `after`."""
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
        """Return only these columns of the records that `page` would return."""
        selection = self._plans[cls].selection(index, tuple(columns))
        return selection.values_of(self._window(selection.listing, where, after, limit, descending))

    def count(self, cls: type[Any], index: str, *where: object) -> int:
        """Return the number of records with this index prefix."""
        listing = self._plans[cls].listings[index]
        rows = self._look_up(listing.count, listing.where, where)
        return rows[0][0] if rows else 0

    def scan(self, cls: type[R], after: Row | None, limit: int, descending: bool = False) -> list[R]:
        plan = self._plans[cls]
        return self._records(plan, self._window(plan.by_key, (), after, limit, descending))

    def size(self, cls: type[Any]) -> int:
        return self._rows(self._plans[cls].by_key.count, ())[0][0]  # type: ignore[no-any-return]

    def last_number(self, cls: type[Any]) -> int:
        return self._rows(self._plans[cls].next_number, ())[0][0] - 1  # type: ignore[no-any-return]

    def _window(
        self, listing: IndexStatements, where: Row, after: Row | None, limit: int, descending: bool
    ) -> list[Row]:
        if limit < 0:
            raise ValueError(f"the limit {limit} is negative")
        sql, bound = listing.page(after, descending)
        return self._look_up(sql, listing.where, where, (*bound, min(limit, sys.maxsize)))

    def _found(self, plan: StatementPlan, key: Row) -> Any:
        """Return the record with a key, or None; also for a key that no record can have."""
        rows = self._look_up(plan.get, plan.key, key)
        return self._record(plan, rows[0]) if rows else None

    def _look_up(self, sql: str, columns: Projection, values: Row, more: Row = ()) -> list[Row]:
        """Return the rows with these values; none for a value that no record can have."""
        try:
            return self._rows(sql, columns.accept(values) + more)
        except ValueError:
            return []

    def _rows(self, sql: str, values: Row) -> list[Row]:
        try:
            rows: list[Row] = self._execute(sql, values).fetchall()
        except SqliteError as error:
            self.error = error
            raise to_store_error(error) from error
        except OverflowError as error:
            raise ValueError(f"no column can hold this value: {error}") from error
        return rows

    def _record(self, plan: StatementPlan, row: Row) -> Any:
        return plan.record_of(row)

    def _records(self, plan: StatementPlan, rows: list[Row]) -> list[Any]:
        return [plan.record_of(row) for row in rows]


class SqliteTx(SqliteSnapshot):
    """The write operations of a transaction."""

    __slots__ = ("_recent", "dirty", "topics")

    def __init__(
        self, execute: Execute, plans: Mapping[type, StatementPlan], clock: Clock, recent: RecentRecords
    ) -> None:
        self._execute, self._plans, self._clock, self._recent = execute, plans, clock, recent
        self.error = None
        self.dirty: bool = False
        self.topics: tuple[str, ...] = ()

    def add(self, record: object) -> None:
        """Store a new record, and add it to its total. Raises `RecordConflict` or `ValueError`."""
        plan = self._plans[type(record)]
        row = plan.row_of(record)
        if plan.sums:
            self._move_newest(plan)
        added = self._write(plan.insert, row)
        if added.rowcount != 1:
            raise RecordConflict(f"{type(record).__name__} {plan.key_of(row)} or one of its unique keys exists")
        if plan.settings:
            self._count_settings()
        elif plan.gathered and added.lastrowid % AT_ONCE == 0:
            self._move_newest(plan)

    def add_all(self, records: Sequence[object]) -> None:
        """Store new records, many in a statement. Raises what `add` raises for the first that is refused."""
        if len(records) == 1:
            self.add(records[0])
            return
        if len(records) > _FEW and len({*map(type, records)}) == 1:
            plan = self._plans[type(records[0])]
            if plan.adds_last and self._insert_all(plan, records):
                return
        summed = any(cls in self._plans and self._plans[cls].totals for cls in {*map(type, records)})
        if summed:
            self._write("SAVEPOINT added", ())
        for at, record in enumerate(records):
            try:
                self.add(record)
            except Exception:
                if self.error is None:
                    self._write("ROLLBACK TO added", ()) if summed else self._delete(records[:at])
                raise
        if summed:
            self._write("RELEASE added", ())

    def replace(self, record: object) -> None:
        """Replace the record that has the same key. Raises `RecordNotFound`, `RecordConflict` or `ValueError`."""
        plan = self._plans[type(record)]
        key = plan.key.checked(record)
        place = plan, key
        if plan.sums:
            self._move_newest(plan)
        old = self._recall(plan, key)
        if old is None:
            raise RecordNotFound(f"no {type(record).__name__} {key}")
        changes, as_given = plan.changes(record, old)
        if not changes:
            return
        if plan.gathered:
            self._move_newest(plan)
        if self._write(plan.update(tuple(changes)), (*changes.values(), *key)).rowcount != 1:
            raise RecordConflict(f"a unique key of {type(record).__name__} {key} is taken")
        self._recent.renew(place, record if as_given else None)
        if plan.settings and not plan.settings.isdisjoint(changes):
            self._count_settings()

    def remove(self, cls: type[Any], *key: object) -> None:
        """Delete the record with this key. Raises `RecordNotFound`."""
        plan = self._plans[cls]
        try:
            bound = plan.key.accept(key)
        except ValueError:
            bound = None
        self._move_newest(plan)
        if bound is not None and plan.retire:
            self._write(plan.retire, bound)
        if bound is None or not self._write(plan.delete, bound).rowcount:
            raise RecordNotFound(f"no {cls.__name__} {key}")
        if plan.settings:
            self._count_settings()
        if plan.record.texts:
            self._recent.removed_texts = True
        self._recent.drop((plan, bound))

    def take(self, cls: type[R], index: str, *where: object) -> R | None:
        """Return the first record of an index prefix: one step runs at a time."""
        return next(iter(self.page(cls, index, *where, limit=1)), None)

    def notify(self, topic: str) -> None:
        """Post a notice after the commit."""
        if topic not in self.topics:
            self.topics = (*self.topics, topic)

    def restore(self, records: Sequence[object]) -> None:
        """Store records of one class with the numbers that they have; leave out those that are there already."""
        for record in records:
            plan = self._plans[type(record)]
            self._move_newest(plan)
            self._write(plan.restore, plan.whole_row.checked(record))
            if plan.settings:
                self._count_settings()

    def retire_numbers(self, cls: type[Any], last: int) -> None:
        """Keep the numbers up to this one from being used again."""
        plan = self._plans[cls]
        self._move_newest(plan)
        self._write(KEEP_LAST, (plan.record.table, last))

    def mark_unfinished(self, unfinished: bool, anew: bool) -> bool:
        """Mark a copy as not completed, or no more. Returns whether one had begun, or may begin `anew`."""
        sql = 'DELETE FROM "modelyard_migrations" WHERE name = ? AND (number = -1 OR ?)'
        may = anew | bool(self._write(sql, (UNFINISHED, int(anew))).rowcount)
        if unfinished and may:
            self._write('INSERT INTO "modelyard_migrations" (number, name) VALUES (-1, ?)', (UNFINISHED,))
        return may

    def touch(self, sql: str) -> None:
        """Run a statement that writes a page but changes no record, so that the commit has something to sync."""
        self._write(sql, ())

    def _insert_all(self, plan: StatementPlan, records: Sequence[object]) -> bool:
        """Insert new records of one class, or none if one is refused. Returns whether they were inserted."""
        done = inserted = 0
        with suppress(TypeError, ValueError):
            rows, totals = [*map(plan.row_alone, records)], plan.rows_of_totals(records)
            self._move_newest(plan)
            if plan.next_number:
                rows = [(*row, number) for number, row in enumerate(rows, self._rows(plan.next_number, ())[0][0])]
            for size in _SIZES:
                while len(rows) - done >= size:
                    values = tuple(chain.from_iterable(rows[done : done + size]))
                    inserted += self._write(plan.insert_many(size), values).rowcount
                    done += size
            if plan.settings:
                self._count_settings()
        if inserted < len(records):
            self._write(plan.delete_last, (inserted,))
            return False
        for total in totals:
            self._write(plan.add_total, total)
        return True

    def _delete(self, records: Sequence[object]) -> None:
        """Delete records that this step has added, so that their numbers are free again."""
        for record in records:
            plan = self._plans[type(record)]
            self._move_newest(plan)
            self._write(plan.delete, plan.key.checked(record))

    def _move_newest(self, plan: StatementPlan) -> None:
        """Have all records of a class in the table that has the indexes, and all totals in theirs."""
        for sql in plan.move_newest:
            self._write(sql, ())

    def _count_settings(self) -> None:
        """Count that a setting has changed, and have those notice who remember settings."""
        self._write(COUNT_SETTINGS, ())
        self.notify(SETTINGS)

    def _found(self, plan: StatementPlan, key: Row) -> Any:
        try:
            return self._recall(plan, plan.key.accept(key))
        except ValueError:
            return None

    def _recall(self, plan: StatementPlan, key: Row) -> Any:
        """Return the record with a key, remembered or out of the file, or None."""
        try:
            return self._recent.find((plan, key)) or self._read(plan, key)
        except SqliteError as error:
            self.error = error
            raise to_store_error(error) from error

    def _read(self, plan: StatementPlan, key: Row) -> Any:
        rows = self._rows(plan.get, key)
        return self._record(plan, rows[0]) if rows else None

    def _record(self, plan: StatementPlan, row: Row) -> Any:
        record = plan.record_of(row)
        self._recent.keep((plan, plan.key_of(row)), record)
        return record

    def _records(self, plan: StatementPlan, rows: list[Row]) -> list[Any]:
        """Remember the records of a short page, such as the head of a queue: they are read to be replaced."""
        if len(rows) <= _SHORT_PAGE:
            return [self._record(plan, row) for row in rows]
        return super()._records(plan, rows)

    def _write(self, sql: str, values: Row) -> Any:
        """Return the cursor, which knows what changed. Raises `ValueError` for a value that SQLite cannot hold."""
        self.dirty = True
        try:
            return self._execute(sql, values)
        except SqliteError as error:
            self.error = error
            raise to_store_error(error) from error
        except (UnicodeEncodeError, OverflowError) as error:
            raise ValueError(f"a value cannot be stored: {error}") from error
