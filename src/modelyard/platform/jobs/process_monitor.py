"""A worker's monitor of its jobs in other processes: it notices their deaths, and counts them at once."""

from functools import cache, partial
from math import inf

import attrs

from modelyard.domain.job import Job, JobProgress, JobStatus, QueueState
from modelyard.domain.record import truncate_for_storage
from modelyard.errors import StoreError
from modelyard.lazy import log
from modelyard.platform.jobs.announced import live_workers
from modelyard.platform.jobs.attempts import (
    end_attempt,
    has_begun,
    is_adopted,
    is_current,
    note_handle,
    note_waiting,
    take_over,
)
from modelyard.platform.jobs.claims import ClaimedJob
from modelyard.platform.jobs.queue import WorkerLoss, announce
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.paging import get_or_none, iter_index_live
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Ended, Executor, Snapshot, Waiting

LEASES_TO_BEGIN = 10
"""How many leases a process that runs has to open its platform and adopt its job: loading may take minutes."""

UNFINISHED = "its process ended before the job did"


@attrs.define(eq=False)
class MonitoredProcess:
    """One monitored attempt. `claimed` is the claim of this worker that began it; None for another worker's. `since` is
    since when its process has run, as far as is known, and `waiting` whether it waits for room instead.
    `unneeded_since` is since when the job has needed its process no more, `ended` how that has ended."""

    attempt: Job
    handle: str
    since: float
    claimed: ClaimedJob | None = None
    waiting: bool = False
    unneeded_since: float | None = None
    ended: Ended | None = None


