"""Claiming jobs and running them in the calling thread; heartbeats; reclaiming the jobs of dead workers."""

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from functools import cache, partial

import attrs

from modelyard.clock import backoff
from modelyard.domain.job import JOB, MIXED, Claim, Demand, Gain, Job, JobProgress, Needs, QueueState
from modelyard.domain.record import truncate_for_storage
from modelyard.domain.worker import Capacity
from modelyard.errors import (
    ArtifactMissing,
    ArtifactsUnavailable,
    BackendError,
    LeaseLost,
    ModelyardError,
    OutcomeUnknown,
    RecordConflict,
    RecordNotFound,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreTooNew,
    UsedAfterFork,
)
from modelyard.lazy import log
from modelyard.platform.jobs.attempts import adopt
from modelyard.platform.jobs.claims import (
    Claimant,
    ClaimedJob,
    claim,
    claim_of,
    heartbeat,
    ready_in_lane,
    require_claim,
)
from modelyard.platform.jobs.expired_claims import ExpiredClaims
from modelyard.platform.jobs.job_type import JobType, JobTypes
from modelyard.platform.jobs.queue import (
    MAX_REFUSALS,
    WorkerLoss,
    announce,
    crash,
    fail,
    hold_back,
    log_change,
    requeue,
    requeue_after_fault,
)
from modelyard.platform.jobs.shares import STRIDE, Claimed, ClaimJob, Fits, claim_in_turn
from modelyard.platform.paging import iter_index_live
from modelyard.platform.periodic import Periodic
from modelyard.platform.runtime import Runtime
from modelyard.process_identity import process_here
from modelyard.protocols import ClaimingStore, DomainStep, NextClaim, Snapshot, Tx

BEATS_PER_LEASE = 3
_GUESSES = 2
"""Entities of which a store is asked whether they are next, before that is found out in another way."""
End = Callable[[Tx, JobTypes, Job, str, datetime], Job]


class _Stopped(Exception):
    """The job or its runner is to stop: it goes back into the queue, or ends if it was cancelled, or is paused."""


def never() -> bool:
    return False


