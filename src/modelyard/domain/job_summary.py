"""The summary of a job of any kind."""

from datetime import datetime

import attrs

from modelyard.domain.job import Job, JobProgress, JobStatus


@attrs.frozen
class JobSummary:
    """A job of any kind in short. `subject` is the id of what it works on: a model, or an evaluation run. `progress` is
    its last recorded step, or row, of `total`. `waiting_for` is a reason to wait other than the queue, or None."""

    id: str
    kind: str
    status: JobStatus
    entity: str
    project: str
    subject: str
    progress: int
    total: int | None
    attempts: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    error_message: str | None
    waiting_for: str | None = None

    @classmethod
    def of(cls, job: Job, progress: JobProgress, waiting_for: str | None = None) -> "JobSummary":
        return cls(
            job.id,
            job.kind,
            job.status,
            job.entity,
            job.project,
            job.subject,
            progress.step,
            progress.total,
            job.attempts,
            job.created_at,
            job.started_at,
            job.ended_at,
            job.error_message,
            waiting_for,
        )
