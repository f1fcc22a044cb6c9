"""The rules of the queue, as functions of a transaction: they hold on every store. Ids and times are passed in. At most
one job of a lane is ready or claimed; while others of the lane wait there is exactly one, so a claim is one index
probe. A job's status and the event that records it commit together, and every write of a worker is refused once its
claim is worthless. The most frequent writes of a worker, events and heartbeats, read and write the small `JobProgress`
and not the job: the fence, `seq` and progress are one record."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.events import JobChanged, JobEventRecorded
from modelyard.domain.job import (
    Claim,
    Gain,
    Job,
    JobEvent,
    JobProgress,
    JobStatus,
    NewEvent,
    QueueState,
    check_transition,
    files_of,
)
from modelyard.domain.models import Model
from modelyard.domain.record import EMPTY
from modelyard.errors import Conflict, IdempotencyKeyUsed, RateLimited, StoreError
from modelyard.lazy import log
from modelyard.platform.jobs.claims import fenced, record
from modelyard.platform.jobs.job_type import JobTypes
from modelyard.platform.jobs.shares import announce_freed, announce_ready, withdraw
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx
from modelyard.report.numbers import run_title

QUEUE_RETRY_AFTER = 60.0

LOSSES_PER_CRASH = 10
"""How many losses from outside, of claims that loaded or had stored steps again, count as much as one crash."""

MAX_FAULTS = 10
"""After how many faults of the store or of a backend without progress in between a job fails."""

MAX_REFUSALS = 20
"""After how many refusals to place it a job fails: within minutes if each comes at once, since the pauses between them
grow up to a lease; after about two hours in Kubernetes, which has minutes to find a place each time."""

CONTINUED_BY = "continued_by"  # in the result of a job
_FIRST = (QueueState.CLAIMED, QueueState.READY, QueueState.HELD_BACK)
_DRAWN = frozenset({"seed", "artifact", "billing", "advances"})


# ---- into the queue ----------------------------------------------------------------------------------------------


def enqueue(tx: Tx, job: Job, max_queued: int) -> Job:
    """Put a new job at the end of its lane, unless it was `asked_before`: then that job is returned. Raises
    `RateLimited` when the entity has `max_queued` jobs in the queue, `Conflict`."""
    known = asked_before(tx, job)
    if known is not None:
        return known
    if _has_queued(tx, job.entity, max_queued):
        raise RateLimited(f"{max_queued} jobs wait already; cancel some, or wait for them to end", QUEUE_RETRY_AFTER)
    place = QueueState.WAITING if first_in_lane(tx, job.lane) else QueueState.READY
    job = attrs.evolve(job, place=place)
    tx.add(job)
    tx.add(JobProgress(job.id, job.created_at))
    _notify_ready(tx, job)
    return job


def _has_queued(snapshot: Snapshot, entity: str, number: int) -> bool:
    """Return whether so many jobs of an entity are queued. They are counted only if there may be as many: jobs are
    numbered as they arrive, so at least so many of all entities must have arrived since the oldest of them."""
    oldest = snapshot.select(Job, ("seq",), "by_status", entity, JobStatus.QUEUED, limit=1)
    if not oldest:
        return number <= 0
    [(newest,)] = snapshot.select(Job, ("seq",), "all", limit=1, descending=True)
    return newest - oldest[0][0] + 1 >= number and snapshot.count(Job, "by_status", entity, JobStatus.QUEUED) >= number


def _notify_ready(tx: Tx, job: Job) -> None:
    if job.place is QueueState.READY:
        announce_ready(tx, job.entity, job.needs)


def asked_before(snapshot: Snapshot, job: Job) -> Job | None:
    """Return the job that an earlier, equal request has made, or None. With an idempotency key it is the one that was
    made under the key, for ever; without one it is the last with the same fingerprint, until it has ended. Raises
    `IdempotencyKeyUsed` when the key was used for another request."""
    if job.idempotency_key is not None:
        return _keyed(snapshot, job, job.idempotency_key)
    if not job.fingerprint:
        return None
    twins = snapshot.page(Job, "by_fingerprint", job.fingerprint, limit=1, descending=True)
    return twins[0] if twins and not twins[0].ended else None


def _keyed(snapshot: Snapshot, job: Job, key: str) -> Job | None:
    known = snapshot.find(Job, "idempotency", job.entity, job.project, key)
    if known is not None and _request(known) != _request(job):
        raise IdempotencyKeyUsed(
            f"the idempotency key {key!r} was used for another request, which made job {known.id}; "
            "send that request again unchanged, or choose a new key"
        )
    return known


def _request(job: Job) -> str:
    """Return the digest of a request, without random values (a seed, the name of an artifact). A job may keep the
    digest of its arguments as `request` in its spec."""
    if "request" in job.spec:
        return digest([job.kind, job.spec["request"]])
    return digest([job.kind, job.lane, {name: job.spec[name] for name in job.spec.keys() - _DRAWN}])


def first_in_lane(snapshot: Snapshot, lane: str) -> Job | None:
    for place in _FIRST:
        if found := snapshot.page(Job, "by_lane", lane, place, limit=1):
            return found[0]
    return None


def parked_in_lane(snapshot: Snapshot, lane: str) -> Job | None:
    """Return the first waiting job of a lane. If none of the lane is claimed or ready, it is parked."""
    found = snapshot.page(Job, "by_lane", lane, QueueState.WAITING, limit=1)
    return found[0] if found else None


# ---- what happens to it ----------------------------------------------------------------------------------------------


def save_resume(tx: Tx, claim: Claim, step: int, files: Mapping[str, Any], now: datetime) -> JobProgress:
    """Make these files the state to resume from after a step. A later state than before resets the count of losses."""
    progress = fenced(tx, claim)
    job = tx.get(Job, claim.job_id)
    progress = attrs.evolve(progress.gained() if step > job.resume_step else progress, updated_at=progress.time(now))
    tx.replace(progress)
    tx.replace(attrs.evolve(job, resume=files, resume_step=step))
    return progress


# ---- out of the queue --------------------------------------------------------------------------------------------


def end(
    tx: Tx, types: JobTypes, job: Job, status: JobStatus, event: NewEvent, now: datetime, message: str | None = None
) -> Job:
    """End a job: its status, the event that records it and the next of its lane, all at once. Raises `Conflict`."""
    check_transition(job.status, status)
    progress = record(tx, tx.get(JobProgress, job.id), [event], now, held=False)
    done = attrs.evolve(job, status=status, place=QueueState.DONE, ended_at=progress.updated_at, error_message=message)
    tx.replace(done)
    types[job.kind].on_end(tx, done)
    for awaited in types[job.kind].awaits(tx, done):
        by = progress.cancelled_by or f"the end of its {job.kind}"
        request_cancel(tx, types, awaited.id, job.id, by, progress.updated_at)
    if job.place is QueueState.CLAIMED:
        announce_freed(tx, job.entity)
    if job.place is QueueState.READY:
        withdraw(tx, job)
    if job.place in _FIRST:
        _release_next(tx, job.lane, progress.updated_at)
    return done


def _release_next(tx: Tx, lane: str, time: datetime) -> None:
    """Let the next job of a lane be claimed; by its own times it starts no earlier than at `time`."""
    for following in tx.page(Job, "by_lane", lane, QueueState.WAITING, limit=1):
        progress = tx.get(JobProgress, following.id)
        tx.replace(attrs.evolve(progress, updated_at=progress.time(time)))
        tx.replace(attrs.evolve(following, place=QueueState.READY))
        announce_ready(tx, following.entity, following.needs)


def succeed(tx: Tx, types: JobTypes, job: Job, event_id: str, now: datetime, data: Mapping[str, Any] = EMPTY) -> Job:
    return end(tx, types, job, JobStatus.SUCCEEDED, NewEvent(event_id, types[job.kind].succeeded, data), now)


def fail(tx: Tx, types: JobTypes, job: Job, event_id: str, message: str, now: datetime) -> Job:
    """End a job as failed, for a reason that names a remedy; or as cancelled, if that was requested before."""
    if by := tx.get(JobProgress, job.id).cancelled_by:
        return cancel(tx, types, job, event_id, by, now)
    event = NewEvent(event_id, types[job.kind].failed, {"error_message": message})
    return end(tx, types, job, JobStatus.FAILED, event, now, message)


def cancel(tx: Tx, types: JobTypes, job: Job, event_id: str, by: str, now: datetime) -> Job:
    """End a job as cancelled, at once: later writes of its worker are refused."""
    message = f"cancelled by {by}"
    event = NewEvent(event_id, types[job.kind].failed, {"error_message": message})
    return end(tx, types, job, JobStatus.CANCELLED, event, now, message)


def request_cancel(tx: Tx, types: JobTypes, job_id: str, event_id: str, by: str, now: datetime) -> Job:
    """Cancel a job: one in the queue ends at once, a running one is marked and ends at its worker's next write.
    Idempotent: the first request counts, and a job that has ended stays as it is."""
    job, progress = tx.get(Job, job_id), tx.get(JobProgress, job_id)
    if job.status is JobStatus.QUEUED:
        return cancel(tx, types, job, event_id, by, now)
    if not job.ended and not progress.cancelled_by:
        tx.replace(attrs.evolve(progress, cancelled_by=by))
    return job


def cancel_jobs(
    tx: Tx, types: JobTypes, jobs: Sequence[Job], event_ids: Mapping[str, str], by: str, now: datetime
) -> list[Job]:
    going = [one for one in jobs if not one.ended]
    asked = [request_cancel(tx, types, one.id, event_ids[one.id], by, now) for one in going]
    return [one for one in asked if one.ended]


# ---- back into the queue -----------------------------------------------------------------------------------------


def requeue(tx: Tx, types: JobTypes, job: Job, event_id: str, now: datetime) -> Job:
    """Put a claimed job back at the front of its lane; or end it, if it was to be cancelled, or pause it."""
    progress = tx.get(JobProgress, job.id)
    if progress.cancelled_by:
        return cancel(tx, types, job, event_id, progress.cancelled_by, now)
    if job.status is not JobStatus.QUEUED:  # as one that waits for room is
        check_transition(job.status, JobStatus.QUEUED)
    tx.replace(attrs.evolve(progress, held=False, updated_at=progress.time(now)))
    place = QueueState.PAUSED if progress.paused_by else QueueState.READY
    job = attrs.evolve(job, status=JobStatus.QUEUED, place=place)
    tx.replace(job)
    announce_freed(tx, job.entity)
    if place is QueueState.PAUSED:
        _release_next(tx, job.lane, progress.time(now))
    _notify_ready(tx, job)
    return job


def hold_back(
    tx: Tx, types: JobTypes, job: Job, event_id: str, now: datetime, reason: str, seconds: float, refused: bool = False
) -> Job:
    """Put a claimed job back, to be claimed in so many seconds at the earliest. Nothing is charged to it, unless it was
    `refused` a place: then it fails after `MAX_REFUSALS`."""
    job = attrs.evolve(job, refusals=job.refusals + refused)
    if job.refusals >= MAX_REFUSALS:
        return fail(tx, types, job, event_id, f"no place was found for it in {job.refusals} attempts: {reason}", now)
    back = requeue(tx, types, job, event_id, now)
    if back.place is not QueueState.READY:
        return back
    not_before = tx.get(JobProgress, job.id).updated_at + timedelta(seconds=seconds)
    held = attrs.evolve(back, place=QueueState.HELD_BACK, held_back=reason, not_before=not_before)
    tx.replace(held)
    return held


def release(tx: Tx, seen: Job) -> None:
    """Let a job be claimed whose pause is over."""
    job = get_or_none(tx, Job, seen.id)
    if job is not None and job.place is QueueState.HELD_BACK and job.not_before == seen.not_before:
        tx.replace(attrs.evolve(job, place=QueueState.READY))
        announce_ready(tx, job.entity, job.needs)


# ---- paused and resumed ------------------------------------------------------------------------------------------


def request_pause(tx: Tx, job_id: str, by: str) -> Job:
    """Pause a job: one in the queue at once, a running one at its worker's next write. Idempotent. Raises `Conflict`.
    When it is resumed it continues from its last saved state, and repeats the work since then."""
    job, progress = tx.get(Job, job_id), tx.get(JobProgress, job_id)
    if job.ended:
        raise Conflict(f"a job that is {job.status} cannot be paused")
    if not progress.leaving:
        tx.replace(attrs.evolve(progress, paused_by=by))
    if progress.cancelled_by or job.place in (QueueState.CLAIMED, QueueState.PAUSED):
        return job
    paused = attrs.evolve(job, place=QueueState.PAUSED)
    tx.replace(paused)
    if job.place is QueueState.READY:
        withdraw(tx, job)
    if job.place in _FIRST:
        _release_next(tx, job.lane, progress.updated_at)
    return paused


def resume_paused(tx: Tx, job: Job) -> Job | None:
    """Queue a paused job again, or continue one that has not stopped yet. None if none is paused."""
    progress = tx.get(JobProgress, job.id)
    if job.ended or not progress.paused_by:
        return None
    tx.replace(attrs.evolve(progress, paused_by=""))
    if job.place is not QueueState.PAUSED:
        return job
    place = QueueState.WAITING if first_in_lane(tx, job.lane) else QueueState.READY
    resumed = attrs.evolve(job, place=place)
    tx.replace(resumed)
    _notify_ready(tx, resumed)
    return resumed


@attrs.frozen
class WorkerLoss:
    """How a job lost its worker: the `reason`, if it is known. `preempted` means that the worker may have been ended
    from outside. `alone` means that the job had its own process, or was lost by its own fault. `with_worker` means that
    it had its own process, and that its worker has died too. `left` means that its process left in an orderly manner
    before it had adopted the job, as it does on request, or was ended from outside before."""

    reason: str = ""
    preempted: bool = True
    alone: bool = False
    with_worker: bool = False
    left: bool = False


def crash(tx: Tx, types: JobTypes, job: Job, event_id: str, now: datetime, max_crashes: int, loss: WorkerLoss) -> Job:
    """Record that a running job has lost its worker. After `max_crashes` losses that are its own it fails. The loss of
    a process with several jobs counts against none of them: each becomes a suspect, which runs alone next. Nor does the
    loss of a claim that has stored something new count. A claim that was ended from outside while it loaded, or had
    stored steps again, is a tenth of a crash; and so is one of a suspect that no process of its own had adopted yet."""
    progress = _charged(tx.get(JobProgress, job.id), loss)
    tx.replace(progress)
    if progress.crashes < max_crashes and progress.losses < LOSSES_PER_CRASH * max_crashes:
        return requeue(tx, types, job, event_id, now)
    message = (
        f"the job lost its worker {progress.crashes or progress.losses} times without any progress: it may need more "
        "memory than there is, or its data make the trainer crash; look into the worker's log, then start a new job"
        + (f". At last {loss.reason}" if loss.reason else "")
    )
    return fail(tx, types, job, event_id, message, now)


def _charged(progress: JobProgress, loss: WorkerLoss) -> JobProgress:
    alone = progress.alone or loss.alone
    if not (alone or progress.suspect):
        return attrs.evolve(progress, suspect=True)
    if progress.gain is Gain.NEW:
        return progress
    if not alone or loss.with_worker or loss.left or (loss.preempted and progress.gain is not Gain.NOTHING):
        return attrs.evolve(progress, losses=progress.losses + 1)
    return attrs.evolve(progress, crashes=progress.crashes + 1)


def requeue_after_fault(tx: Tx, types: JobTypes, job: Job, event_id: str, now: datetime, reason: str) -> Job:
    """Put a running job back because the store, the disk or a backend failed it; after `MAX_FAULTS` in a row it
    fails."""
    progress = tx.get(JobProgress, job.id)
    progress = attrs.evolve(progress, faults=progress.faults + 1)
    tx.replace(progress)
    if progress.faults < MAX_FAULTS:
        return requeue(tx, types, job, event_id, now)
    message = f"it failed {progress.faults} times without any progress: {reason}"
    return fail(tx, types, job, event_id, message, now)


# ---- after the commit --------------------------------------------------------------------------------------------


def announce(runtime: Runtime, job: Job, error: Exception | None = None, logged: bool = True) -> Job:
    """Report what has become of a job, to the log too; below its line is the traceback of an `error`."""
    if logged:
        log_change(runtime, job, error)
    runtime.observe(JobChanged(job.id, job.kind, job.status, job.result.get(CONTINUED_BY, "")))
    if job.ended:
        with suppress(StoreError):  # its end is stored, and its caller is to hear of that
            for last in runtime.store.read(
                lambda snapshot: snapshot.page(JobEvent, "by_job", job.id, limit=1, descending=True)
            ):
                runtime.observe(JobEventRecorded(job.id, last.type, last.seq))
            job_type = runtime.job_types[job.kind]
            job_type.after_end(runtime, job)
            for name in () if job_type.resumable(job) or job_type.shares_files(runtime, job) else files_of(job):
                with suppress(StoreError):  # a sweep removes what no record names
                    runtime.artifacts.remove(name)
    return job


_WORDS = {JobStatus.RUNNING: "begins", JobStatus.QUEUED: "is in the queue again", JobStatus.CANCELLED: "was cancelled"}


def log_change(runtime: Runtime, job: Job, error: Exception | None = None) -> None:
    level = 30 if job.status is JobStatus.FAILED else 20  # a warning, or a line for information
    said = job.place is QueueState.HELD_BACK or not (job.attempts or job.ended)  # that was said, or it was made
    if "logging" not in sys.modules or said or not log.isEnabledFor(level):  # nothing has set it up
        return
    waits = job.place is QueueState.CLAIMED and job.status is JobStatus.QUEUED
    words = "waits for room" if waits else _WORDS.get(job.status, job.status)
    why, name = f": {job.error_message}" if job.error_message else "", f"{job.entity}/{job.project}"
    with suppress(StoreError):
        name += runtime.store.read(lambda snapshot: _subject(snapshot, job))
    parts = job.id, job.kind, name, job.attempts, words, why
    log.log(level, "job %s (%s of %s, attempt %d) %s%s", *parts, exc_info=error)


def _subject(snapshot: Snapshot, job: Job) -> str:
    model, run = get_or_none(snapshot, Model, job.subject), get_or_none(snapshot, EvaluationRun, job.subject)
    return f"/{model.name}" if model else f"/{run_title(run)}" if run else ""
