"""Claiming jobs and running them in the calling thread; heartbeats; reclaiming the jobs of dead workers."""

import threading
from collections.abc import Callable, Generator
from contextlib import closing
from datetime import datetime

from modelyard.domain.events import LeaseTaken
from modelyard.domain.job import Claim, Job, JobProgress, Needs
from modelyard.domain.record import truncate_for_storage
from modelyard.errors import LeaseLost, ModelyardError, StoreBusy, StoreError
from modelyard.lazy import log
from modelyard.platform.jobs.attempts import adopt, expire
from modelyard.platform.jobs.claimed_job import ClaimedJob
from modelyard.platform.jobs.job_type import JobTypes
from modelyard.platform.jobs.leases import (
    claim,
    claim_of,
    heartbeat,
    oldest_ready,
    ready_in_lane,
    ready_needs,
    require_claim,
)
from modelyard.platform.jobs.queue import announce, crash, fail, requeue
from modelyard.platform.periodic import Periodic
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

MAX_CLAIMED = 1000
BEATS_PER_LEASE = 3

End = Callable[[Tx, JobTypes, Job, str, datetime], Job]
"""Ends a job's run in a transaction, with an event of this id."""


class _Stopped(Exception):
    """The job or its runner is to stop: it goes back into the queue, or ends if it was cancelled."""


def never() -> bool:
    """Nobody asks to stop."""
    return False