class ProcessMonitor:
    """Monitors what an executor runs outside of this process. Not thread-safe: a worker looks from one thread."""

    def __init__(self, runtime: Runtime, executor: Executor, runner: Runner) -> None:
        self.runtime: Runtime = runtime
        self.executor: Executor = executor
        self._runner = runner
        self._watches: list[MonitoredProcess] = []
        self._reattached = -inf

    # ---- what is watched

    @property
    def watches(self) -> int:
        return len(self._watches)

    def add(self, claimed: ClaimedJob, handle: str) -> None:
        self._watches.append(MonitoredProcess(claimed.job, handle, self.runtime.clock.monotonic(), claimed))
        try:
            self.runtime.store.transact(lambda tx: note_handle(tx, claimed.job, handle), durable=False)
        except StoreError:
            log.warning("the handle of job %s could not be kept", claimed.job.id, exc_info=True)

    def reattach(self) -> None:
        self._reattached = self.runtime.clock.monotonic()
        watched = {(watch.attempt.id, watch.attempt.attempts) for watch in self._watches}
        alive = cache(self._live_workers)
        for job in iter_index_live(self.runtime, Job, "by_place", QueueState.CLAIMED):
            if job.handle and (job.id, job.attempts) not in watched:
                _, progress = self.runtime.store.read(partial(_seen, job_id=job.id))
                if progress and self.executor.reattach(job.handle, progress.worker_id in alive()):
                    self._watch_left(job)

    def _live_workers(self) -> set[str]:
        return self.runtime.store.read(lambda snapshot: {one.id for one in live_workers(self.runtime, snapshot)})

    def take_over(self, expired: JobProgress) -> bool:
        """Watch, and keep alive, a job that waits for room in the executor and has lost its worker. Returns False for
        any other job."""
        job, _ = self.runtime.store.read(partial(_seen, job_id=expired.job_id))
        if job is None or job.status is not JobStatus.QUEUED or job.place is not QueueState.CLAIMED:
            return False
        return bool(job.handle) and self.executor.reattach(job.handle, alive=False) and self._watch_left(job)

    def _watch_left(self, job: Job) -> bool:
        now = self.runtime.clock.now()
        taken = self.runtime.store.transact(lambda tx: take_over(tx, job, self._runner.claimant, now))
        claimed = None if taken is None else self._runner.track(*taken)
        watch = MonitoredProcess(job, job.handle, self.runtime.clock.monotonic(), claimed)
        watch.waiting = job.status is JobStatus.QUEUED
        self._watches = [one for one in self._watches if one.handle != job.handle] + [watch]
        return claimed is not None

    # ---- looking

    def look(self) -> None:
        since = self.runtime.clock.monotonic() - self._reattached
        if self.executor.isolates and since >= self.runtime.settings.lease:
            self.reattach()
        watches = tuple(self._watches)
        states = self.executor.states([watch.handle for watch in watches]) if watches else {}
        for watch in watches:
            state = states[watch.handle]
            if isinstance(state, Ended):
                watch.ended = watch.ended or state
                self._settle(watch, watch.ended)
            elif isinstance(state, Waiting) and state.fault and watch.claimed is not None:
                self.executor.cancel(watch.handle)
                self._runner.refuse(watch.claimed, state.fault)
                self._forget(watch)
            else:
                self._note_waiting(watch, isinstance(state, Waiting))
                if self._must_go(watch):
                    self.executor.cancel(watch.handle)

    def _note_waiting(self, watch: MonitoredProcess, waiting: bool) -> None:
        """Let a job be queued as long as its executor has no room for it; nothing counts against it until it has."""
        now = self.runtime.clock.now()
        if waiting:
            watch.since = self.runtime.clock.monotonic()
        if watch.claimed is not None and waiting is not watch.waiting:
            claim = watch.claimed.claim
            job = self.runtime.store.transact(lambda tx: note_waiting(tx, watch.attempt, claim, waiting, now))
            watch.waiting = waiting
            if job is not None:
                announce(self.runtime, job, logged=waiting)  # it says itself that it begins

    def _must_go(self, watch: MonitoredProcess) -> bool:
        """Return whether to kill a process that lives: at once if it lost its job; if that is over, after the lease."""
        job, progress = self.runtime.store.read(lambda snapshot: _seen(snapshot, watch.attempt.id))
        if job is None or progress is None or not (job.ended or is_current(job, watch.attempt)):
            return True
        if watch.waiting:
            return job.ended
        now, lease = self.runtime.clock.monotonic(), self.runtime.settings.lease
        if job.ended or progress.leaving:
            watch.unneeded_since = now if watch.unneeded_since is None else watch.unneeded_since
            return now - watch.unneeded_since >= lease
        if (
            watch.claimed is None
            or is_adopted(progress, watch.claimed.claim)
            or now - watch.since < LEASES_TO_BEGIN * lease
        ):
            return False
        watch.ended = Ended(f"its process did not begin within {LEASES_TO_BEGIN * lease:g} seconds")
        return True

    def _settle(self, watch: MonitoredProcess, ended: Ended | None) -> None:
        types, event_id, now = self.runtime.job_types, self.runtime.ids(), self.runtime.clock.now()
        most = self.runtime.settings.max_crashes
        loss = None if ended is None else self._loss(ended, watch)
        job = self.runtime.store.transact(lambda tx: end_attempt(tx, types, watch.attempt, event_id, now, most, loss))
        self._forget(watch)
        if job is None:
            now_is, _ = self.runtime.store.read(partial(_seen, job_id=watch.attempt.id))
            self._runner.doubts_artifacts |= now_is is not None and now_is.place is QueueState.HELD_BACK
        else:
            log.warning("job %s was given back by its worker: %s", job.id, loss.reason if loss else "the worker stops")
            announce(self.runtime, job)

    def _loss(self, ended: Ended, watch: MonitoredProcess) -> WorkerLoss:
        job, progress = self.runtime.store.read(lambda snapshot: _seen(snapshot, watch.attempt.id))
        begun = job is None or progress is None or has_begun(job, progress)
        orphaned = watch.claimed is None and ended.preempted
        reason = truncate_for_storage(ended.fault or UNFINISHED)
        left = not begun and (ended.preempted or not ended.fault)
        return WorkerLoss(reason, ended.preempted, alone=True, with_worker=orphaned, left=left)

    def _forget(self, watch: MonitoredProcess) -> None:
        self._watches.remove(watch)
        if watch.claimed is not None:
            self._runner.drop(watch.claimed)

    # ---- stopping

    def stop(self) -> None:
        """Give back what the processes of this worker have not, once its executor was closed. A job that the executor
        has left running, or waiting, stays as it is."""
        watches = tuple(self._watches)
        states = self.executor.states([watch.handle for watch in watches]) if watches else {}
        for watch in watches:
            if watch.claimed is None or not isinstance(states[watch.handle], Ended):
                self._forget(watch)
                continue
            try:
                self._settle(watch, None)
            except StoreError:
                log.warning("job %s could not be given back", watch.attempt.id, exc_info=True)
                self._forget(watch)


def _seen(snapshot: Snapshot, job_id: str) -> tuple[Job | None, JobProgress | None]:
    return get_or_none(snapshot, Job, job_id), get_or_none(snapshot, JobProgress, job_id)
