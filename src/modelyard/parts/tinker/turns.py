"""Parking and rotating jobs, as functions of a transaction."""

from datetime import datetime

import attrs

from modelyard.domain.job import Job, JobProgress, JobStatus, QueueState, check_transition
from modelyard.platform.jobs.queue import first_in_lane, parked_in_lane
from modelyard.platform.jobs.shares import announce_freed, announce_ready
from modelyard.protocols import Tx


def park(tx: Tx, job: Job, now: datetime) -> None:
    """Park a claimed job that has nothing to do, until `unpark`. The next job of its lane may run."""
    rotate(tx, job, now, QueueState.WAITING)
    following = parked_in_lane(tx, job.lane)
    if following is not None and following.id != job.id:
        unpark(tx, following)


def unpark(tx: Tx, job: Job) -> None:
    if job.place is QueueState.WAITING and first_in_lane(tx, job.lane) is None:
        tx.replace(attrs.evolve(job, place=QueueState.READY))
        announce_ready(tx, job.entity, job.needs)


def rotate(tx: Tx, job: Job, now: datetime, place: QueueState = QueueState.READY) -> None:
    progress = tx.get(JobProgress, job.id)
    tx.replace(attrs.evolve(progress, held=False, updated_at=progress.time(now)))
    check_transition(job.status, JobStatus.QUEUED)
    last = attrs.evolve(job, status=JobStatus.QUEUED, place=place)
    tx.remove(Job, job.id)  # added again, it gets a number after all others
    tx.add(last)
    announce_freed(tx, job.entity)
    if place is QueueState.READY:
        announce_ready(tx, job.entity, job.needs)
