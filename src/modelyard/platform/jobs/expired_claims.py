"""Claims of dead workers, and pauses that are over: found by looking again and again, a page at a time."""

from collections.abc import Callable, Collection
from datetime import datetime
from functools import cache, partial
from math import inf

from modelyard.domain.events import LeaseTaken
from modelyard.domain.job import Claim, Demand, Job, JobProgress, JobStatus, QueueState
from modelyard.domain.record import KEY
from modelyard.lazy import log
from modelyard.platform.jobs.claims import claim_of
from modelyard.platform.jobs.job_type import JobTypes
from modelyard.platform.jobs.queue import WorkerLoss, announce, crash, release, requeue
from modelyard.platform.jobs.shares import announce_all
from modelyard.platform.listing import Cursor
from modelyard.platform.paging import cursor_at, get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.process_identity import died_here
from modelyard.protocols import Tx

PAGE = 100
READ_AT_ONCE = 1000
DEMANDED = ("entity", "kind", "base_model", "accelerators", "memory", "seq")
JOBS = "jobs"
HELD_BACK = "jobs held back"
LEASES_TO_REMEMBER = 100
"""For how many leases a job that was not looked at is remembered: longer than it takes to look at all."""


class ExpiredClaims:
    """Takes jobs from workers that are dead on this machine, or without a heartbeat for the lease."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._after: Cursor | None = None
        self._after_held: Cursor | None = None
        self._after_ready: Cursor | None = None
        self._announced_at = -inf

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

    def release_due(self) -> None:
        """Let jobs be claimed whose pause is over: no pause is longer than a lease, if the wall clock was set back."""
        page = self.runtime.look(
            lambda snapshot, _: snapshot.page(Job, "by_place", QueueState.HELD_BACK, after=self._after_held, limit=PAGE)
        )
        self._after_held = cursor_at(Job, "by_place", page[-1]) if len(page) == PAGE else None
        now, lease, time = self.runtime.clock.now(), self.runtime.settings.lease, self.runtime.clock.monotonic()
        seen = {job.id: job.attempts for job in page}
        still = self.runtime.liveness.idle_seconds(HELD_BACK, seen, time, LEASES_TO_REMEMBER * lease)
        due = [job for job in page if job.not_before is None or job.not_before <= now or still[job.id] >= lease]
        for job in due:
            self.runtime.store.transact(partial(release, seen=job))

        self._announce_all()

    def _announce_all(self) -> None:
        """Announce ready jobs that an earlier version has queued: a look through them, each lease."""
        lease, now = self.runtime.settings.lease, self.runtime.clock.monotonic()
        if self._after_ready is None and now - self._announced_at < lease:
            return
        page = self.runtime.store.read(
            lambda snapshot: snapshot.select(
                Job, DEMANDED, "by_place", QueueState.READY, after=self._after_ready, limit=READ_AT_ONCE
            )
        )
        self._announced_at = now
        self._after_ready = page[-1][-1:] if len(page) == READ_AT_ONCE else None
        entities = {
            key[0]
            for key in {tuple(row[:-1]) for row in page}
            if self.runtime.store.read(lambda snapshot, key=key: snapshot.find(Demand, KEY, *key)) is None  # type: ignore[misc]
        }
        for entity in entities:
            self.runtime.store.transact(partial(announce_all, entity=entity))

    def _next_page(self) -> list[JobProgress]:
        page = self.runtime.look(lambda seen, _: seen.page(JobProgress, "by_held", True, after=self._after, limit=PAGE))
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
