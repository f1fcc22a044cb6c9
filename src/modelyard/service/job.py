"""The rules of the queue, as functions of a transaction: they hold on every store.

Ids and times are drawn before the step and passed in. At most one job of a lane is ready or claimed; while others of
the lane wait there is exactly one, so a claim is one index probe. A job's status and the event that tells it commit
together, and every write of a worker is refused once its claim is worthless.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import attrs

from modelyard.domain.job import (
    Claim,
    Job,
    JobEvent,
    JobKind,
    JobStatus,
    NewEvent,
    Place,
    SupersededEvent,
    check_transition,
)
from modelyard.domain.observed import JobChanged, JobEventRecorded
from modelyard.domain.training import TRAINING_ENDED, TRAINING_FAILED
from modelyard.errors import LeaseLost, RateLimited, RecordNotFound
from modelyard.protocols import Snapshot, Tx
from modelyard.service.ports import Ports

TICK = timedelta(microseconds=1)
QUEUE_RETRY_AFTER = 60.0

# The events that tell the end of a job of each kind: when it succeeded, and when it did not.
END_EVENTS: Mapping[JobKind, tuple[str, str]] = {
    JobKind.SFT: (TRAINING_ENDED, TRAINING_FAILED),
    JobKind.RL: (TRAINING_ENDED, TRAINING_FAILED),
    JobKind.EVALUATE: ("evaluation_ended", "evaluation_failed"),
    JobKind.RESCORE: ("evaluation_ended", "evaluation_failed"),
}


# ---- into the queue ----------------------------------------------------------------------------------------------


def enqueue(tx: Tx, job: Job, max_queued: int) -> Job:
    """Put a new job at the end of its lane. A job with the same fingerprint that has not ended is returned instead.

    Jobs of an entity are listed in the order in which they came, so none is created before the one before it. Raises
    `RateLimited` when the entity has `max_queued` jobs in the queue.
    """
    twin = _unended_twin(tx, job)
    if twin is not None:
        return twin
    if tx.count(Job, "by_status", job.entity, JobStatus.QUEUED) >= max_queued:
        raise RateLimited(f"{max_queued} jobs wait already; cancel some, or wait for them to end", QUEUE_RETRY_AFTER)
    previous = tx.page(Job, "by_entity", job.entity, limit=1, descending=True)
    created_at = later(job.created_at, previous)
    place = Place.WAITING if head(tx, job.lane) else Place.READY
    job = attrs.evolve(job, created_at=created_at, updated_at=created_at, place=place)
    tx.add(job)
    return job


def later(now: datetime, previous: Sequence[Any]) -> datetime:
    """A time of creation behind that of the newest record of a listing, so that no cursor ever skips a new one."""
    return max(now, previous[0].created_at + TICK) if previous else now


def _unended_twin(snapshot: Snapshot, job: Job) -> Job | None:
    if not job.fingerprint:
        return None
    twins = snapshot.page(Job, "by_fingerprint", job.fingerprint, limit=1, descending=True)
    return twins[0] if twins and not twins[0].ended else None


def head(snapshot: Snapshot, lane: str) -> Job | None:
    """The lane's job that is claimed or ready: None when no job of the lane is left to do."""
    for place in (Place.CLAIMED, Place.READY):
        if found := snapshot.page(Job, "by_lane", lane, place, limit=1):
            return found[0]
    return None


# ---- a worker's hold ---------------------------------------------------------------------------------------------


def ready(snapshot: Snapshot, lane: str | None = None) -> Job | None:
    """The oldest job, of one lane or of all, that a worker may claim."""
    where = ("by_place",) if lane is None else ("by_lane", lane)
    found = snapshot.page(Job, *where, Place.READY, limit=1)
    return found[0] if found else None


def claim(tx: Tx, worker_id: str, now: datetime, lane: str | None = None) -> Job | None:
    """Take the oldest ready job, of one lane or of all; None when there is none."""
    job = ready(tx, lane)
    if job is None:
        return None
    time = job.time(now)
    job = attrs.evolve(
        job,
        status=JobStatus.RUNNING,
        place=Place.CLAIMED,
        epoch=job.epoch + 1,
        worker_id=worker_id,
        handle="",
        attempts=job.attempts + 1,
        started_at=job.started_at or time,
        updated_at=time,
    )
    tx.replace(job)
    return job


