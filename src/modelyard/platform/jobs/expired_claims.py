"""Claims of dead workers: they are found by looking again and again at the jobs of others, a page at a time."""

from collections.abc import Callable, Collection
from datetime import datetime
from functools import cache

from modelyard.domain.events import LeaseTaken
from modelyard.domain.job import Claim, Job, JobProgress, JobStatus
from modelyard.lazy import log
from modelyard.platform.jobs.claims import claim_of
from modelyard.platform.jobs.job_type import JobTypes
from modelyard.platform.jobs.queue import WorkerLoss, announce, crash, requeue
from modelyard.platform.listing import Cursor
from modelyard.platform.paging import cursor_at, get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.process_identity import died_here
from modelyard.protocols import Tx

PAGE = 100
JOBS = "jobs"
LEASES_TO_REMEMBER = 100
"""For how many leases a job that was not looked at is remembered: longer than it takes to look at all."""


class ExpiredClaims:
    """Takes jobs from workers that are dead on this machine, or without a heartbeat for the lease."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._after: Cursor | None = None

    def reclaim(self, mine: Collection[Claim], take_over: Callable[[JobProgress], bool]) -> None:
        """Look at the next page of claimed jobs; return those of dead workers to the queue, unless they are taken
        over."""
        page, lease = self._next_page(), self.runtime.settings.lease
        marks = {progress.job_id: (progress.epoch, progress.beat) for progress in page}
        now, remembered = self.runtime.clock.monotonic(), LEASES_TO_REMEMBER * lease
        still, dead = self.runtime.liveness.idle_seconds(JOBS, marks, now, remembered), cache(died_here)
        for progress in page:
            if claim_of(progress) in mine or not (still[progress.job_id] >= lease or dead(progress.process)):
                continue
            if not take_over(progress):
                self.take(progress)

    def _next_page(self) -> list[JobProgress]:
        page = self.runtime.store.read(
            lambda snapshot: snapshot.page(JobProgress, "by_held", True, after=self._after, limit=PAGE)
        )
        self._after = cursor_at(JobProgress, "by_held", page[-1]) if len(page) == PAGE else None
        return page

    def take(self, seen: JobProgress) -> Job | None:
        event_id, now = self.runtime.ids(), self.runtime.clock.now()
        most = self.runtime.settings.max_crashes
        job = self.runtime.store.transact(lambda tx: expire(tx, self.runtime.job_types, seen, event_id, now, most))
        if job is not None:
            if self.runtime.cache.meters is not None:
                self.runtime.cache.meters.lease_lost()
            log.warning("job %s was taken over from worker %s, which is dead or silent", job.id, seen.worker_id)
            self.runtime.observe(LeaseTaken(job.id, seen.worker_id))
            announce(self.runtime, job)
        return job


def expire(tx: Tx, types: JobTypes, seen: JobProgress, event_id: str, now: datetime, max_crashes: int) -> Job | None:
    progress = get_or_none(tx, JobProgress, seen.job_id)
    if progress is None or not progress.held or (progress.epoch, progress.beat) != (seen.epoch, seen.beat):
        return None
    job = tx.get(Job, seen.job_id)
    if job.status is JobStatus.QUEUED:  # it has not begun: its executor had no room for it
        return requeue(tx, types, job, event_id, now)
    loss = WorkerLoss(with_worker=bool(job.handle) and died_here(progress.process))
    return crash(tx, types, job, event_id, now, max_crashes, loss)
