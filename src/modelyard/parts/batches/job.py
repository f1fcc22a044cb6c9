"""The work of a batch: its lines are checked, then answered several at a time, and written in their order.

The job's saved state is what it has written: parts of its files, and the number of lines that they answer. So a batch
that was killed continues after the last part, and a batch that ends in any way keeps its parts (`ends`).
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, BinaryIO

import attrs

from modelyard.domain.identity import Attribution
from modelyard.domain.job import Job, JobProgress
from modelyard.domain.record import EMPTY
from modelyard.errors import (
    BackendError,
    BudgetExceeded,
    ModelyardError,
    NotFound,
    Overloaded,
    RateLimited,
    StoreError,
)
from modelyard.lazy import log
from modelyard.parts.batches.endpoints import ENDPOINTS, Asked
from modelyard.parts.batches.files.joined import open_joined
from modelyard.parts.batches.files.records import StoredFile
from modelyard.parts.batches.lines import (
    Line,
    ResultLine,
    answer_line,
    expired_line,
    failure_line,
    problems_in,
    read_lines,
)
from modelyard.parts.batches.parts import Parts, PartWriter
from modelyard.parts.batches.records import ERROR, EXPIRED, OUTPUT, STARTED, WINDOW
from modelyard.platform.artifacts import remove_loose
from modelyard.platform.evaluations.row_evaluation import Retries
from modelyard.platform.jobs.claims import ClaimedJob, fenced, job_topic, requester_principal, require_claim
from modelyard.platform.jobs.job_type import JobTypes
from modelyard.platform.jobs.queue import announce, cancel, fail, save_resume, succeed
from modelyard.platform.paging import get_or_none
from modelyard.protocols import Snapshot, Tx

CONCURRENCY = 16
"""How many lines are answered at a time."""

AHEAD = 4 * CONCURRENCY
"""How many lines are in memory at most: those that wait, and those whose answers wait for an earlier one."""

LINES_AT_ONCE = 50
SECONDS_BETWEEN = 5.0
"""What is answered is written when it is so many lines, or so many seconds since the last."""

RETRIES = 4
"""How often a line is asked again that the backend refused for now. A rate limit is waited for as long as it takes."""

Turns = Generator[None, None, None]

End = Callable[[Tx, JobTypes, Job, str, datetime], Job]


def run_batch(claimed: ClaimedJob) -> Turns:
    """Answer the lines of a batch. Yields after each write, and while it waits."""
    with remove_loose(claimed.runtime.artifacts, claimed.loose):
        yield from _Batch(claimed).turns()


def input_of(snapshot: Snapshot, job: Job) -> Iterable[tuple[type, str]]:
    """Return the file that a batch reads."""
    return [(StoredFile, job.spec["input_file_id"])]


class _Stopped(Exception):
    """Raised in a line that waits when the batch stops."""


class _Batch:
    """One attempt at a batch."""

    def __init__(self, claimed: ClaimedJob) -> None:
        self.claimed, self.runtime, self.spec = claimed, claimed.runtime, claimed.job.spec
        self.principal = requester_principal(self.runtime, claimed.job)
        self.attribution = Attribution(claimed.job.entity, claimed.job.project)
        self.parts = PartWriter(self.runtime.artifacts, claimed.loose)
        self.expires_at = claimed.job.created_at + WINDOW
        self.answered: list[ResultLine] = []
        self.written_at = self.runtime.clock.monotonic()
        self.stopping = False

    # ---- the turns

    def turns(self) -> Turns:
        if self.claimed.progress.total is None:
            with self._input() as file:
                count, problems = problems_in(file, self.spec["endpoint"])
            if problems:
                says = f"{problems[0].message}; correct the input file, then start a new batch"
                self._end_failed(says, {"problems": [attrs.asdict(problem) for problem in problems]})
                return
            self.claimed.record(STARTED, {"total": count}, total=count)
            yield
        try:
            with self._input() as file:
                yield from self._answer_all(self._left(file))
        except BudgetExceeded as error:
            self._end_failed(str(error))
            return
        if self._late:
            self._write_expired()
            self._end_failed("it was not answered within 24 hours; what was answered is kept", {EXPIRED: True})
        else:
            self._end(succeed)

    @property
    def _late(self) -> bool:
        unanswered = self.claimed.job.resume_step < (self.claimed.progress.total or 0)
        return unanswered and self.runtime.clock.now() >= self.expires_at

    def _input(self) -> BinaryIO:
        file_id = self.spec["input_file_id"]
        file = self.runtime.store.read(lambda snapshot: get_or_none(snapshot, StoredFile, file_id))
        if file is None:
            raise NotFound("File", file_id, "upload the input again and start a new batch")
        return open_joined(self.runtime.artifacts, file.parts)

    def _left(self, file: BinaryIO) -> Iterator[Line]:
        return islice(read_lines(file, self.spec["endpoint"]), self.claimed.job.resume_step, None)

    def _answer_all(self, lines: Iterator[Line]) -> Turns:
        """Answer lines until none is left, or it is too late. At any end, write what was answered."""
        threads = ThreadPoolExecutor(CONCURRENCY, "modelyard-batch")
        waiting = deque[Future[ResultLine]]()
        try:
            while not self._late:
                waiting.extend(threads.submit(self._answer, line) for line in islice(lines, AHEAD - len(waiting)))
                if not waiting:
                    return
                yield from self._take(waiting)
        finally:
            self.stopping = True
            threads.shutdown(wait=False, cancel_futures=True)
            self._take_rest(waiting)
            threads.shutdown()
            if self.answered:
                self._write()

    def _take(self, waiting: deque[Future[ResultLine]]) -> Turns:
        """Take the answer to the first line that waits, if it comes soon, and write when it is time."""
        if not waiting[0].done():
            answered = threading.Event()
            waiting[0].add_done_callback(lambda _: answered.set())
            self.runtime.clock.sleep(self.runtime.settings.poll, answered)
        if waiting[0].done():
            self.answered.append(waiting[0].result())
            waiting.popleft()
        else:
            self._look()
            yield
        since = self.runtime.clock.monotonic() - self.written_at
        if self.answered and (len(self.answered) >= LINES_AT_ONCE or since >= SECONDS_BETWEEN):
            self._write()
            yield

    def _take_rest(self, waiting: deque[Future[ResultLine]]) -> None:
        for future in waiting:
            if future.cancelled() or future.exception() is not None:
                return
            self.answered.append(future.result())

    def _look(self) -> None:
        """Note whether the batch was cancelled. Raises `LeaseLost`."""
        self.claimed.progress = self.runtime.store.read(lambda snapshot: fenced(snapshot, self.claimed.claim))
        self.claimed.moved_at = self.runtime.clock.monotonic()

    # ---- one line, in a thread

    def _answer(self, line: Line) -> ResultLine:
        """Answer a line. A failure is its answer, except a used up budget and a fault of the store."""
        name, pauses = f"batch_req_{self.runtime.ids()}", Retries(RETRIES, self.runtime.clock).pauses()
        asked = Asked(self.runtime, self.principal, self.attribution, line.body)
        while True:
            try:
                return answer_line(name, line, ENDPOINTS[self.spec["endpoint"]](asked))
            except (BudgetExceeded, StoreError):
                raise
            except RateLimited as refused:
                self._pause(refused.retry_after)
            except (BackendError, Overloaded) as failure:
                pause = next(pauses, None)
                if pause is None:
                    return failure_line(name, line, failure)
                self._pause(max(pause, getattr(failure, "retry_after", None) or 0.0))
            except Exception as failure:  # noqa: BLE001 - whatever a line asks for, the others are answered
                if not isinstance(failure, ModelyardError):
                    log.exception("line %d of batch %s failed", line.number, self.claimed.job.id)
                return failure_line(name, line, failure)

    def _pause(self, seconds: float) -> None:
        """Wait, and look now and then whether the batch stops. Raises `_Stopped`."""
        until = self.runtime.clock.monotonic() + seconds
        while (left := until - self.runtime.clock.monotonic()) > 0:
            if self.stopping:
                raise _Stopped
            self.runtime.clock.sleep(min(left, self.runtime.settings.poll))

    # ---- what is written

    def _write(self) -> None:
        """Write what was answered, and how far it comes, in one transaction. Raises `LeaseLost`."""
        files, done = self.claimed.job.resume, self.claimed.job.resume_step
        for kind, ok in ((OUTPUT, True), (ERROR, False)):
            files = self.parts.add(files, kind, done, (result.line for result in self.answered if result.ok is ok))
        self._save(files, done + len(self.answered))

    def _write_expired(self) -> None:
        files, total = self.claimed.job.resume, self.claimed.progress.total or 0
        with self._input() as file:
            rest = (expired_line(f"batch_req_{self.runtime.ids()}", line) for line in self._left(file))
            files = self.parts.add(files, ERROR, self.claimed.job.resume_step, rest)
        self._save(files, total)

    def _save(self, files: Parts, done: int) -> None:
        now = self.runtime.clock.now()

        def step(tx: Tx) -> JobProgress:
            progress = attrs.evolve(save_resume(tx, self.claimed.claim, done, files, now), step=done)
            tx.replace(progress)
            tx.notify(job_topic(progress.job_id))
            return progress

        self.claimed.write(step)
        self.claimed.job = attrs.evolve(self.claimed.job, resume=files, resume_step=done)
        self.parts.recorded()
        self.answered, self.written_at = [], self.runtime.clock.monotonic()

    # ---- its end

    def _end_failed(self, message: str, result: Mapping[str, Any] = EMPTY) -> None:
        self._end(partial(_failing, message), result)

    def _end(self, end: End, result: Mapping[str, Any] = EMPTY) -> None:
        event_id, now, types = self.runtime.ids(), self.runtime.clock.now(), self.runtime.job_types

        def step(tx: Tx) -> Job:
            job, progress = require_claim(tx, self.claimed.claim), fenced(tx, self.claimed.claim)
            if progress.cancelled_by:
                return cancel(tx, types, job, event_id, progress.cancelled_by, now)
            return end(tx, types, attrs.evolve(job, result={**job.result, **result}), event_id, now)

        self.claimed.job = announce(self.runtime, self.runtime.store.transact(step))


def _failing(message: str, tx: Tx, types: JobTypes, job: Job, event_id: str, now: datetime) -> Job:
    return fail(tx, types, job, event_id, message, now)
