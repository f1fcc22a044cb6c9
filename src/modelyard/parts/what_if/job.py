"""The work of a question: each stored request is asked again, several at a time, until all are or the budget is spent.

What came of a request is a record, written as it is booked. So an attempt that was killed continues with the others.
"""

import threading
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from decimal import Decimal
from itertools import islice

import attrs

from modelyard.domain.job import JobProgress
from modelyard.domain.usage import EXACT
from modelyard.errors import BackendError, BudgetExceeded, NotFound, Overloaded, RateLimited, StoreError
from modelyard.parts.own_lane import end_job
from modelyard.parts.traffic.traffic_row import TrafficRow
from modelyard.parts.what_if.asking import Asking, BudgetSpent, failure_text
from modelyard.parts.what_if.question import Question, chosen_rows
from modelyard.parts.what_if.records import STARTED, AskedRow, AskedTraffic
from modelyard.platform.evaluations.row_evaluation import Retries
from modelyard.platform.jobs.claims import ClaimedJob, fenced, job_topic
from modelyard.platform.paging import get_or_none, iter_index_live
from modelyard.protocols import Tx

CONCURRENCY = 8
RETRIES = 4
"""How many requests are asked at a time, and how often one is asked again that fails for now."""

SHOWN_AFTER = 25
"""After so many rows, the progress is written."""

Turns = Generator[None, None, None]


class _Stopped(Exception):
    """Raised in a request that waits when the job stops."""


def ask_again(claimed: ClaimedJob) -> Turns:
    """Ask the stored requests of a question again. Yields after each write, and while it waits."""
    yield from _Attempt(claimed).turns()


def _done(future: Future[None]) -> threading.Event:
    """Return what is set when the future is done."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    return done


class _Attempt:
    def __init__(self, claimed: ClaimedJob) -> None:
        self.claimed, self.runtime = claimed, claimed.runtime
        asked = self.runtime.store.read(lambda snapshot: get_or_none(snapshot, AskedTraffic, claimed.job.id))
        if asked is None:
            raise NotFound("What-if", claimed.job.id)
        self.asked, self.question = asked, Question.of_plain(asked.content)
        options, judge = self.question.options, self.question.judge
        self.asking = Asking(self.runtime, claimed.principal, asked, options, judge)
        self.stopping, self.done = False, 0

    def turns(self) -> Turns:
        if self.claimed.progress.total is None:
            total = self.asked.content["rows"]
            self.claimed.record(STARTED, {"total": total}, total=total)
            yield
        self._count_spent()
        reason = ""
        try:
            yield from self._ask_all(self._rows())
        except BudgetSpent as spent:
            left = f"the budget of {self.asked.budget:f} USD has less left than the {spent.most:f} of another request"
            reason = f"{left}; give it more, or ask for shorter answers or of fewer rows"
        end_job(self.claimed, {"reason": reason})

    def _rows(self) -> Iterator[TrafficRow]:
        """Return the rows that are left."""
        read = chosen_rows(self.runtime, self.claimed.principal, self.question, self.claimed.job.created_at)
        return filter(self._is_left, islice(read, self.question.collect.limit))

    def _is_left(self, row: TrafficRow) -> bool:
        known = self.runtime.store.read(lambda snapshot: get_or_none(snapshot, AskedRow, self.asked.id, row.id))
        return known is None or not known.done

    def _count_spent(self) -> None:
        """Count what is done, and release what an attempt that was killed had reserved."""
        spent = Decimal(0)
        for row in iter_index_live(self.runtime, AskedRow, "by_what_if", self.asked.id):
            spent = EXACT.add(spent, row.spent)
            self.done += row.done

        def step(tx: Tx) -> None:
            fenced(tx, self.claimed.claim)
            asked = get_or_none(tx, AskedTraffic, self.asked.id)
            if asked is not None and asked.spent != spent:
                tx.replace(attrs.evolve(asked, spent=spent))

        self.runtime.store.transact(step)

    def _ask_all(self, rows: Iterator[TrafficRow]) -> Turns:
        threads, waiting = ThreadPoolExecutor(CONCURRENCY, "modelyard-what-if"), deque[Future[None]]()
        try:
            while True:
                waiting.extend(threads.submit(self._ask, row) for row in islice(rows, 2 * CONCURRENCY - len(waiting)))
                if not waiting:
                    break
                yield from self._wait(waiting[0])
                waiting.popleft().result()
                self.done += 1
                if self.done % SHOWN_AFTER == 0:
                    self._show()
                    yield
        finally:
            self.stopping = True
            threads.shutdown(cancel_futures=True)
        self._show()
        yield

    def _wait(self, future: Future[None]) -> Turns:
        while not future.done():
            self.runtime.clock.sleep(self.runtime.settings.poll, _done(future))
            if not future.done():
                self._look()
                yield

    def _look(self) -> None:
        """Note whether the job was cancelled. Raises `LeaseLost`."""
        self.claimed.progress = self.runtime.store.read(lambda snapshot: fenced(snapshot, self.claimed.claim))
        self.claimed.moved_at = self.runtime.clock.monotonic()

    def _show(self) -> None:
        """Write how many rows are done. Raises `LeaseLost`."""

        def step(tx: Tx) -> JobProgress:
            progress = fenced(tx, self.claimed.claim)
            progress = attrs.evolve(progress, step=self.done)
            tx.replace(progress)
            tx.notify(job_topic(progress.job_id))
            return progress

        self.claimed.write(step)

    # ---- one row, in a thread

    def _ask(self, row: TrafficRow) -> None:
        pauses = Retries(RETRIES, self.runtime.clock).pauses()
        while not self.stopping:
            try:
                self.asking.ask(row)
                return
            except (BudgetSpent, BudgetExceeded, StoreError):
                raise
            except RateLimited as refused:
                self._pause(refused.retry_after)
            except (BackendError, Overloaded) as failure:
                pause = next(pauses, None)
                if pause is None:
                    self.asking.change(row, done=True, error=failure_text(failure))
                    return
                self._pause(max(pause, getattr(failure, "retry_after", None) or 0.0))
            except Exception as failure:  # noqa: BLE001 - whatever is wrong with a row, the others are asked
                self.asking.change(row, done=True, error=failure_text(failure))
                return
        raise _Stopped

    def _pause(self, seconds: float) -> None:
        until = self.runtime.clock.monotonic() + seconds
        while (left := until - self.runtime.clock.monotonic()) > 0:
            if self.stopping:
                raise _Stopped
            self.runtime.clock.sleep(min(left, self.runtime.settings.poll))
