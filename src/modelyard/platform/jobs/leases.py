"""Claims of jobs: who may run which, and whether a claim still holds."""

from collections.abc import Iterable, Sequence
from datetime import datetime

import attrs

from modelyard.domain.job import (
    Claim,
    Gain,
    Job,
    JobProgress,
    JobStatus,
    Needs,
    QueueState,
)
from modelyard.errors import LeaseLost
from modelyard.platform.paging import get_or_none
from modelyard.protocols import Snapshot, Tx

_BEFORE_ALL = -1
"""A number in the order of appearance before that of every job."""

# ---- a worker's claim --------------------------------------------------------------------------------------------


def ready_needs(snapshot: Snapshot) -> list[Needs]:
    """Return what the jobs that are ready need, each once, that of the oldest job first.

    It is one index probe for each, however many jobs there are.
    """
    oldest: list[Job] = []
    after: tuple[object, ...] | None = None
    while page := snapshot.page(Job, "needs", QueueState.READY, after=after, limit=1):
        job = page[0]
        oldest.append(job)
        # The next amount of memory, and not the end of this one: a store finds it without reading the jobs between.
        after = (job.kind, job.base_model, job.accelerators, job.memory + 1, _BEFORE_ALL)
    return [job.needs for job in sorted(oldest, key=lambda job: job.seq)]


def take_ready(tx: Tx, needs: Iterable[Needs]) -> Job | None:
    """Take the oldest job that is ready and needs the first of these that any needs."""
    for one in needs:
        where = (one.kind, one.base_model, one.accelerators, one.memory)
        job = tx.take(Job, "by_needs", QueueState.READY, *where)
        if job is not None:
            return job
    return None


def ready_in_lane(snapshot: Snapshot, lane: str) -> Job | None:
    """Return the job of a lane that is ready."""
    found = snapshot.page(Job, "by_lane", lane, QueueState.READY, limit=1)
    return found[0] if found else None


def latest_job(snapshot: Snapshot, lane: str) -> Job | None:
    """Return the last job that came to a lane, ended or not; None for a lane that never had any."""
    found = snapshot.page(Job, "of_lane", lane, limit=1, descending=True)
    return found[0] if found else None


@attrs.frozen
class Claimant:
    """Who claims a job: the id under which it does, and its process (`process_identity.process_here`).

    `alone` means that this job will be the only one in the process. A suspect always is; `suspects` is whether one may
    be claimed now.
    """

    id: str
    process: str = ""
    alone: bool = True
    suspects: bool = True


def claim(tx: Tx, claimant: Claimant, now: datetime, job: Job | None) -> tuple[Job, JobProgress] | None:
    """Claim a job that this transaction has found ready. None for none, and for a suspect that may not be claimed."""
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
        alone=claimant.alone or progress.suspect,
        gain=Gain.NOTHING,
        loose="",
    )
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


def fenced(tx: Snapshot, claim: Claim) -> JobProgress:
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


def heartbeat(tx: Tx, claim: Claim, now: datetime, loose: Sequence[str] = ()) -> JobProgress:
    """Show that the worker lives, and which artifacts it has stored that no other record names yet."""
    progress = fenced(tx, claim)
    progress = attrs.evolve(progress, beat=progress.beat + 1, updated_at=progress.time(now), loose=" ".join(loose))
    tx.replace(progress)
    return progress
