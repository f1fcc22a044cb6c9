"""The rules of a job that runs in a process of its own, as functions of a transaction.

A claim from the queue begins an *attempt*. A worker may hand its attempt on to a process, which then holds the job
under an epoch of its own. So the worker knows what it watches over not by a claim but by the number of the attempt.
"""

from datetime import datetime

import attrs

from modelyard.domain.job import (
    Claim,
    Job,
    JobProgress,
    JobStatus,
    QueueState,
)
from modelyard.platform.jobs.job_type import JobTypes
from modelyard.platform.jobs.queue import crash, requeue
from modelyard.platform.paging import get_or_none
from modelyard.protocols import Tx


def adopt(tx: Tx, job_id: str, now: datetime) -> tuple[Job, JobProgress] | None:
    """Claim a job again in the same attempt, which fences off the claim before. None unless it is claimed.

    Raises `RecordNotFound`.
    """
    job, progress = tx.get(Job, job_id), tx.get(JobProgress, job_id)
    if not progress.held:
        return None
    progress = attrs.evolve(progress, epoch=progress.epoch + 1)
    tx.replace(progress)
    return _run(tx, job, progress.time(now)), progress


def is_current(job: Job | None, attempt: Job) -> bool:
    """Return whether a job is still in the attempt in which it was seen before."""
    return job is not None and job.place is QueueState.CLAIMED and job.attempts == attempt.attempts


def note_waiting(tx: Tx, attempt: Job, waiting: bool, now: datetime) -> Job | None:
    """Store whether the attempt waits for room in its executor, and so is queued. None where nothing changes."""
    job = get_or_none(tx, Job, attempt.id)
    if job is None or not is_current(job, attempt) or waiting is (job.status is JobStatus.QUEUED):
        return None
    if not waiting:
        return _run(tx, job, tx.get(JobProgress, job.id).time(now))
    job = attrs.evolve(job, status=JobStatus.QUEUED, started_at=job.started_at if job.attempts > 1 else None)
    tx.replace(job)
    return job


def _run(tx: Tx, job: Job, time: datetime) -> Job:
    """Record that a claimed job runs, if it has waited for room until now."""
    if job.status is JobStatus.QUEUED:
        job = attrs.evolve(job, status=JobStatus.RUNNING, started_at=job.started_at or time)
        tx.replace(job)
    return job


def is_adopted(progress: JobProgress, claim: Claim) -> bool:
    """Return whether a process has adopted the job that a worker had claimed."""
    return progress.epoch > claim.epoch


def note_handle(tx: Tx, attempt: Job, handle: str) -> None:
    """Store the handle under which the attempt runs, while it lasts."""
    job = get_or_none(tx, Job, attempt.id)
    if job is not None and is_current(job, attempt):
        tx.replace(attrs.evolve(job, handle=handle))


def end_attempt(
    tx: Tx, types: JobTypes, attempt: Job, event_id: str, now: datetime, max_crashes: int, fault: str | None = None
) -> Job | None:
    """Give a job back whose process is gone: as crashed where there is a `fault`. None where the attempt had ended."""
    job = get_or_none(tx, Job, attempt.id)
    if job is None or not is_current(job, attempt):
        return None
    if fault is None:
        return requeue(tx, types, job, event_id, now)
    return crash(tx, types, job, event_id, now, max_crashes, fault)


def expire(tx: Tx, types: JobTypes, seen: JobProgress, event_id: str, now: datetime, max_crashes: int) -> Job | None:
    """Take a job from a worker that has stood still since it was `seen`; None if it has moved after all."""
    progress = get_or_none(tx, JobProgress, seen.job_id)
    if progress is None or not progress.held or (progress.epoch, progress.beat) != (seen.epoch, seen.beat):
        return None
    job = tx.get(Job, seen.job_id)
    if job.status is JobStatus.QUEUED:  # it has not begun: its executor had no room for it
        return requeue(tx, types, job, event_id, now)
    return crash(tx, types, job, event_id, now, max_crashes)