def claim_of(job: Job) -> Claim:
    """The token of a job that has just been claimed."""
    return Claim(job.id, job.epoch, job.worker_id)


def fenced(tx: Tx, claim: Claim) -> Job:
    """The job, if the claim still holds. Raises `LeaseLost`."""
    try:
        job = tx.get(Job, claim.job_id)
    except RecordNotFound:
        raise LeaseLost(f"job {claim.job_id} is gone") from None
    if job.status is not JobStatus.RUNNING or (job.epoch, job.worker_id) != (claim.epoch, claim.worker_id):
        raise LeaseLost(f"job {claim.job_id} was taken away: epoch {job.epoch}, {job.status}")
    return job


def heartbeat(tx: Tx, claim: Claim) -> Job:
    """Show that the worker lives."""
    job = fenced(tx, claim)
    job = attrs.evolve(job, beat=job.beat + 1)
    tx.replace(job)
    return job


# ---- what happens to it ------------------------------------------------------------------------------------------


def record_events(tx: Tx, claim: Claim, events: Sequence[NewEvent], now: datetime, total: int | None = None) -> Job:
    """Record what happened, in order, and the progress that it is.

    An event that an earlier attempt recorded keeps its id and place; its data are replaced, the old ones kept aside.
    """
    job = fenced(tx, claim)
    job = _recorded(tx, job, events, job.time(now))
    job = job if total is None else attrs.evolve(job, total=total)
    tx.replace(job)
    return job


def _recorded(tx: Tx, job: Job, events: Sequence[NewEvent], time: datetime) -> Job:
    """The job with its new events, still to be put into the store itself. A new step forgives earlier crashes."""
    seq, progress = job.last_seq, job.progress
    for event in events:
        if not _superseded(tx, job, event):
            seq += 1
            tx.add(JobEvent(job.id, seq, event.id, event.type, event.step, event.data, time, job.epoch))
            progress = max(progress, event.step)
    crashes = job.crashes if progress == job.progress else 0
    return attrs.evolve(job, last_seq=seq, progress=progress, crashes=crashes, updated_at=time)


def _superseded(tx: Tx, job: Job, event: NewEvent) -> bool:
    """Put the data in the place of those that an earlier attempt recorded; False where none did."""
    # Under a first claim there is nothing to look for: `add` would refuse an event that is there already.
    earlier = tx.find(JobEvent, "identity", job.id, event.type, event.step) if job.epoch > 1 else None
    if earlier is None:
        return False
    if earlier.epoch != job.epoch:
        tx.add(SupersededEvent(earlier.id, earlier.epoch, earlier.data, earlier.created_at))
    tx.replace(attrs.evolve(earlier, data=event.data, epoch=job.epoch))
    return True


def save_resume(tx: Tx, claim: Claim, step: int, files: Mapping[str, Any], now: datetime) -> Job:
    """Make these files the state to go on from behind a step. A later state than before forgives earlier crashes."""
    job = fenced(tx, claim)
    crashes = 0 if step > job.resume_step else job.crashes
    job = attrs.evolve(job, resume=files, resume_step=step, crashes=crashes, updated_at=job.time(now))
    tx.replace(job)
    return job


# ---- out of the queue --------------------------------------------------------------------------------------------


def end(tx: Tx, job: Job, status: JobStatus, event: NewEvent, now: datetime, message: str | None = None) -> Job:
    """End a job: its status, the event that tells it and the next of its lane, all at once. Raises `Conflict`."""
    check_transition(job.status, status)
    time = job.time(now)
    done = attrs.evolve(
        _recorded(tx, job, [event], time), status=status, place=Place.DONE, ended_at=time, error_message=message
    )
    tx.replace(done)
    if job.place is not Place.WAITING:
        _promote(tx, job.lane)
    return done


def _promote(tx: Tx, lane: str) -> None:
    for following in tx.page(Job, "by_lane", lane, Place.WAITING, limit=1):
        tx.replace(attrs.evolve(following, place=Place.READY))


