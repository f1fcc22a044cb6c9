"""What a transaction knows and has yet to send: the records that it has read, and the writes of its steps.

Writes are held back and leave together, with the commit or with a question whose answer they change. A step that raises
is undone here, unless its writes were sent already. Several replacements of one record become one.
"""

from collections.abc import Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any

from modelyard.parts.postgres.pages import Row, Statement
from modelyard.parts.postgres.rows import RecordPlan
from modelyard.parts.postgres.wire import Wire

At = tuple[RecordPlan, Row]


class Known:
    """A row that was read or is to be written; its record is made when it is asked for."""

    __slots__ = ("_record", "plan", "row")

    def __init__(self, plan: RecordPlan, row: Row, record: Any = None) -> None:
        self.plan, self.row, self._record = plan, row, record

    @property
    def record(self) -> Any:
        """The record of the row."""
        if self._record is None:
            self._record = self.plan.record_of(self.row)
        return self._record

    def changed(self, changes: dict[int, Any], record: Any = None) -> "Known":
        """Return the row with these values at these positions, and the record that has them, if it is known."""
        return Known(self.plan, tuple([changes.get(at, value) for at, value in enumerate(self.row)]), record)


class _Write:
    """A write that was not sent yet. `row` is that of an added record; `changes` are those of one that is replaced.

    `sums` is a record whose sums are added to what is there, which was not read here.
    """

    __slots__ = ("changes", "key", "row", "step", "sums")

    def __init__(
        self, step: int, key: Row, row: Row | None = None, changes: dict[int, Any] | None = None, sums: Any = None
    ) -> None:
        self.step, self.key, self.row, self.changes, self.sums = step, key, row, changes, sums

    @property
    def kind(self) -> str:
        return "add" if self.row is not None else "accumulate" if self.sums is not None else "change"

    def merge(self, changes: dict[int, Any]) -> "_Write":
        """Return this write with later changes of the same record."""
        if self.row is not None:
            row = tuple([changes.get(at, value) for at, value in enumerate(self.row)])
            return _Write(self.step, self.key, row)
        return _Write(self.step, self.key, changes={**(self.changes or {}), **changes})


