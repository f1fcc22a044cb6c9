"""Claims of jobs: who may run which, whether a claim still holds, for whom its holder acts, and what it may write."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import attrs

from modelyard.domain.events import JobEventRecorded
from modelyard.domain.frozen_fast import maker
from modelyard.domain.identity import ApiKey, Limits, Principal, Scope
from modelyard.domain.job import (
    JOB,
    Claim,
    Gain,
    Job,
    JobEvent,
    JobProgress,
    JobStatus,
    NewEvent,
    QueueState,
    SupersededEvent,
)
from modelyard.domain.record import KEY
from modelyard.errors import EvaluationError, LeaseLost
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import DomainStep, Snapshot, Tx

_event = maker(JobEvent)
# Before Python 3.12, a member of an enum takes ten times as long to look up as a global.
_NEW, _NO_STEPS = Gain.NEW, (Gain.LOADING, Gain.NOTHING)

# ---- a worker's claim --------------------------------------------------------------------------------------------


def ready_in_lane(snapshot: Snapshot, lane: str) -> Job | None:
    found = snapshot.page(Job, "by_lane", lane, QueueState.READY, limit=1)
    return found[0] if found else None


def latest_job(snapshot: Snapshot, lane: str) -> Job | None:
    found = snapshot.page(Job, "of_lane", lane, limit=1, descending=True)
    return found[0] if found else None


@attrs.frozen
class Claimant:
    """Who claims a job: the id under which it does, and its process (`process_identity.process_here`). `alone` means
    that this job will be the only one in the process. A suspect always is; `suspects` is whether one may be claimed
    now. With `isolates` it is alone only in a process of its own, once that has adopted it."""

    id: str
    process: str = ""
    alone: bool = True
    suspects: bool = True
    isolates: bool = False


def claim(tx: Tx, claimant: Claimant, now: datetime, job: Job | None) -> tuple[Job, JobProgress] | None:
    if job is None:
        return None
    progress = tx.get(JobProgress, job.id)
    if progress.suspect and not claimant.suspects:
        return None
    time = progress.time(now)
    progress = attrs.evolve(
        progress,
        epoch=progress.epoch + 1,
        worker_id=claimant.id,
        held=True,
        updated_at=time,
        process=claimant.process,
        alone=claimant.alone or (progress.suspect and not claimant.isolates),
        gain=Gain.NOTHING,
        loose="",
    )
    job = attrs.evolve(
        job,
        status=JobStatus.RUNNING,
        place=QueueState.CLAIMED,
        handle="",
        held_back=job.held_back if job.refusals else "",
        not_before=None,
        attempts=job.attempts + 1,
        started_at=job.started_at or time,
    )
    tx.replace(job)
    tx.replace(progress)
    return job, progress


def claim_of(progress: JobProgress) -> Claim:
    return Claim(progress.job_id, progress.epoch, progress.worker_id)


def fenced(tx: Snapshot, claim: Claim) -> JobProgress:
    """Return the job's progress, if the claim is still valid. Raises `LeaseLost`."""
    progress = tx.find(JobProgress, KEY, claim.job_id)
    if progress is None:
        raise LeaseLost(f"job {claim.job_id} is gone")
    if not progress.held or progress.epoch != claim.epoch or progress.worker_id != claim.worker_id:
        raise LeaseLost(f"job {claim.job_id} was taken away: epoch {progress.epoch}, held: {progress.held}")
    return progress


def require_claim(tx: Tx, claim: Claim) -> Job:
    return tx.get(Job, fenced(tx, claim).job_id)


def heartbeat(tx: Tx, claim: Claim, now: datetime, loose: Sequence[str] = (), gain: Gain | None = None) -> JobProgress:
    """Show that the worker lives, and which artifacts it has stored that no other record names yet."""
    progress = fenced(tx, claim)
    beat, named = progress.beat + 1, " ".join(loose)
    progress = attrs.evolve(progress, beat=beat, updated_at=progress.time(now), loose=named, gain=gain or progress.gain)
    tx.replace(progress)
    return progress


# ---- a job that was claimed ----------------------------------------------------------------------------------------