class Runner:
    """Runs jobs under the name `id`. Thread-safe; starts no thread but the one of `beating`."""

    def __init__(self, runtime: Runtime, job_types: JobTypes | None = None, interrupted: End = requeue) -> None:
        """Run jobs of these types, by default those of the runtime; `interrupted` settles one whose run stopped."""
        self.runtime: Runtime = runtime
        self.id: str = runtime.ids()
        self._job_types, self._interrupted = runtime.job_types if job_types is None else job_types, interrupted
        self._claimed: dict[Claim, ClaimedJob] = {}
        self._lock = threading.Lock()

    @property
    def claimed_jobs(self) -> tuple[ClaimedJob, ...]:
        """The jobs that it runs now."""
        with self._lock:
            return tuple(self._claimed.values())

    # ---- claiming and running

    def can_run(self, needs: Needs) -> bool:
        """Return whether this platform has what a job needs, and this runner runs jobs of its kind."""
        job_type = self._job_types.get(needs.kind)
        return job_type is not None and job_type.can_run(self.runtime, needs.base_model)

    def claim(self, lane: str | None = None) -> ClaimedJob | None:
        """Claim the oldest ready job that it can run, of one lane or of all; None when there is none."""
        find = self._oldest() if lane is None else self._first_of(lane)
        if find is None:
            return None
        now = self.runtime.clock.now()
        found = self.runtime.store.transact(lambda tx: claim(tx, self.id, now, find(tx)))
        if found is None:
            return None
        claimed = self.track(*found)
        announce(self.runtime, claimed.job)
        return claimed

    def _oldest(self) -> Callable[[Snapshot], Job | None] | None:
        """Return how to find the oldest job that is ready and can be run here; None where none is."""
        able = [needs for needs in self.runtime.store.read(ready_needs) if self.can_run(needs)]
        return (lambda snapshot: oldest_ready(snapshot, able)) if able else None

    def _first_of(self, lane: str) -> Callable[[Snapshot], Job | None] | None:
        ready = self.runtime.store.read(lambda snapshot: ready_in_lane(snapshot, lane))
        if ready is None or not self.can_run(ready.needs):
            return None

        def find(snapshot: Snapshot) -> Job | None:
            job = ready_in_lane(snapshot, lane)
            return job if job is not None and job.needs == ready.needs else None

        return find

    def adopt(self, job_id: str) -> ClaimedJob | None:
        """Adopt a job that a worker has claimed and handed to this process; None where no worker has claimed it.

        Whoever held it before writes nothing more. Raises `RecordNotFound`.
        """
        now = self.runtime.clock.now()
        taken = self.runtime.store.transact(lambda tx: adopt(tx, job_id, now))
        return None if taken is None else self.track(*taken)

    def track(self, job: Job, progress: JobProgress) -> ClaimedJob:
        """Track a job that was claimed under this runner's id."""
        claimed = ClaimedJob(self.runtime, job, progress)
        with self._lock:
            self._claimed[claimed.claim] = claimed
        return claimed

    def run(self, claimed: ClaimedJob, stop: Callable[[], bool] = never) -> None:
        """Run a claimed job to its end, or back into the queue. Raises nothing but an interrupt."""
        for _ in self.steps(claimed, stop):
            pass

    def steps(self, claimed: ClaimedJob, stop: Callable[[], bool] = never) -> Generator[None, None, None]:
        """Run a claimed job, yielding after each write. Closing the iterator gives the job back."""
        try:
            with closing(self._job_types[claimed.job.kind].run(claimed)) as items:
                for item in items:
                    yield item
                    if claimed.cancelled or stop():
                        raise _Stopped
        except LeaseLost as lost:
            log.info("stopped: %s", lost)
        except _Stopped:
            self._settle(claimed, self._interrupted)
        except (GeneratorExit, KeyboardInterrupt, SystemExit):
            self._settle(claimed, self._interrupted)
            raise
        except StoreBusy as busy:
            log.warning("job %s goes back into the queue: %s", claimed.job.id, busy)
            self._settle(claimed, self._crash)
        except Exception as error:  # noqa: BLE001 - whatever a job's work raises fails the job, not the worker
            message = sentence(error)
            unforeseen = not isinstance(error, ModelyardError)
            log.info("job %s failed: %s", claimed.job.id, message, exc_info=unforeseen)
            self._settle(claimed, lambda tx, types, job, event_id, now: fail(tx, types, job, event_id, message, now))
        finally:
            self.drop(claimed)

    def give_back(self, claimed: ClaimedJob) -> None:
        """Return a claimed job that was not begun."""
        self._settle(claimed, requeue)
        self.drop(claimed)

    def drop(self, claimed: ClaimedJob) -> None:
        """Show no more that a job is alive: its run is over."""
        with self._lock:
            self._claimed.pop(claimed.claim, None)

    def _settle(self, claimed: ClaimedJob, end: End) -> None:
        """Write how the run ended, unless the job was lost. A store that refuses leaves it to be taken over."""
        types, event_id, now = self.runtime.job_types, self.runtime.ids(), self.runtime.clock.now()
        try:
            job = self.runtime.store.transact(
                lambda tx: end(tx, types, require_claim(tx, claimed.claim), event_id, now)
            )
        except LeaseLost as lost:
            log.info("stopped: %s", lost)
        except StoreError:
            log.exception("the end of job %s could not be written", claimed.job.id)
        else:
            announce(self.runtime, job)

    def _crash(self, tx: Tx, types: JobTypes, job: Job, event_id: str, now: datetime) -> Job:
        return crash(tx, types, job, event_id, now, self.runtime.settings.max_crashes)

    # ---- showing that one lives

    def beat(self) -> None:
        """Record heartbeats of its jobs; end those that do not stop within the lease after a cancellation."""
        claims, now = {claimed.claim: claimed for claimed in self.claimed_jobs}, self.runtime.clock.now()
        for progress in self.runtime.store.transact(lambda tx: _beats(tx, tuple(claims), now), durable=False):
            claimed = claims[claim_of(progress)]
            if progress.cancelled_by and self._ignores_cancellation(claimed):
                self._settle(claimed, requeue)

    def _ignores_cancellation(self, claimed: ClaimedJob) -> bool:
        now = self.runtime.clock.monotonic()
        if claimed.cancel_seen is None:
            claimed.cancel_seen = now
        return now - claimed.cancel_seen >= self.runtime.settings.lease

    def beating(self) -> Periodic:
        """Beats from a thread of its own, which no step of a job can hold up, as long as the context lasts."""
        seconds = self.runtime.settings.lease / BEATS_PER_LEASE
        return Periodic(self.runtime.clock, seconds, self.beat, "modelyard-heartbeat")

    # ---- taking over

    def reclaim_expired(self) -> None:
        """Give the jobs of workers that stood still for the lease back to the queue."""
        running = self.runtime.store.read(
            lambda snapshot: snapshot.page(JobProgress, "by_held", True, limit=MAX_CLAIMED)
        )
        marks = {progress.job_id: (progress.epoch, progress.beat) for progress in running}
        still = self.runtime.liveness.idle_seconds("jobs", marks, self.runtime.clock.monotonic())
        mine = {claimed.claim for claimed in self.claimed_jobs}
        for progress in running:
            if claim_of(progress) not in mine and still[progress.job_id] >= self.runtime.settings.lease:
                self._expire(progress)

    def _expire(self, seen: JobProgress) -> None:
        event_id, now = self.runtime.ids(), self.runtime.clock.now()
        most = self.runtime.settings.max_crashes
        job = self.runtime.store.transact(lambda tx: expire(tx, self.runtime.job_types, seen, event_id, now, most))
        if job is not None:
            self.runtime.observe(LeaseTaken(job.id, seen.worker_id))
            announce(self.runtime, job)


def _beats(tx: Tx, claims: tuple[Claim, ...], now: datetime) -> list[JobProgress]:
    """Record a heartbeat of the jobs that are still claimed, and return their progress."""
    alive = []
    for token in claims:
        try:
            alive.append(heartbeat(tx, token, now))
        except LeaseLost:
            continue
    return alive


def sentence(error: Exception) -> str:
    """Return the message for the job's owner: our own errors as they are, others by their class; bounded in length."""
    text = str(error) or type(error).__name__
    if not isinstance(error, ModelyardError):
        text = f"the job failed with {type(error).__name__}: {text}; look into the worker's log, then start a new job"
    return truncate_for_storage(text)