class Batch:
    """The knowledge and the writes of a transaction of one or more steps.

    Unless it is `alone`, transactions of other domains run at the same time.
    """

    def __init__(self, wire: Wire, alone: bool = True) -> None:
        self.wire, self._alone = wire, alone
        self.known: dict[At, Known | None] = {}
        self.ahead: dict[Statement, list[Row]] = {}
        self.wrote = self.changed_settings = False
        self.sent_by_step = False
        self._step = 0
        self._writes: dict[RecordPlan, list[_Write]] = {}
        self._last: dict[At, int] = {}
        self._touched: set[RecordPlan] = set()
        self._before: dict[At, Known | object | None] = {}
        self._merged: dict[tuple[RecordPlan, int], _Write] = {}
        self.topics: set[str] = set()
        self._topics_before: frozenset[str] = frozenset()

    def begin_step(self) -> None:
        """Note that what follows is another step's."""
        self._step += 1
        self.sent_by_step = False
        self._before, self._merged, self._topics_before = {}, {}, frozenset(self.topics)

    # ---- writes ----

    def add(self, plan: RecordPlan, key: Row, row: Row, record: Any = None) -> None:
        """Hold back the insertion of a row. `record` is what the row has, which has no number yet."""
        self._hold(plan, _Write(self._step, key, row))
        self.count_settings(plan)
        self._know(plan, key, Known(plan, row, record))

    def accumulate(self, plan: RecordPlan, key: Row, record: Any) -> None:
        """Hold back the addition of the sums of a record to those of the one with its key, which was not read.

        Raises `ValueError` for a sum that cannot be stored.
        """
        at = self._last.get((plan, key))
        if at is None:
            self._hold(plan, _Write(self._step, key, sums=record))
            return
        held = self._writes[plan][at]
        total = held.sums + record
        plan.row_of(total)
        self._keep_before(plan, at, held)
        self._writes[plan][at] = _Write(held.step, key, sums=total)

    def replace(self, plan: RecordPlan, key: Row, known: Known, changes: dict[int, Any], record: Any) -> None:
        """Hold back the changes of a row, together with earlier ones unless their order matters."""
        at = self._last.get((plan, key))
        if at is None or plan.touches_unique(changes):
            self._hold(plan, _Write(self._step, key, changes=changes))
        else:
            self._merge(plan, at, changes)
        self.changed_settings = self.changed_settings or not plan.settings.isdisjoint(changes)
        self._know(plan, key, known.changed(changes, record))

    def remove(self, plan: RecordPlan, key: Row) -> None:
        """Hold back the removal of a row."""
        self._hold(plan, _Write(self._step, key))
        del self._last[plan, key]
        self.count_settings(plan)
        self._know(plan, key, None)

    def write(self, statement: Statement) -> None:
        """Send a statement of a step that writes nothing else, with the commit."""
        self.wrote = True
        self.wire.later(*statement)

    def count_settings(self, plan: RecordPlan) -> None:
        """Note that records appear or disappear, which counts where they have settings."""
        self.changed_settings = self.changed_settings or bool(plan.settings)

    def _hold(self, plan: RecordPlan, write: _Write) -> None:
        writes = self._writes.setdefault(plan, [])
        self._last[plan, write.key] = len(writes)
        writes.append(write)
        self._touched.add(plan)

    def _merge(self, plan: RecordPlan, at: int, changes: dict[int, Any]) -> None:
        write = self._writes[plan][at]
        self._keep_before(plan, at, write)
        self._writes[plan][at] = write.merge(changes)

    def _keep_before(self, plan: RecordPlan, at: int, write: _Write) -> None:
        """Keep a write of an earlier step, which this one changes, so that it can be undone."""
        if write.step != self._step:
            self._merged.setdefault((plan, at), write)

    def _know(self, plan: RecordPlan, key: Row, known: Known | None) -> None:
        at = (plan, key)
        self._before.setdefault(at, self.known.get(at, _NOTHING))
        self.known[at] = known

    # ---- reads ----

    def learn(self, plan: RecordPlan, row: Row) -> None:
        """Know a row that was locked and read with another, unless it was not there, or is written by these steps."""
        key = plan.key_of(row)
        if plan not in self._touched and None not in key:
            self.known.setdefault((plan, key), Known(plan, row))

    def rows(self, plan: RecordPlan, sql: str, values: Row) -> list[Row]:
        """Return the rows of a statement, which sees every write of these steps."""
        if self.may_differ(plan, sql, values):
            if self._writes.get(plan):
                self.send()
        elif (found := self.ahead.get((sql, values))) is not None:
            return found
        return self.wire.rows(sql, values)

    def may_differ(self, plan: RecordPlan, sql: str, values: Row) -> bool:
        """Return whether the writes of these steps may change what a statement returns."""
        if plan not in self._touched:
            return False
        at = (plan, values)
        return sql != plan.get or at in self.known or at in self._last

    # ---- the end of a step, and of all ----

    def undo_step(self) -> None:
        """Forget what this step has written, none of which was sent."""
        for (plan, place), before in self._merged.items():
            self._writes[plan][place] = before
        self._writes = {
            plan: [write for write in writes if write.step != self._step] for plan, writes in self._writes.items()
        }
        self._last = {
            (plan, write.key): place for plan, writes in self._writes.items() for place, write in enumerate(writes)
        }
        for at, known in self._before.items():
            if known is _NOTHING:
                self.known.pop(at, None)
            else:
                self.known[at] = known  # type: ignore[assignment]
        self.topics = {*self._topics_before}
        self.begin_step()

    def send(self) -> None:
        """Hand the writes to the wire."""
        last = [writes[-1].step for writes in self._writes.values() if writes]
        self.sent_by_step = self.sent_by_step or self._step in last or bool(self._merged)
        self.wrote = self.wrote or bool(last)
        self.wire.extend(self._number_locks())
        self.wire.extend(self._statements())
        self._writes, self._last, self._merged = {}, {}, {}

    def renew(self) -> None:
        """Send the writes of the steps before, and forget what was read ahead and may not hold after them."""
        if self._touched:
            self.send()
            self._touched.clear()
            self.ahead.clear()

    def _number_locks(self) -> list[Statement]:
        """Return the statements that lock the numbers of added records, where other steps run at the same time.

        So numbers are committed in their order.
        """
        if self._alone:
            return []
        numbered = [
            lock
            for plan, writes in self._writes.items()
            if (lock := plan.number_lock) and any(write.row is not None for write in writes)
        ]
        return sorted(numbered)

    def _statements(self) -> Iterator[Statement]:
        for plan, some in self._writes.items():
            for kind, run in groupby(some, attrgetter("kind")):
                if kind == "add":
                    yield from plan.inserts([write.row or () for write in run])
                elif kind == "accumulate":
                    yield from [(plan.accumulate, plan.row_of(write.sums)) for write in run]
                else:
                    for write in run:
                        yield plan.update(write.key, write.changes) if write.changes else (plan.delete, write.key)


_NOTHING = object()
