"""Claims of jobs: who may run which, and whether a claim still holds."""

from datetime import datetime

import attrs

from modelyard.domain.job import (
    Claim,
    Job,
    JobProgress,
    JobStatus,
    QueueState,
)
from modelyard.errors import LeaseLost
from modelyard.platform.paging import get_or_none
from modelyard.protocols import Snapshot, Tx

# ---- a worker's claim --------------------------------------------------------------------------------------------


def ready(snapshot: Snapshot, lane: str | None = None) -> Job | None:
    """Return the oldest job, of one lane or of all, that a worker may claim."""
    where = ("by_place",) if lane is None else ("by_lane", lane)
    found = snapshot.page(Job, *where, QueueState.READY, limit=1)
    return found[0] if found else None


def claim(tx: Tx, worker_id: str, now: datetime, lane: str | None = None) -> tuple[Job, JobProgress] | None:
    """Take the oldest ready job, of one lane or of all; None when there is none."""
    job = ready(tx, lane)
    if job is None:
        return None
    progress = tx.get(JobProgress, job.id)
    time = progress.time(now)
    progress = attrs.evolve(progress, epoch=progress.epoch + 1, worker_id=worker_id, held=True, updated_at=time)
    job = attrs.evolve(
        job,
        status=JobStatus.RUNNING,
        place=QueueState.CLAIMED,
        handle="",
        attempts=job.attempts + 1,
        started_at=job.started_at or time,
    )
    tx.replace(job)
    tx.replace(progress)
    return job, progress


def claim_of(progress: JobProgress) -> Claim:
    """Return the token of a job that has just been claimed."""
    return Claim(progress.job_id, progress.epoch, progress.worker_id)


def fenced(tx: Tx, claim: Claim) -> JobProgress:
    """Return the job's progress, if the claim is still valid. Raises `LeaseLost`."""
    progress = get_or_none(tx, JobProgress, claim.job_id)
    if progress is None:
        raise LeaseLost(f"job {claim.job_id} is gone")
    if not progress.held or (progress.epoch, progress.worker_id) != (claim.epoch, claim.worker_id):
        raise LeaseLost(f"job {claim.job_id} was taken away: epoch {progress.epoch}, held: {progress.held}")
    return progress


def require_claim(tx: Tx, claim: Claim) -> Job:
    """Return the job, if the claim is still valid. Raises `LeaseLost`."""
    return tx.get(Job, fenced(tx, claim).job_id)


def heartbeat(tx: Tx, claim: Claim, now: datetime) -> JobProgress:
    """Show that the worker lives."""
    progress = fenced(tx, claim)
    progress = attrs.evolve(progress, beat=progress.beat + 1, updated_at=progress.time(now))
    tx.replace(progress)
    return progress
