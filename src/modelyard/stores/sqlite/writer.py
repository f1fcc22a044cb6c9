"""The connection that writes: it runs one transaction for a group of calls."""

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

from modelyard.errors import StoreBusy
from modelyard.protocols import Clock, Tx
from modelyard.stores.pending_steps import PendingStep, interrupts_leader
from modelyard.stores.sqlite.errors import SqliteError, to_store_error
from modelyard.stores.sqlite.fair_lock import FairLock
from modelyard.stores.sqlite.recent_records_fast import RecentRecords
from modelyard.stores.sqlite.rows import StatementPlan
from modelyard.stores.sqlite.tx import SqliteTx

T = TypeVar("T")

_CHECKPOINT_PAGES = 1000
"""Pages of the log from which a commit copies them into the file: what SQLite does by itself."""
_LOGGED = 64
"""Commits after which one has to be made that may copy the log."""


class _Undone(Exception):
    """A step that raised after it wrote has to be undone, and with it the transaction that it shares with others."""


class Writer:
    """The only connection that writes.

    If `power` is true, durable steps commit at synchronous FULL and the others at NORMAL. `post` is called with the
    topics that a commit notifies. Not thread-safe: only the leader of a group uses it. `unsynced` is true while
    acknowledged records wait for a sync.
    """

    def __init__(
        self,
        connection: Any,
        plans: Mapping[type, StatementPlan],
        clock: Clock,
        fair_lock: FairLock,
        power: bool,
        post: Callable[[Collection[str]], None],
    ) -> None:
        self._connection = connection
        self._execute = connection.cursor().execute
        self._begin = partial(self._execute, "BEGIN IMMEDIATE")
        self.recent = RecentRecords(self._execute)
        self._plans = plans
        self._clock = clock
        self._fair_lock = fair_lock
        self._power, self._post = power, post
        self._level: str | None = None
        self._copies_log: bool | None = True
        self._commits_without_wait = 0
        self._committing = False
        self.unsynced: bool = False

    def run(self, group: Sequence[PendingStep[Any]], wait: bool = True) -> float:
        """Settle every call, once all that it saw is committed. Returns how many seconds the commit took.

        Where another process holds the file, only those calls are settled whose patience is at its end. Without `wait`
        no call is settled there, nor where one of them is durable, or the log is due to be copied into the file: the
        disk is not waited for.

        Raises only what interrupts this thread; the effects of calls that are not settled are then rolled back.
        """
        self._committing = False
        try:
            return self._run_together(group, wait)
        except StoreBusy as busy:
            now = time.monotonic()
            for call in group:  # those that came later wait for as long
                if call is group[0] or not self._fair_lock.left(call.since, now):
                    call.fail(StoreBusy(str(busy)))
        except (SqliteError, _Undone) as error:
            self._roll_back()
            self._run_apart(group, error, wait)
        except BaseException:
            if self._committing and not self._connection.in_transaction:
                for call in group:
                    call.settled = True
            self._roll_back()
            raise
        return 0.0

    def run_one(self, step: Callable[[Tx], T], durable: bool, wait: bool = True) -> tuple[T] | None:
        """Run a step in a transaction of its own, and return its result in a tuple.

        Without `wait` the step is not run, and None returned, where `run` would leave its call unsettled. Raises what
        the step raises, or `StoreError`.
        """
        tx = SqliteTx(self._execute, self._plans, self._clock, self.recent)
        try:
            if not self._begin_transaction(durable, wait):
                return None
            value = step(tx)
            tx.end()
            if tx.error is not None:
                raise tx.error
            self._execute("COMMIT")
        except BaseException as error:
            tx.end()
            self._roll_back(tx.dirty)
            if tx.error is not None and not interrupts_leader(error):
                raise to_store_error(tx.error) from tx.error
            if isinstance(error, SqliteError):
                raise to_store_error(error) from error
            raise
        if tx.dirty:
            self.unsynced = self._power and self._level == "NORMAL"
        if tx.topics:
            self._post(tx.topics)
        return (value,)

    def close(self) -> None:
        self._connection.close()

    def _begin_transaction(self, durable: bool, wait: bool, since: float | None = None) -> bool:
        """Begin a transaction. Without `wait` return False instead where the disk or a process would be waited for.

        Its commit is synced if `durable` is true and the store is to survive a loss of power. Raises `StoreBusy` if
        another process holds the file until the patience that began at `since`, or now, is at its end.
        """
        if self._connection.in_transaction:  # which an interrupt left open
            self._roll_back()
        level = "FULL" if durable and self._power else "NORMAL"
        if wait:
            self._commits_without_wait = 0
        elif level == "FULL" or self._commits_without_wait == _LOGGED:
            return False
        else:
            self._commits_without_wait += 1
        if level != self._level:
            self._synchronize(level)
        if wait is not self._copies_log:
            self._copy_log(wait)
        if not self._fair_lock.enter_at_once(self._begin):
            if not wait:
                return False
            self._fair_lock.enter(self._begin, since)
        self.recent.begin()
        return True

    def _run_together(self, group: Sequence[PendingStep[Any]], wait: bool) -> float:
        if not self._begin_transaction(any(map(_is_durable, group)), wait, group[0].since):
            return 0.0
        wrote = False
        topics: set[str] = set()
        for call in group:
            tx = SqliteTx(self._execute, self._plans, self._clock, self.recent)
            self._attempt(call, tx)
            if call.error is None:
                wrote = wrote or tx.dirty
                topics.update(tx.topics)
            elif tx.dirty and len(group) > 1:
                raise _Undone
            elif tx.dirty:
                self._roll_back()
        seconds = self._commit(wrote)
        for call in group:
            call.settled = True
        if topics:
            self._post(topics)
        return seconds

    def _run_apart(self, group: Sequence[PendingStep[Any]], error: Exception, wait: bool) -> None:
        """Run the two halves of a failed group, so that in the end no call suffers from the error of another.

        If the group was a single call, that one has failed.
        """
        if len(group) == 1:
            group[0].fail(to_store_error(error))
            return
        middle = len(group) // 2
        self.run(group[:middle], wait)
        self.run(group[middle:], wait)

    def _synchronize(self, level: str) -> None:
        """Set how the next commits reach the disk; only between transactions."""
        self._level = None
        self._execute(f"PRAGMA synchronous={level}")
        self._level = level

    def _copy_log(self, allowed: bool) -> None:
        """Set whether the next commits may copy the log into the file, which waits for the disk."""
        self._copies_log = None
        self._execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES if allowed else 0}").fetchall()
        self._copies_log = allowed

    def _attempt(self, call: PendingStep[Any], tx: SqliteTx) -> None:
        """Run one step, and keep what it returned or raised. Raises the storage error that it met."""
        try:
            call.value, call.error = call.step(tx), None
        except BaseException as error:
            if interrupts_leader(error):
                raise
            call.error = error
        finally:
            tx.end()
        if tx.error is not None:
            raise tx.error

    def _commit(self, wrote: bool) -> float:
        if not self._connection.in_transaction:
            return 0.0
        started = time.perf_counter()
        self._committing = True
        try:
            self._execute("COMMIT")
        except SqliteError:
            self._committing = False
            raise
        if wrote:
            self.unsynced = self._power and self._level == "NORMAL"
        return time.perf_counter() - started

    def _roll_back(self, wrote: bool = True) -> None:
        """End an open transaction, of which nothing stays."""
        if wrote:
            self.recent.forget()
        if self._connection.in_transaction:
            with contextlib.suppress(SqliteError):  # the transaction is gone either way
                self._execute("ROLLBACK")


_is_durable = attrgetter("durable")
