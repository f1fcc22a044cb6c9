"""Batches: files of requests that a job answers, line by line, and how one stands."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import attrs

from modelyard.domain.job import Job, JobProgress, JobStatus
from modelyard.domain.record import frozen_mapping

STARTED, ENDED, FAILED = "batch_started", "batch_ended", "batch_failed"
"""The types of the events of a batch."""

BATCH_JOB = "batch"
"""The kind of the jobs of this part."""

WINDOW = timedelta(hours=24)
"""How long a batch may take from its creation; what is not answered then has expired."""

MAX_LINES = 100_000

OUTPUT, ERROR = BATCH_FILES = "output", "error"
"""The files that a batch writes: what was answered, and what was refused or failed."""

EXPIRED = "expired"
"""The member of a job's result which says that the batch has taken longer than it may."""


class BatchStatus(StrEnum):
    """The states of a batch, in the words of the chat format's clients."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


@attrs.frozen
class BatchProblem:
    """A problem of a batch; if it concerns a line of the input file, at this line, from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@attrs.frozen
class BatchJob:
    """A batch as it is read. Of its `total` lines so many are `completed`, and so many `failed`.

    `total` is 0 until its input file was checked. `output_file_id` and `error_file_id` are known when it has ended, and
    None if it has written no such lines.
    """

    id: str
    entity: str
    project: str
    endpoint: str
    input_file_id: str
    status: BatchStatus
    created_at: datetime
    expires_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    total: int
    completed: int
    failed: int
    output_file_id: str | None
    error_file_id: str | None
    problems: tuple[BatchProblem, ...]
    metadata: Mapping[str, str] = attrs.field(converter=frozen_mapping)

    @classmethod
    def of(cls, job: Job, progress: JobProgress) -> "BatchJob":
        counts = job.result.get("counts") or counts_of(job.resume)
        return cls(
            id=job.id,
            entity=job.entity,
            project=job.project,
            endpoint=job.spec["endpoint"],
            input_file_id=job.spec["input_file_id"],
            status=_status(job, progress),
            created_at=job.created_at,
            expires_at=job.created_at + WINDOW,
            started_at=job.started_at if progress.total is not None else None,
            ended_at=job.ended_at,
            total=progress.total or 0,
            completed=counts[OUTPUT],
            failed=counts[ERROR],
            output_file_id=job.result.get(OUTPUT),
            error_file_id=job.result.get(ERROR),
            problems=_problems(job),
            metadata=job.spec["metadata"],
        )


def counts_of(files: Mapping[str, Any]) -> Mapping[str, int]:
    """Return how many lines of each kind are in these parts, which are named `<kind>/<first line>`."""
    return {
        kind: sum(part["rows"] for name, part in files.items() if name.startswith(f"{kind}/")) for kind in BATCH_FILES
    }


def _status(job: Job, progress: JobProgress) -> BatchStatus:
    if job.status is JobStatus.FAILED:
        return BatchStatus.EXPIRED if job.result.get(EXPIRED) else BatchStatus.FAILED
    if job.status in (JobStatus.SUCCEEDED, JobStatus.CANCELLED):
        return BatchStatus.COMPLETED if job.status is JobStatus.SUCCEEDED else BatchStatus.CANCELLED
    if progress.cancelled_by:
        return BatchStatus.CANCELLING
    return BatchStatus.VALIDATING if progress.total is None else BatchStatus.IN_PROGRESS


def _problems(job: Job) -> tuple[BatchProblem, ...]:
    if job.status is not JobStatus.FAILED or job.result.get(EXPIRED):
        return ()
    found = tuple(BatchProblem(**problem) for problem in job.result.get("problems", ()))
    return found or (BatchProblem("batch_failed", job.error_message or ""),)
