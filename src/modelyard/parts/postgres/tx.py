"""What a query and a step see of a PostgreSQL store.

A step that adds a record takes for granted that its keys are free, so that the question need not travel. Where that was
wrong, the steps run again carefully: each asks before it adds.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

from modelyard.domain.record import KEY
from modelyard.errors import RecordConflict, RecordNotFound
from modelyard.parts.postgres.batch import Batch, Known
from modelyard.parts.postgres.pages import Row, Statement
from modelyard.parts.postgres.rows import RecordPlan
from modelyard.stores.columns import Projection
from modelyard.stores.history import MIGRATIONS, UNFINISHED

R = TypeVar("R")
Ask = Callable[[RecordPlan, str, Row], list[Row]]
"""Returns the rows of a statement about one kind of record."""

_SHORT_PAGE = 4


def _ended(*_: object) -> Any:
    raise RuntimeError("the transaction has ended")


class PostgresSnapshot:
    """The read operations of a transaction: `ask` has a statement answered, `now` returns the server's time."""

    def __init__(self, plans: Mapping[type, RecordPlan], ask: Ask, now: Callable[[], float]) -> None:
        self._plans, self._ask, self._now = plans, ask, now

    @property
    def time(self) -> float:
        """The server's clock, in seconds since the epoch."""
        return self._now()

    def end(self) -> None:
        self._ask = self._now = _ended

    def get(self, cls: type[R], *key: object) -> R:
        record: R | None = self._by_key(self._plans[cls], key)
        if record is None:
            raise RecordNotFound(f"no {cls.__name__} {key}")
        return record

    def find(self, cls: type[R], unique: str, *values: object) -> R | None:
        """Return the record with these values of a unique key, or None."""
        plan = self._plans[cls]
        if unique == KEY:
            return self._by_key(plan, values)  # type: ignore[no-any-return]
        lookup = plan.find[unique]
        bound = _accepted(lookup.values, values)
        rows = [] if bound is None or None in bound else self._ask(plan, lookup.sql, bound)
        return self._records(plan, rows)[0] if rows else None

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
        return self._records(plan, self._window(plan, plan.selected, index, where, after, limit, descending))

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
        plan = self._plans[cls]
        selected, loads = plan.selection(tuple(columns))
        return plan.values_of(self._window(plan, selected, index, where, after, limit, descending), loads)

    def count(self, cls: type[Any], index: str, *where: object) -> int:
        """Return the number of records with this index prefix."""
        plan = self._plans[cls]
        listing = plan.listings[index]
        values = _accepted(listing.where, where)
        return 0 if values is None else self._ask(plan, *listing.count(values))[0][0]

    def scan(self, cls: type[R], after: Row | None, limit: int, descending: bool = False) -> list[R]:
        plan = self._plans[cls]
        return self._records(plan, self._ask(plan, *plan.by_key.page(plan.selected, (), after, limit, descending)))

    def size(self, cls: type[Any]) -> int:
        plan = self._plans[cls]
        return self._ask(plan, *plan.by_key.count(()))[0][0]  # type: ignore[no-any-return]

    def last_number(self, cls: type[Any]) -> int:
        plan = self._plans[cls]
        return self._ask(plan, *plan.last_number())[0][0]  # type: ignore[no-any-return]

    def _window(
        self,
        plan: RecordPlan,
        selected: str,
        index: str,
        where: Row,
        after: Row | None,
        limit: int,
        descending: bool,
    ) -> list[Row]:
        if limit < 0:
            raise ValueError(f"the limit {limit} is negative")
        listing = plan.listings[index]
        try:
            statement = listing.page(selected, listing.where.accept(where), after, limit, descending)
        except ValueError:  # no record can have such values
            return []
        return self._ask(plan, *statement)

    def _by_key(self, plan: RecordPlan, values: Row) -> Any:
        key = _accepted(plan.key, values)
        rows = [] if key is None else self._ask(plan, plan.get, key)
        return plan.record_of(rows[0]) if rows else None

    def _records(self, plan: RecordPlan, rows: Sequence[Row]) -> list[Any]:
        return [plan.record_of(row) for row in rows]


