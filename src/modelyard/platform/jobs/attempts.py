"""The rules of a job in its own process, as functions of a transaction. A claim from the queue begins an *attempt*. A
worker may hand its attempt on to a process, which then holds the job under another epoch. So the worker identifies what
it monitors not by a claim but by the number of the attempt."""

from datetime import datetime

import attrs

from modelyard.domain.job import Claim, Job, JobProgress, JobStatus, QueueState
from modelyard.platform.jobs.claims import Claimant
from modelyard.platform.jobs.job_type import JobTypes
from modelyard.platform.jobs.queue import WorkerLoss, crash, requeue
from modelyard.platform.paging import get_or_none
from modelyard.protocols import Tx


def adopt(tx: Tx, job_id: str, now: datetime, process: str = "", attempt: int = 0) -> tuple[Job, JobProgress] | None:
    """Claim a job again in the same attempt, which fences off the claim before. Returns None unless the job is claimed,
    in the attempt of this number; 0 stands for any. `process` is then the job's. Raises `RecordNotFound`."""
    job, progress = tx.get(Job, job_id), tx.get(JobProgress, job_id)
    if not progress.held or attempt not in (0, job.attempts):
        return None
    process = f"{progress.process} {process}".strip()
    progress = attrs.evolve(progress, epoch=progress.epoch + 1, process=process, alone=True)
    tx.replace(progress)
    return _run(tx, job, progress.time(now)), progress


def is_current(job: Job | None, attempt: Job) -> bool:
    """Return whether a job is still in the attempt in which it was seen before."""
    return job is not None and job.place is QueueState.CLAIMED and job.attempts == attempt.attempts


def note_waiting(tx: Tx, attempt: Job, claim: Claim, waiting: bool, now: datetime) -> Job | None:
    """Store whether the attempt waits for room in its executor, and so is queued. Returns None if nothing changes, as
    when a process has adopted the job from this claim, however late the executor hears of it."""
    job = get_or_none(tx, Job, attempt.id)
    if job is None or not is_current(job, attempt) or waiting is (job.status is JobStatus.QUEUED):
        return None
    progress = tx.get(JobProgress, job.id)
    if is_adopted(progress, claim):
        return None
    if not waiting:
        return _run(tx, job, progress.time(now))
    job = attrs.evolve(job, status=JobStatus.QUEUED, started_at=job.started_at if job.attempts > 1 else None)
    tx.replace(job)
    return job


def _run(tx: Tx, job: Job, time: datetime) -> Job:
    if job.status is JobStatus.QUEUED:
        job = attrs.evolve(job, status=JobStatus.RUNNING, started_at=job.started_at or time)
        tx.replace(job)
    return job


def take_over(tx: Tx, attempt: Job, claimant: Claimant, now: datetime) -> tuple[Job, JobProgress] | None:
    """Claim, in the same attempt, a job that has lost its worker before its process began. None for others. The new
    worker keeps it alive until its process adopts it."""
    job, progress = get_or_none(tx, Job, attempt.id), get_or_none(tx, JobProgress, attempt.id)
    if job is None or progress is None or not is_current(job, attempt) or has_begun(job, progress):
        return None
    progress = attrs.evolve(
        progress,
        epoch=progress.epoch + 1,
        worker_id=claimant.id,
        process=claimant.process,
        updated_at=progress.time(now),
    )
    tx.replace(progress)
    return job, progress


def has_begun(job: Job, progress: JobProgress) -> bool:
    """Return whether a separate process has adopted the job: then it is named besides its worker's."""
    return job.status is not JobStatus.QUEUED and len(progress.process.split()) != 1


def is_adopted(progress: JobProgress, claim: Claim) -> bool:
    return progress.epoch > claim.epoch


def note_handle(tx: Tx, attempt: Job, handle: str) -> None:
    job = get_or_none(tx, Job, attempt.id)
    if job is not None and is_current(job, attempt):
        tx.replace(attrs.evolve(job, handle=handle))


def end_attempt(
    tx: Tx,
    types: JobTypes,
    attempt: Job,
    event_id: str,
    now: datetime,
    max_crashes: int,
    loss: WorkerLoss | None = None,
) -> Job | None:
    """Give back a job that has lost its process: as crashed if there is a `loss`. None if the attempt had ended."""
    job = get_or_none(tx, Job, attempt.id)
    if job is None or not is_current(job, attempt):
        return None
    if loss is None:
        return requeue(tx, types, job, event_id, now)
    return crash(tx, types, job, event_id, now, max_crashes, loss)
