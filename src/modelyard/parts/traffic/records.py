"""Collections: jobs that make training data of stored answers, as they are shown."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

from modelyard.domain.job import Job, JobProgress, JobStatus
from modelyard.domain.record import EMPTY, frozen_mapping

STARTED, ENDED, FAILED = "collection_started", "collection_ended", "collection_failed"
"""The types of the events of a collection."""


COLLECT_JOB = "collect"
"""The kind of the jobs of this part."""


@attrs.frozen
class CollectedDataset:
    """A dataset that was collected: training names it by its `url`."""

    url: str
    rows: int
    digest: str


@attrs.frozen
class CollectionJob:
    """A collection as it is shown. `read` of about `total` stored answers were read.

    When it has ended, `train` and `held_out` are its datasets, None if a dataset has no rows. `left_out` counts the
    rows in neither, by the reason. `training_job_id` is the job that trains on `train`, if that was requested.
    """

    id: str
    entity: str
    project: str
    name: str
    status: JobStatus
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    read: int
    total: int | None
    error_message: str | None
    train: CollectedDataset | None = None
    held_out: CollectedDataset | None = None
    left_out: Mapping[str, int] = attrs.field(converter=frozen_mapping, default=EMPTY)
    training_job_id: str | None = None

    @classmethod
    def of(cls, job: Job, progress: JobProgress) -> "CollectionJob":
        made: dict[str, Any] = {
            side: CollectedDataset(**found) for side in ("train", "held_out") if (found := job.result.get(side))
        }
        return cls(
            id=job.id,
            entity=job.entity,
            project=job.project,
            name=job.spec["name"],
            status=job.status,
            created_at=job.created_at,
            started_at=job.started_at,
            ended_at=job.ended_at,
            read=progress.step,
            total=progress.total,
            error_message=job.error_message,
            left_out=job.result.get("left_out", EMPTY),
            training_job_id=job.result.get("training_job_id"),
            **made,
        )