class ClaimedJob:
    """A job that this worker has claimed, and its progress as its last write has seen it. `moved_at` is when its run
    began or last wrote anything, by the monotonic clock; None before it begins. A `hung` one was given back because
    that was too long ago. `loose` are the artifacts that it has stored and no record names yet. `finishes_rows` is
    whether its run, when it is closed, may finish what it has begun: the job is then given back. Every write is refused
    once the claim is lost."""

    def __init__(self, runtime: Runtime, job: Job, progress: JobProgress) -> None:
        self.runtime: Runtime = runtime
        self.job: Job = job
        self.progress: JobProgress = progress
        self.claim: Claim = claim_of(progress)
        self.request_seen: float | None = None
        self.moved_at: float | None = None
        self.hung = self.finishes_rows = False
        self.loose: list[str] = []

    @property
    def principal(self) -> Principal:
        """For whom it acts. Raises `EvaluationError` if the key of the request is no longer valid."""
        return requester_principal(self.runtime, self.job)

    def write(self, step: Callable[[Tx], JobProgress]) -> JobProgress:
        self.progress = self.runtime.store.transact(step)
        self.moved_at = self.runtime.clock.monotonic()
        return self.progress

    @property
    def leaving(self) -> bool:
        return self.progress.leaving and not self.job.ended

    def note(self, gain: Gain) -> None:
        """Note that its run begins to load what it needs, which forgets that no place was found for it; or that it has
        loaded that: from then on, an end of its process from outside is a whole crash, if it has stored no step."""
        self.progress = self.runtime.store.transact(partial(self._noted, gain, self.runtime.clock.now()), durable=False)
        self.job = attrs.evolve(self.job, refusals=0, held_back="")

    def _noted(self, gain: Gain, now: datetime, tx: Tx) -> JobProgress:
        if self.job.refusals:
            tx.replace(attrs.evolve(require_claim(tx, self.claim), refusals=0, held_back=""))
        return heartbeat(tx, self.claim, now, tuple(self.loose), gain=gain)

    def record(self, kind: str, data: Mapping[str, Any], step: int = 0, total: int | None = None) -> None:
        event, now = NewEvent(self.runtime.ids(), kind, data, step), self.runtime.clock.now()
        last_seq = self.progress.last_seq
        progress = self.write(self._alone(lambda tx: record_events(tx, self.claim, [event], now, total)))
        if self.runtime.observer is not None:
            seq = progress.last_seq if progress.last_seq > last_seq else self._seq_of(kind, step)
            self.runtime.observe(JobEventRecorded(progress.job_id, kind, seq))

    def _alone(self, step: Callable[[Tx], JobProgress]) -> Callable[[Tx], JobProgress]:
        """Mark the step as one that stays in this job, unless it may have to keep data of an earlier attempt."""
        return DomainStep(step, [(JOB, self.job.id)]) if self.claim.epoch == 1 else step

    def _seq_of(self, kind: str, step: int) -> int:
        found = self.runtime.store.read(lambda snapshot: snapshot.find(JobEvent, "identity", self.job.id, kind, step))
        assert found is not None
        return found.seq


# ---- what it writes ------------------------------------------------------------------------------------------------


def record_events(
    tx: Tx, claim: Claim, events: Sequence[NewEvent], now: datetime, total: int | None = None
) -> JobProgress:
    """Record events, in order, and the progress that they make. An event that an earlier attempt recorded keeps its id
    and `seq`; its data are replaced, and kept as superseded."""
    return record(tx, fenced(tx, claim), events, now, total)


def record(
    tx: Tx,
    progress: JobProgress,
    events: Sequence[NewEvent],
    now: datetime,
    total: int | None = None,
    held: bool = True,
) -> JobProgress:
    """Store events and the progress that they make. A new step resets the count of losses. A first attempt has no
    earlier data to look for: `add` refuses what is there already."""
    seq, step, time, gain = progress.last_seq, progress.step, progress.time(now), progress.gain
    new_events = []
    for event in events:
        if progress.epoch == 1 or not _superseded(tx, progress, event):
            seq += 1
            new_events.append(
                _event(progress.job_id, seq, event.id, event.type, event.step, event.data, time, progress.epoch)
            )
            step = max(step, event.step)
    tx.add_all(new_events)
    if total is None:
        total = progress.total
    if step > progress.step:
        gain, crashes, losses, faults = _NEW, 0, 0, 0
    else:
        crashes, losses, faults = progress.crashes, progress.losses, progress.faults
        if gain in _NO_STEPS and any(event.step for event in events):
            gain = Gain.REPEATED
    progress = progress.recorded(time, held, seq, step, total, gain, crashes, losses, faults)
    tx.replace(progress)
    tx.notify(job_topic(progress.job_id))
    return progress


def _superseded(tx: Tx, progress: JobProgress, event: NewEvent) -> bool:
    if event.step > progress.step:  # beyond all that was recorded
        return False
    earlier = tx.find(JobEvent, "identity", progress.job_id, event.type, event.step)
    if earlier is None:
        return False
    if earlier.epoch != progress.epoch:
        tx.add(SupersededEvent(earlier.id, earlier.epoch, earlier.data, earlier.created_at))
    tx.replace(attrs.evolve(earlier, data=event.data, epoch=progress.epoch))
    return True


def job_topic(job_id: str) -> str:
    return f"job/{job_id}"


# ---- for whom it acts ----------------------------------------------------------------------------------------------


def requester_spec(runtime: Runtime, principal: Principal) -> Mapping[str, Any]:
    """Return what a job keeps of its requester: the id of an API key, to look it up again, or else all permissions."""
    kept = {"key_id": principal.key_id, **({"purse": principal.purse} if principal.purse else {})}
    if principal.key_id and _api_key(runtime, principal.key_id) is not None:
        return kept
    scope = principal.scope
    projects = None if scope.projects is None else sorted(scope.projects)
    more = {"scope": {"entity": scope.entity, "projects": projects}, "limits": attrs.asdict(principal.limits)}
    return {**kept, "name": principal.name, **more}


def requester_principal(runtime: Runtime, job: Job) -> Principal:
    """Return the principal that a job runs as: the key's current holder, or as recorded. Raises `EvaluationError`."""
    asker, purse = job.spec["asker"], job.spec["asker"].get("purse", "")
    if "scope" not in asker:
        return attrs.evolve(_holder(runtime, asker["key_id"]), purse=purse)
    entity, projects = asker["scope"]["entity"], asker["scope"]["projects"]
    scope = Scope(entity, None if projects is None else frozenset(projects))
    return Principal(asker["name"], job.entity, scope, asker["key_id"], Limits(**asker["limits"]), purse)


def _holder(runtime: Runtime, key_id: str) -> Principal:
    key = _api_key(runtime, key_id)
    if key is None or not key.alive(runtime.clock.now()):
        raise EvaluationError("the key that asked for this run is no longer valid; ask for it with another")
    return key.principal()


def _api_key(runtime: Runtime, key_id: str) -> ApiKey | None:
    return runtime.store.read(lambda snapshot: get_or_none(snapshot, ApiKey, key_id))
