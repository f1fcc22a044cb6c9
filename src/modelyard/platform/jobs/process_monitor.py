"""A worker's watch over the jobs that run in processes of their own: their deaths are noticed and counted at once."""

import attrs

from modelyard.domain.job import Job, JobProgress, QueueState
from modelyard.domain.record import truncate_for_storage
from modelyard.errors import StoreError
from modelyard.lazy import log
from modelyard.platform.jobs.attempts import end_attempt, is_adopted, is_current, note_handle, note_waiting
from modelyard.platform.jobs.claimed_job import ClaimedJob
from modelyard.platform.jobs.queue import WorkerLoss, announce
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.paging import get_or_none, iter_index_live
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Ended, Executor, Snapshot, Waiting

LEASES_TO_BEGIN = 10
"""How many leases a process that runs has to open its platform and take its job up: loading may take minutes."""

UNFINISHED = "its process ended before the job did"


@attrs.define(eq=False)
class MonitoredProcess:
    """One attempt under watch. `claimed` is this worker's own claim, which began it; None for another worker's.

    `since` is since when its process has run, as far as is known, and `waiting` whether it waits for room instead.
    `unneeded_since` is since when the job has needed its process no more, `ended` how that has ended.
    """

    attempt: Job
    handle: str
    since: float
    claimed: ClaimedJob | None = None
    waiting: bool = False
    unneeded_since: float | None = None
    ended: Ended | None = None


class ProcessMonitor:
    """Looks after what an executor runs outside of this process. Not thread-safe: a worker looks from one thread."""

    def __init__(self, runtime: Runtime, executor: Executor, runner: Runner) -> None:
        self.runtime: Runtime = runtime
        self.executor: Executor = executor
        self._runner = runner
        self._watches: list[MonitoredProcess] = []

    # ---- what is watched

    def add(self, claimed: ClaimedJob, handle: str) -> None:
        """Watch a job that was just submitted. Its handle is kept, so that another worker finds it again."""
        self._watches.append(MonitoredProcess(claimed.job, handle, self.runtime.clock.monotonic(), claimed))
        try:
            self.runtime.store.transact(lambda tx: note_handle(tx, claimed.job, handle), durable=False)
        except StoreError:
            log.warning("the handle of job %s could not be kept", claimed.job.id, exc_info=True)

    def reattach(self) -> None:
        """Watch what a worker that is gone has left running, or dead."""
        now = self.runtime.clock.monotonic()
        for job in iter_index_live(self.runtime, Job, "by_place", QueueState.CLAIMED):
            if job.handle and self.executor.reattach(job.handle):
                self._watches.append(MonitoredProcess(job, job.handle, now))

    # ---- looking

    def look(self) -> None:
        """Settle the jobs of processes that are gone; end the processes that are needed no more."""
        watches = tuple(self._watches)
        states = self.executor.states([watch.handle for watch in watches]) if watches else {}
        for watch in watches:
            state = states[watch.handle]
            if isinstance(state, Ended):
                watch.ended = watch.ended or state
                self._settle(watch, watch.ended)
            else:
                self._note_waiting(watch, isinstance(state, Waiting))
                if self._must_go(watch):
                    self.executor.cancel(watch.handle)

    def _note_waiting(self, watch: MonitoredProcess, waiting: bool) -> None:
        """Let a job be queued as long as its executor has no room for it; nothing counts against it until it has."""
        now = self.runtime.clock.now()
        if waiting:
            watch.since = self.runtime.clock.monotonic()
        if waiting is not watch.waiting:
            job = self.runtime.store.transact(lambda tx: note_waiting(tx, watch.attempt, waiting, now))
            watch.waiting = waiting
            if job is not None:
                announce(self.runtime, job)

    def _must_go(self, watch: MonitoredProcess) -> bool:
        """Return whether to kill a process that lives: at once if it lost its job; if that is over, after the lease."""
        job, progress = self.runtime.store.read(lambda snapshot: _seen(snapshot, watch.attempt.id))
        if job is None or progress is None or not (job.ended or is_current(job, watch.attempt)):
            return True
        if watch.waiting:
            return job.ended
        now, lease = self.runtime.clock.monotonic(), self.runtime.settings.lease
        if job.ended or progress.cancelled_by:
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
        loss = None if ended is None else _loss(ended, watch)
        job = self.runtime.store.transact(lambda tx: end_attempt(tx, types, watch.attempt, event_id, now, most, loss))
        self._forget(watch)
        if job is not None:
            log.warning("job %s was given back by its worker: %s", job.id, loss.reason if loss else "the worker stops")
            announce(self.runtime, job)

    def _forget(self, watch: MonitoredProcess) -> None:
        self._watches.remove(watch)
        if watch.claimed is not None:
            self._runner.drop(watch.claimed)

    # ---- stopping

    def stop(self) -> None:
        """Give back what the processes of this worker have not, once its executor was closed."""
        for watch in tuple(self._watches):
            if watch.claimed is None:
                self._forget(watch)
                continue
            try:
                self._settle(watch, None)
            except StoreError:
                log.warning("job %s could not be given back", watch.attempt.id, exc_info=True)
                self._forget(watch)


def _loss(ended: Ended, watch: MonitoredProcess) -> WorkerLoss:
    orphaned = watch.claimed is None and ended.preempted
    reason = truncate_for_storage(ended.fault or UNFINISHED)
    return WorkerLoss(reason, ended.preempted, alone=True, with_worker=orphaned)


def _seen(snapshot: Snapshot, job_id: str) -> tuple[Job | None, JobProgress | None]:
    return get_or_none(snapshot, Job, job_id), get_or_none(snapshot, JobProgress, job_id)