class Runner:
    """Runs jobs under the name `id`. Thread-safe; starts no thread but the one of `beating`."""

    def __init__(
        self,
        runtime: Runtime,
        job_types: JobTypes | None = None,
        interrupted: End = requeue,
        alone: bool = True,
        capacity: Capacity = Capacity(),  # noqa: B008 - frozen
        isolates: bool = False,
    ) -> None:
        """Run jobs of these types, by default those of the runtime; `interrupted` settles a job when its run was
        stopped. `alone` and `isolates` are as in `Claimant`. Its jobs never need more than `capacity` together."""
        self.runtime: Runtime = runtime
        self.id: str = runtime.ids()
        self._job_types, self._interrupted = runtime.job_types if job_types is None else job_types, interrupted
        self._capacity = capacity
        self.claimant: Claimant = Claimant(self.id, process_here(), alone, isolates=isolates)
        self._claimed: dict[Claim, ClaimedJob] = {}
        self._served: tuple[str | None, Demand | None] = None, None
        self._next = self._undecided = ""
        self._claiming = runtime.store if isinstance(runtime.store, ClaimingStore) else None
        self._unsettled: dict[Claim, End] = {}
        self._faults, self._paused_until = 0, 0.0
        self.doubts_artifacts: bool = False
        self.ready: frozenset[Needs] = frozenset()
        self._expired: ExpiredClaims | None = None
        self._lock = threading.Lock()

    @property
    def claimed_jobs(self) -> tuple[ClaimedJob, ...]:
        with self._lock:
            return tuple(self._claimed.values())

    # ---- claiming and running

    def can_run(self, needs: Needs) -> bool:
        """Return whether this platform has what a job needs, and this runner the capacity for jobs of its kind."""
        job_type = self._job_types.get(needs.kind)
        able = job_type is not None and job_type.can_run(self.runtime, needs.base_model)
        return able and self._capacity.gives(needs)

    def _fits(self) -> Fits:
        """Return the function that says whether it can run a job with these needs besides those that it runs now."""
        left = self._capacity.without(claimed.job.needs for claimed in self.claimed_jobs)
        can_run = cache(lambda kind, base_model: self.can_run(Needs(kind, base_model)))
        return lambda needs: left.gives(needs) and can_run(needs.kind, needs.base_model)

    def claim(self, lane: str | None = None, suspects: bool = True) -> ClaimedJob | None:
        """Claim a ready job that it can run, the first of one lane or of all; None when there is none. Nor is there one
        for a while after a fault of the store, while artifacts cannot be had, or if the oldest is a suspect and
        `suspects` false."""
        if self.pause_left() > 0 or (self.doubts_artifacts and self._artifacts_fault()):
            return None
        fits, now, claimant = self._fits(), self.runtime.clock.now(), attrs.evolve(self.claimant, suspects=suspects)
        claim_it = partial(claim, claimant=claimant, now=now)
        if lane is not None:
            return self._begin(self._claim_first(lane, fits, claim_it))
        if found := self._claim_next(fits, claimant, now):
            return self._begin(found)
        last, guess = self._served
        found, demand, ready = claim_in_turn(self.runtime.store, fits, claim_it, guess)
        self.ready = frozenset(ready)
        entity = demand.entity if demand is not None and found is not None else None
        self._served = entity, demand if entity is not None and entity == last else None
        self._next = entity if entity is not None and entity != self._undecided else ""
        return self._begin(found)

    def _claim_next(self, fits: Fits, claimant: Claimant, now: datetime) -> Claimed | None:
        """Have a store that can do so claim the job that is next, unless it could not decide about this entity."""
        if not (self._next and self._claiming):
            return None
        known = {needs: fits(needs) for needs in self.ready if needs.memory != MIXED or not fits(needs)}
        who = claimant.id, claimant.process, claimant.alone, claimant.suspects, claimant.isolates
        for _ in range(_GUESSES):
            try:
                found, following = self._claiming.claim_next(NextClaim(self._next, known, STRIDE, now, *who))
            except OutcomeUnknown:
                return self._claimed_unheard(now)
            if found is None and following not in ("", self._next):
                self._next = following
                continue
            self._undecided = self._next if found is None and following else ""
            self._next = self._next if found else ""
            return found
        return None

    def _claimed_unheard(self, now: datetime) -> Claimed | None:
        """Return the job that was claimed for this runner since `now`, if it was: its answer was lost."""
        for held in iter_index_live(self.runtime, JobProgress, "by_held", True):
            new = held.updated_at >= now and held.gain is Gain.NOTHING and claim_of(held) not in self._claimed
            if held.worker_id == self.id and new:
                return self.runtime.store.read(partial(_job, job_id=held.job_id)), held
        return None

    def _claim_first(self, lane: str, fits: Fits, claim: ClaimJob) -> Claimed | None:
        ready = self.runtime.store.read(lambda snapshot: ready_in_lane(snapshot, lane))
        if ready is None or not fits(ready.needs):
            return None

        def step(tx: Tx) -> Claimed | None:
            job = tx.take(Job, "by_lane", lane, QueueState.READY)
            return claim(tx, job=job if job is not None and job.needs == ready.needs else None)

        return self.runtime.store.transact(DomainStep(step, ()), durable=False)

    def _begin(self, found: Claimed | None) -> ClaimedJob | None:
        if found is None or claim_of(found[1]) in self._claimed:  # it runs: that it was claimed had been undone
            return None
        job, progress = found
        announce(self.runtime, job, logged=False)  # a place may be refused to it
        return self.track(job, progress)  # from now on it has heartbeats

    def adopt(self, job_id: str, attempt: int = 0) -> ClaimedJob | None:
        """Adopt a job that a worker has claimed and handed to this process, in the attempt of this number; 0 stands for
        any. Returns None otherwise. Its earlier holder can write nothing more. Raises `RecordNotFound`."""
        now = self.runtime.clock.now()
        taken = self.runtime.store.transact(lambda tx: adopt(tx, job_id, now, self.claimant.process, attempt))
        return None if taken is None else self.track(*taken)

    def track(self, job: Job, progress: JobProgress) -> ClaimedJob:
        claimed = ClaimedJob(self.runtime, job, progress)
        with self._lock:
            self._claimed[claimed.claim] = claimed
        return claimed

    def run(self, claimed: ClaimedJob, stop: Callable[[], bool] = never) -> None:
        for _ in self.steps(claimed, stop):
            pass

    def steps(self, claimed: ClaimedJob, stop: Callable[[], bool] = never) -> Generator[None, None, None]:
        """Run a claimed job, yielding after each write. Closing the iterator gives the job back."""
        claimed.moved_at = self.runtime.clock.monotonic()
        job, after = claimed.job, claimed.progress.step
        log_change(self.runtime, job)
        if job.attempts > 1 and not job.refusals:  # a worker whose log has ended could not say so
            log.info("job %s was taken up after step %d: its last worker gave it back, or died", job.id, after)
        try:
            claimed.note(Gain.LOADING)
            with closing(self._job_types[claimed.job.kind].run(claimed)) as items:
                for item in items:
                    yield item
                    if claimed.leaving or stop():
                        claimed.finishes_rows = self._interrupted is requeue and not claimed.progress.cancelled_by
                        raise _Stopped
        except LeaseLost as lost:
            log.info("stopped: %s", lost)
        except _Stopped:
            self._settle(claimed, self._interrupted)
        except (GeneratorExit, KeyboardInterrupt, SystemExit):
            self._settle(claimed, self._interrupted)
            raise
        except Exception as error:  # noqa: BLE001 - any error of a job's work fails the job, not the worker
            message = sentence(error)
            if _passes(error, self._job_types[claimed.job.kind]):
                self._give_back_after_fault(claimed, message, error)
                return
            unforeseen = None if isinstance(error, ModelyardError) else error
            self._settle(
                claimed, lambda tx, types, job, event_id, now: fail(tx, types, job, event_id, message, now), unforeseen
            )
        finally:
            if claimed.claim not in self._unsettled:
                self.drop(claimed)

    def pause_left(self) -> float:
        return self._paused_until - self.runtime.clock.monotonic()

    def pause_claims(self) -> float:
        """Claim nothing for some seconds, longer each time until a lease has passed without a fault. Return them."""
        if -self.pause_left() > self.runtime.settings.lease:  # since the last one
            self._faults = 0
        seconds = self.backoff_after(self._faults)
        self._faults += 1
        self._paused_until = self.runtime.clock.monotonic() + seconds
        return seconds

    def _give_back_after_fault(self, claimed: ClaimedJob, message: str, error: Exception) -> None:
        seconds, end = self.pause_claims(), partial(requeue_after_fault, reason=message)
        log.warning("job %s goes back into the queue; claims pause for %g s: %s", claimed.job.id, seconds, message)
        self.doubts_artifacts = self._artifacts_fault() or isinstance(error, ArtifactsUnavailable)
        if self.doubts_artifacts or isinstance(error, (StoreBusy, OutcomeUnknown)):  # they are nobody's
            end = partial(hold_back, reason=message, seconds=self.backoff_after(claimed.job.attempts - 1))
        self._settle(claimed, end)

    def _artifacts_fault(self) -> bool:
        """Return whether artifacts cannot be written or read now. If so, claims pause, longer each time."""
        try:
            self.runtime.artifacts.check()
        except StoreError as fault:
            self.doubts_artifacts = True
            if self.pause_left() <= 0:
                log.warning("claims pause for %g s: %s", self.pause_claims(), fault)
            return True
        self.doubts_artifacts = False
        return False

    def backoff_after(self, attempt: int) -> float:
        return backoff(attempt, first=self.runtime.settings.poll, longest=self.runtime.settings.lease)

    def give_back(self, claimed: ClaimedJob, end: End = requeue) -> None:
        self._settle(claimed, end)
        self.drop(claimed)

    def refuse(self, claimed: ClaimedJob, reason: str) -> None:
        """Hold back a job for which there is no place, longer each time; the others are claimed."""
        reason, seconds = truncate_for_storage(reason), self.backoff_after(claimed.job.refusals)
        if claimed.job.refusals + 1 < MAX_REFUSALS:  # else it fails
            log.warning("job %s is held back for %g s: %s", claimed.job.id, seconds, reason)
        self.give_back(claimed, partial(hold_back, reason=reason, seconds=seconds, refused=True))

    def drop(self, claimed: ClaimedJob) -> None:
        with self._lock:
            self._claimed.pop(claimed.claim, None)

    def _settle(self, claimed: ClaimedJob, end: End, error: Exception | None = None) -> None:
        """Write how the run ended, unless the job was lost. If the store refuses, the next heartbeat tries again."""
        types, event_id, now = self.runtime.job_types, self.runtime.ids(), self.runtime.clock.now()
        try:
            job = self.runtime.store.transact(
                lambda tx: end(tx, types, require_claim(tx, claimed.claim), event_id, now)
            )
        except LeaseLost as lost:
            log.info("stopped: %s", lost)
        except StoreError:
            log.exception("the end of job %s could not be written; it is tried again", claimed.job.id)
            self._unsettled[claimed.claim] = end
            return
        else:
            announce(self.runtime, job, error)
        self._unsettled.pop(claimed.claim, None)

    # ---- heartbeats

    def beat(self) -> None:
        self._settle_again()
        for claimed in self.claimed_jobs:
            self._give_back_hung(claimed)
        claims, now = {claimed.claim: claimed for claimed in self.claimed_jobs}, self.runtime.clock.now()
        if not claims:
            return
        loose = {token: tuple(claimed.loose) for token, claimed in claims.items()}
        beats = DomainStep(partial(_beats, loose=loose, now=now), [(JOB, token.job_id) for token in claims])
        for progress in self.runtime.store.transact(beats, durable=False):
            claimed = claims[claim_of(progress)]
            if progress.leaving and self._ignores_request(claimed):
                self._settle(claimed, requeue)

    def _settle_again(self) -> None:
        for claim_, end in tuple(self._unsettled.items()):
            if claimed := self._claimed.get(claim_):
                self._settle(claimed, end)
            if claim_ not in self._unsettled and claimed:
                self.drop(claimed)

    def _give_back_hung(self, claimed: ClaimedJob) -> None:
        """Give back a job that has recorded nothing for longer than its kind may. Its thread cannot be ended."""
        limit = self._job_types[claimed.job.kind].longest_pause(self.runtime.settings)
        since = claimed.moved_at
        if claimed.hung or since is None or self.runtime.clock.monotonic() - since < limit:
            return
        claimed.hung = True
        reason, most = f"it recorded nothing for {limit:g} seconds", self.runtime.settings.max_crashes
        log.error(
            "job %s is given back: %s. Its thread may still hang, in the job or in an observer, and keeps its place "
            "in this process until it ends; run jobs in processes of their own to have such ones ended",
            claimed.job.id,
            reason,
        )
        loss = WorkerLoss(reason, preempted=False, alone=True)
        self._settle(claimed, lambda tx, types, job, event_id, now: crash(tx, types, job, event_id, now, most, loss))

    def _ignores_request(self, claimed: ClaimedJob) -> bool:
        now = self.runtime.clock.monotonic()
        if claimed.request_seen is None:
            claimed.request_seen = now
        return now - claimed.request_seen >= self.runtime.settings.lease

    def beating(self) -> Periodic:
        """Send heartbeats from another thread, which no step of a job can hold up, as long as the context lasts."""
        seconds = self.runtime.settings.lease / BEATS_PER_LEASE
        return Periodic(self.runtime.clock, seconds, self.beat, "modelyard-heartbeat")

    # ---- taking over

    def reclaim_expired(self, take_over: Callable[[JobProgress], bool] = lambda _: False) -> None:
        self._settle_again()
        if self._expired is None:
            self._expired = ExpiredClaims(self.runtime)
        self._expired.release_due()
        self._expired.reclaim({claimed.claim for claimed in self.claimed_jobs}, take_over)


def _job(snapshot: Snapshot, job_id: str) -> Job:
    return snapshot.get(Job, job_id)


def _beats(tx: Tx, loose: Mapping[Claim, Sequence[str]], now: datetime) -> list[JobProgress]:
    alive = []
    for token, names in loose.items():
        try:
            alive.append(heartbeat(tx, token, now, names))
        except LeaseLost:
            continue
    return alive


_LASTING = (ArtifactMissing, RecordConflict, RecordNotFound, StoreClosed, StoreCorrupt, StoreTooNew, UsedAfterFork)
"""Faults of the store that another attempt would meet again. A model that cannot be loaded or asked may be there
then."""


def _passes(error: Exception, job_type: JobType) -> bool:
    passing = isinstance(error, StoreError) or (job_type.awaits_backend and isinstance(error, BackendError))
    return passing and not isinstance(error, _LASTING)


def sentence(error: Exception) -> str:
    """Return the message for the job's owner: our own errors as they are, others by their class; bounded in length."""
    text = str(error) or type(error).__name__
    if not isinstance(error, ModelyardError):
        text = f"the job failed with {type(error).__name__}: {text}; look into the worker's log, then start a new job"
    return truncate_for_storage(text)
