"""Runs of the engine as their owner watches them: waited for, event by event, read when they have ended."""

import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import closing
from datetime import datetime
from functools import partial
from itertools import dropwhile

import attrs

from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobEvent
from modelyard.domain.training import TrainingEvent
from modelyard.errors import JobFailed, NotFound
from modelyard.flow import in_executor
from modelyard.platform.evaluations.result import EvaluationResult
from modelyard.platform.evaluations.transactions import engine_job
from modelyard.platform.jobs.events import events_behind
from modelyard.platform.jobs.queue import announce, files_of, latest_job, request_cancel
from modelyard.platform.jobs.runner import never
from modelyard.platform.jobs.waiting import wait_for_end
from modelyard.platform.paging import check_slice, get_or_none, iter_index, slice_listing
from modelyard.platform.runtime import Runtime
from modelyard.platform.scope import ScopedReader
from modelyard.protocols import Snapshot, Tx


@attrs.frozen
class EndedWork:
    """The last job of a run that was deleted, if it had one; and whether it was to end `now`, for that reason."""

    job: Job | None
    now: bool = False


class Watching:
    """What a principal may see of the engine's runs: part of `platform.evaluations`."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self.runtime, self.principal, self._sight = runtime, principal, ScopedReader(principal)

    def wait(self, run_id: str, timeout: float | None = None) -> EvaluationResult:
        """The result of a run, when it has completed. Where no worker lives, this thread works on it.

        Raises `NotFound`, `JobFailed`; and TimeoutError after `timeout` seconds.
        """
        until = None if timeout is None else self.runtime.clock.monotonic() + timeout
        with closing(self._turns(run_id)) as waiting:
            for _ in waiting:
                if until is not None and self.runtime.clock.monotonic() >= until:
                    break
        if self._job(run_id).ended:
            return self._completed(run_id)
        raise TimeoutError(f"evaluation run {run_id} has not ended after {timeout} seconds")

    def events(self, run_id: str, after: str | None = None) -> Iterator[TrainingEvent]:
        """What happens to a run, live, until it has ended; behind the event with the id `after`, or from the first.

        Where no worker lives, this thread works on it; leaving the loop gives it back. Raises `NotFound`.
        """
        return self._events(run_id, after, never)

    async def aevents(self, run_id: str, after: str | None = None) -> AsyncIterator[TrainingEvent]:
        """The same on an event loop, which it never blocks."""
        gone = threading.Event()
        events = self._events(run_id, after, gone.is_set)
        try:
            while (event := await in_executor(lambda: next(events, None))) is not None:
                yield event
        finally:
            gone.set()
            await in_executor(events.close)

    def history(
        self,
        run_id: str,
        *,
        project: str | None = None,
        entity: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> Iterator[TrainingEvent]:
        """What has happened to a run so far, in order, read as it is asked for; nothing to one of a client's own.

        Where a project is named, the run must lie there. Raises `NotFound`, `InvalidInput`.
        """
        check_slice(limit, offset)
        place = self._sight.maybe_place(project, entity)
        self.runtime.store.read(lambda tx: self._sight.find(tx, EvaluationRun, "Evaluation run", run_id, place))
        return slice_listing(self._new_events(run_id, None), limit, offset)

    def result(self, run_id: str) -> EvaluationResult:
        """A run with its rows, as it is now. Raises `NotFound`."""
        return EvaluationResult(self.runtime, self._run(run_id))

    # ---- how it is ended by others

    def _stop_work(self, run_id: str, reason: str) -> bool:
        """Ask the engine to end a run, for a reason; whether it was at work on it, or was to be."""
        event_id, now = self.runtime.ids(), self.runtime.clock.now()

        def step(tx: Tx) -> Job | None:
            run, job = get_or_none(tx, EvaluationRun, run_id), latest_job(tx, run_id)
            if job is None or job.ended:
                return None
            if run is not None:
                tx.replace(attrs.evolve(run, reason=run.reason or reason))
            return request_cancel(tx, self.runtime.job_types, job.id, event_id, self.principal.name, now)

        job = self.runtime.store.transact(step)
        if job is not None and job.ended:
            announce(self.runtime, job)
        return job is not None

    def _end_work(self, tx: Tx, run_id: str, event_id: str, now: datetime) -> EndedWork:
        """End what is done for a run in the transaction that takes it away, so that nothing is added to it again."""
        job = latest_job(tx, run_id)
        if job is None or job.ended:
            return EndedWork(job)
        return EndedWork(
            request_cancel(tx, self.runtime.job_types, job.id, event_id, self.principal.name, now), now=True
        )

    def _drop_work(self, ended: EndedWork) -> None:
        """Drop the rows that a run that is no more was to go on with; while it is at work, they go when that ends."""
        job = ended.job
        if job is None or not job.ended:
            return
        if ended.now:
            announce(self.runtime, job)
        for name in files_of(job):
            self.runtime.artifacts.remove(name)

    # ---- how it is found and waited for

    def _run(self, run_id: str) -> EvaluationRun:
        return self.runtime.store.read(lambda tx: self._sight.find(tx, EvaluationRun, "Evaluation run", run_id, None))

    def _job(self, run_id: str) -> Job:
        """The last job of a run. Raises `NotFound`, and `Conflict` for a run that the engine did not make."""
        self._run(run_id)
        return self.runtime.store.read(lambda snapshot: engine_job(snapshot, run_id))

    def _completed(self, run_id: str) -> EvaluationResult:
        run = self._run(run_id)
        if run.state is not RunState.COMPLETED:
            raise JobFailed(run.id, run.state, run.reason or "", "evaluation run")
        return EvaluationResult(self.runtime, run)

    def _turns(self, run_id: str) -> Generator[None, None, None]:
        return wait_for_end(self.runtime, lambda: self._job(run_id))

    def _events(self, run_id: str, after: str | None, stop: Callable[[], bool]) -> Generator[TrainingEvent, None, None]:
        with closing(self._turns(run_id)) as waiting:
            for _ in waiting:
                for event in self._new_events(run_id, after):
                    yield event
                    after = event.id
                if stop():
                    return

    def _new_events(self, run_id: str, after: str | None) -> Iterator[TrainingEvent]:
        """What was recorded of a run behind an event, by one of its jobs after the other. Raises `NotFound`."""
        jobs = self.runtime.store.read(partial(_jobs_behind, run_id, after))
        for job in jobs:
            yield from events_behind(self.runtime, job.id, after)
            after = None


def _jobs_behind(run_id: str, after: str | None, snapshot: Snapshot) -> list[Job]:
    """The jobs of a run, the oldest first; from that of an event on. Raises `NotFound`."""
    jobs = list(iter_index(snapshot, Job, "of_lane", run_id))
    if after is None:
        return jobs
    event = snapshot.find(JobEvent, "id", after)
    left = list(dropwhile(lambda job: event is None or job.id != event.job_id, jobs))
    if not left:
        raise NotFound("Event", after)
    return left
