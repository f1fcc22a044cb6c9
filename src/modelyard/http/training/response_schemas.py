"""What the clients of the training interface receive: models, checkpoints, training jobs, events, pages of them."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal, TypeVar

import attrs

from modelyard.domain.job import JobKind, JobStatus
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.paging import Page
from modelyard.domain.training import Dataset, TrainingEvent, TrainingJob

T = TypeVar("T")


@attrs.frozen
class TrainableModel:
    """A model: a name for a line of checkpoints."""

    id: str
    entity: str
    project: str
    name: str
    base_model: str
    run_id: str | None
    created_at: str


@attrs.frozen
class ModelDeleted:
    """What went with a model."""

    model_id: str
    deleted_checkpoints: int
    deleted_run: bool


@attrs.frozen
class CheckpointObject:
    """A checkpoint; step 0 is the untouched base."""

    id: str
    step: int
    metrics: Mapping[str, float]
    created_at: str


@attrs.frozen
class CheckpointsDeleted:
    """How many checkpoints went, and which of the steps there were not."""

    deleted_count: int
    not_found_steps: tuple[int, ...]


@attrs.frozen
class CheckpointFile:
    """A file of a checkpoint; `digest` is its SHA-256 in hex."""

    name: str
    size: int
    digest: str


@attrs.frozen
class CheckpointFiles:
    """The files of a checkpoint."""

    step: int
    digest: str
    files: tuple[CheckpointFile, ...]


@attrs.frozen
class Logged:
    """The answer to a log: nothing."""


@attrs.frozen
class TrainingJobObject:
    """A training job. `step` is that of the checkpoint that it made, `config` the configuration in force.

    `queue_position` tells how many jobs wait ahead of one that waits, up to 100.
    """

    id: str
    object: Literal["training_job"]
    kind: JobKind
    model_id: str
    status: JobStatus
    created_at: str
    training_start: str | None
    training_end: str | None
    error_message: str | None
    step: int | None
    metrics: Mapping[str, float]
    attempts: int
    config: Mapping[str, Any]
    progress: int
    total: int | None
    queue_position: int | None
    last_heartbeat: str | None
    estimated_end: str | None


@attrs.frozen
class TrainingEventObject:
    """An event of a training job. The data of a `gradient_step` are finite numbers."""

    id: str
    type: Literal["training_started", "gradient_step", "training_ended", "training_failed"]
    data: Mapping[str, Any]
    created_at: str


@attrs.frozen
class DatasetObject:
    """Uploaded training data: the URL by which a job names them, and the SHA-256 of the rows."""

    url: str
    rows: int
    digest: str


@attrs.frozen
class Listed:
    """A page of a listing. `after` = `last_id` asks for the next; both ids are "" where the page is empty."""

    object: Literal["list"]
    has_more: bool
    first_id: str
    last_id: str


@attrs.frozen
class TrainableModelPage(Listed):
    """Some models, in the order of their creation."""

    data: tuple[TrainableModel, ...]


@attrs.frozen
class CheckpointPage(Listed):
    """Some checkpoints, by step."""

    data: tuple[CheckpointObject, ...]


@attrs.frozen
class TrainingJobPage(Listed):
    """Some training jobs, in the order of their creation."""

    data: tuple[TrainingJobObject, ...]


@attrs.frozen
class TrainingEventPage(Listed):
    """Some events of a job, in order."""

    data: tuple[TrainingEventObject, ...]


def page_object(page: Page[T], shown: Callable[[T], Mapping[str, Any]]) -> Mapping[str, Any]:
    """A page as plain JSON data, each item as `shown` shows it."""
    data = [shown(item) for item in page]
    first, last = (data[0]["id"], data[-1]["id"]) if data else ("", "")
    return {"object": "list", "data": data, "has_more": page.has_more, "first_id": first, "last_id": last}


def model_object(model: Model) -> Mapping[str, Any]:
    """A model in the members of `TrainableModel`."""
    return {
        "id": model.id,
        "entity": model.entity,
        "project": model.project,
        "name": model.name,
        "base_model": model.base_model,
        "run_id": model.run_id,
        "created_at": time_text(model.created_at),
    }


def checkpoint_object(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """A checkpoint in the members of `CheckpointObject`."""
    return {
        "id": checkpoint.id,
        "step": checkpoint.step,
        "metrics": dict(checkpoint.metrics),
        "created_at": time_text(checkpoint.created_at),
    }


def files_object(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """A checkpoint's files in the members of `CheckpointFiles`."""
    files = [
        {"name": name, "size": file["size"], "digest": file["digest"]}
        for name, file in sorted(checkpoint.files.items())
    ]
    return {"step": checkpoint.step, "digest": checkpoint.digest, "files": files}


def job_object(job: TrainingJob) -> Mapping[str, Any]:
    """A training job in the members of `TrainingJobObject`."""
    return {
        "id": job.id,
        "object": "training_job",
        "kind": job.kind.value,
        "model_id": job.model_id,
        "status": job.status.value,
        "created_at": time_text(job.created_at),
        "training_start": _maybe_time(job.training_start),
        "training_end": _maybe_time(job.training_end),
        "error_message": job.error_message,
        "step": job.step,
        "metrics": dict(job.metrics),
        "attempts": job.attempts,
        "config": dict(job.config),
        "progress": job.progress,
        "total": job.total,
        "queue_position": job.queue_position,
        "last_heartbeat": _maybe_time(job.last_heartbeat),
        "estimated_end": _maybe_time(job.estimated_end),
    }


def event_object(event: TrainingEvent) -> Mapping[str, Any]:
    """An event in the members of `TrainingEventObject`."""
    return {"id": event.id, "type": event.type, "data": dict(event.data), "created_at": time_text(event.created_at)}


def dataset_object(dataset: Dataset) -> Mapping[str, Any]:
    """A dataset in the members of `DatasetObject`."""
    return {"url": dataset.url, "rows": dataset.rows, "digest": dataset.digest}


def time_text(moment: datetime) -> str:
    """A time as the interface writes it: in UTC, with microseconds and a Z."""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _maybe_time(moment: datetime | None) -> str | None:
    return None if moment is None else time_text(moment)