def succeed(tx: Tx, job: Job, event_id: str, now: datetime) -> Job:
    """End a running job well."""
    return end(tx, job, JobStatus.SUCCEEDED, NewEvent(event_id, END_EVENTS[job.kind][0]), now)


def fail(tx: Tx, job: Job, event_id: str, message: str, now: datetime) -> Job:
    """End a job as failed, for a reason that says what to do; or as cancelled, if that was asked for before."""
    if job.cancelled_by:
        return cancel(tx, job, event_id, job.cancelled_by, now)
    event = NewEvent(event_id, END_EVENTS[job.kind][1], {"error_message": message})
    return end(tx, job, JobStatus.FAILED, event, now, message)


def cancel(tx: Tx, job: Job, event_id: str, by: str, now: datetime) -> Job:
    """End a job as cancelled, at once: whatever its worker still writes is refused."""
    message = f"cancelled by {by}"
    event = NewEvent(event_id, END_EVENTS[job.kind][1], {"error_message": message})
    return end(tx, attrs.evolve(job, cancelled_by=by), JobStatus.CANCELLED, event, now, message)


def request_cancel(tx: Tx, job_id: str, event_id: str, by: str, now: datetime) -> Job:
    """Cancel a job: one in the queue ends at once, a running one is marked and ends at its worker's next write.

    Idempotent: the first request counts, and a job that has ended stays as it is.
    """
    job = tx.get(Job, job_id)
    if job.ended or job.cancelled_by:
        return job
    if job.status is JobStatus.QUEUED:
        return cancel(tx, job, event_id, by, now)
    job = attrs.evolve(job, cancelled_by=by)
    tx.replace(job)
    return job


# ---- back into the queue -----------------------------------------------------------------------------------------


def requeue(tx: Tx, job: Job, event_id: str, now: datetime) -> Job:
    """A running job goes back to the head of its lane; or ends, if it was to be cancelled."""
    if job.cancelled_by:
        return cancel(tx, job, event_id, job.cancelled_by, now)
    check_transition(job.status, JobStatus.QUEUED)
    job = attrs.evolve(job, status=JobStatus.QUEUED, place=Place.READY, worker_id="", updated_at=job.time(now))
    tx.replace(job)
    return job


def crash(tx: Tx, job: Job, event_id: str, now: datetime, max_crashes: int, reason: str = "") -> Job:
    """A running job has lost its worker. One that does so `max_crashes` times without progress in between fails.

    `reason` says how it was lost this time, where that is known.
    """
    job = attrs.evolve(job, crashes=job.crashes + 1)
    if job.crashes < max_crashes:
        return requeue(tx, job, event_id, now)
    message = (
        f"the job lost its worker {job.crashes} times without any progress: it may need more memory than there is, "
        "or its data make the trainer crash; look into the worker's log, then start a new job"
        + (f". At last {reason}" if reason else "")
    )
    return fail(tx, job, event_id, message, now)


def take_away(tx: Tx, seen: Job, event_id: str, now: datetime, max_crashes: int) -> Job | None:
    """Take a job from a worker that has stood still since it was `seen`; None if it has moved after all."""
    try:
        job = tx.get(Job, seen.id)
    except RecordNotFound:
        return None
    if job.status is not JobStatus.RUNNING or (job.epoch, job.beat) != (seen.epoch, seen.beat):
        return None
    return crash(tx, job, event_id, now, max_crashes)


# ---- after the commit --------------------------------------------------------------------------------------------


def files_of(job: Job) -> list[str]:
    """The artifacts that belong to a job alone: its own data and its saved state. Useless once it has ended."""
    own = [job.spec["artifact"]] if "artifact" in job.spec else []
    return [*own, *(file["artifact"] for file in job.resume.values())]


def announce(ports: Ports, job: Job) -> Job:
    """Tell the observer that a job's status changed, and drop the files of one that has ended."""
    ports.observe(JobChanged(job.id, job.kind, job.status))
    if job.ended:
        event = END_EVENTS[job.kind][job.status is not JobStatus.SUCCEEDED]
        ports.observe(JobEventRecorded(job.id, event, job.last_seq))
        for name in files_of(job):
            ports.artifacts.remove(name)
    return job