def _accepted(projection: Projection, values: Row) -> Row | None:
    """Return what SQL binds for these values; None if no record can have them."""
    try:
        return projection.accept(values)
    except ValueError:
        return None


class PostgresTx(PostgresSnapshot):
    """The operations of one step of a batch. `guessed` tells whether the step rests on what was taken for granted."""

    def __init__(
        self, plans: Mapping[type, RecordPlan], batch: Batch, now: Callable[[], float], careful: bool = False
    ) -> None:
        super().__init__(plans, batch.rows, now)
        self._batch, self._careful = batch, careful
        self.guessed = False

    def add(self, record: object) -> None:
        """Store a new record, and add it to its total. Raises `RecordConflict` or `ValueError`."""
        self._add(record)
        self._add_up(record)

    def _add(self, record: object) -> None:
        plan = self._open_plan(record)
        row = plan.row_of(record)
        key = plan.key_of(row)
        if self._is_taken(plan, key):
            raise RecordConflict(f"{type(record).__name__} {key} exists")
        self._refuse_taken(plan, key, row, plan.unique)
        self._batch.add(plan, key, row, record)

    def add_all(self, records: Sequence[object]) -> None:
        """Store new records. Raises what `add` raises for the first that is refused."""
        for at, record in enumerate(records):
            try:
                self._add(record)
            except Exception:
                for added in reversed(records[:at]):
                    plan = self._plans[type(added)]
                    self._batch.remove(plan, plan.key.checked(added))
                raise
        for record in records:
            self._add_up(record)

    def replace(self, record: object) -> None:
        """Replace the record that has the same key.

        Raises `RecordNotFound`, `RecordConflict` or `ValueError`.
        """
        plan = self._open_plan(record)
        key = plan.key.checked(record)
        known = self._look_up(plan, key)
        if known is None:
            raise RecordNotFound(f"no {type(record).__name__} {key}")
        changes = plan.changes(record, known.record, known.row)
        if not changes:
            return
        if plan.touches_unique(changes):
            row = known.changed(changes).row
            changed = {name: at for name, at in plan.unique.items() if not changes.keys().isdisjoint(at)}
            self._refuse_taken(plan, key, row, changed)
        unnumbered = record if len(known.row) < len(plan.columns) else None  # it was added by what is not sent yet
        self._batch.replace(plan, key, known, changes, unnumbered)

    def remove(self, cls: type[Any], *key: object) -> None:
        """Delete the record with this key. Raises `RecordNotFound`."""
        plan = self._plans[cls]
        bound = _accepted(plan.key, key)
        if bound is None or self._look_up(plan, bound) is None:
            raise RecordNotFound(f"no {cls.__name__} {key}")
        self._batch.remove(plan, bound)

    def take(self, cls: type[R], index: str, *where: object) -> R | None:
        """Return the first record of an index prefix that no other transaction has taken, and lock it."""
        plan = self._plans[cls]
        for offset in count():
            try:
                statement = plan.take(index, where, offset)
            except ValueError:  # no record can have such values
                return None
            rows = self._ask(plan, *statement)
            if not rows:
                return None
            width = len(plan.columns)
            row, locked, also = rows[0][:width], rows[0][width], rows[0][width + 1 :]
            if locked:  # else a step is in its domain
                known = self._batch.known[plan, plan.key_of(row)] = Known(plan, row)
                if plan.companion is not None:
                    self._batch.learn(plan.companion, also)
                return known.record  # type: ignore[no-any-return]
        raise AssertionError("a count has no end")

    def notify(self, topic: str) -> None:
        """Notify a topic with the commit."""
        self._batch.topics.add(topic)

    def restore(self, records: Sequence[object]) -> None:
        """Store records of one class with the numbers that they have; leave out those that are there already."""
        plan = self._plans[type(records[0])]
        self._batch.write(plan.restore(records))
        self._batch.count_settings(plan)

    def retire_numbers(self, cls: type[Any], last: int) -> None:
        """Keep the numbers up to this one from being used again."""
        self._batch.write(self._plans[cls].retire_numbers(last))

    def mark_unfinished(self, unfinished: bool, anew: bool) -> bool:
        """Mark a copy as not completed, or no more. Returns whether one had begun, or may begin `anew`."""
        plan = next(iter(self._plans.values()))
        table = f'{plan.table.partition(".")[0]}."{MIGRATIONS}"'
        found = self._batch.wire.rows(f"SELECT 1 FROM {table} WHERE number = -1 AND name = $1", (UNFINISHED,))  # noqa: S608
        if not (found or anew):
            return False
        self._batch.write((f"DELETE FROM {table} WHERE name = $1", (UNFINISHED,)))  # noqa: S608
        if unfinished:
            self._batch.write((f"INSERT INTO {table} VALUES (-1, $1)", (UNFINISHED,)))  # noqa: S608
        return True

    def change_tables(self, statement: Statement) -> None:
        """Send a statement that changes tables with the commit; it must be repeatable."""
        self._batch.write(statement)

    def touch(self) -> None:
        """Have the transaction write, though it changes no record, so that its commit is synced."""
        self._batch.wrote = True

    def _add_up(self, record: object) -> None:
        """Add a record to its total, if its class has one."""
        totals = self._plans[type(record)].record.totals
        if totals is None:
            return
        added = totals[1](record)
        plan = self._plans[type(added)]
        key = plan.key_of(plan.row_of(added))
        if (plan, key) not in self._batch.known:
            self._batch.accumulate(plan, key, added)
        elif (known := self._batch.known[plan, key]) is None:
            self._add(added)
        else:
            self.replace(known.record + added)

    def _open_plan(self, record: object) -> RecordPlan:
        if self._ask is _ended:
            _ended()
        return self._plans[type(record)]

    def _by_key(self, plan: RecordPlan, values: Row) -> Any:
        key = _accepted(plan.key, values)
        known = None if key is None else self._look_up(plan, key, whole=True)
        return None if known is None else known.record

    def _look_up(self, plan: RecordPlan, key: Row, whole: bool = False) -> Known | None:
        """Return what is known of a key, after asking for it if nothing is, or if its number is wanted and unknown."""
        at = (plan, key)
        if self._ask is _ended:
            _ended()
        if at in self._batch.known:
            known = self._batch.known[at]
            if known is None or not whole or plan.is_whole(known.row):
                return known
        rows = self._ask(plan, plan.get, key)
        known = self._batch.known[at] = Known(plan, rows[0]) if rows else None
        return known

    def _is_taken(self, plan: RecordPlan, key: Row) -> bool:
        if self._careful:
            return self._look_up(plan, key) is not None
        at = (plan, key)
        if at not in self._batch.known:
            self.guessed = True
        return self._batch.known.get(at) is not None

    def _refuse_taken(self, plan: RecordPlan, key: Row, row: Row, unique: Mapping[str, Sequence[int]]) -> None:
        """Raise `RecordConflict` if another record has one of these unique keys of the row, or guess that none has."""
        for name, positions in unique.items():
            values = tuple([row[at] for at in positions])
            if None in values:
                continue
            if not self._careful:
                self.guessed = True
                continue
            rows = self._ask(plan, plan.find[name].sql, values)
            if rows and plan.key_of(rows[0]) != key:
                raise RecordConflict(f"the unique key {name} of {plan.record.cls.__name__} {key} is taken")

    def _records(self, plan: RecordPlan, rows: Sequence[Row]) -> list[Any]:
        """Remember the records of a short page, such as the head of a queue: they are read to be replaced."""
        if len(rows) > _SHORT_PAGE:
            return super()._records(plan, rows)
        return [self._remember(plan, row).record for row in rows]

    def _remember(self, plan: RecordPlan, row: Row) -> Known:
        at = (plan, plan.key_of(row))
        known = self._batch.known.get(at)
        if known is None or not plan.is_whole(known.row):
            known = self._batch.known[at] = Known(plan, row)
        return known
