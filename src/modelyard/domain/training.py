"""Trainable models, their checkpoints, and what training reads and writes (specification 4.3)."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

from modelyard.domain.completion import Choice, FinishReason, Message, TokenLogprob, Tool
from modelyard.domain.job import Job, JobKind, JobProgress, JobStatus, estimated_end
from modelyard.domain.record import Index, Record, frozen_mapping


@attrs.frozen
class Model:
    """A trainable model: a name for a line of checkpoints that starts at `base_model`. `last_step` is the highest step
    that ever was, so that no step number is used twice.
    """

    id: str
    entity: str
    project: str
    name: str
    base_model: str
    created_at: datetime
    run_id: str | None = None
    last_step: int = 0


@attrs.frozen
class Checkpoint:
    """Weights after one job. Step 0 is the untouched base and has no files.

    `files` maps file names to `{"artifact", "size", "digest"}`; `digest` is that of the mapping of names to digests.
    `parent_id` is the checkpoint that training started from. One that is `pinned` stays until it is unpinned.
    """

    id: str
    model_id: str
    entity: str
    project: str
    step: int
    created_at: datetime
    digest: str
    metrics: Mapping[str, float] = attrs.field(converter=frozen_mapping, factory=dict)
    files: Mapping[str, Any] = attrs.field(converter=frozen_mapping, factory=dict)
    parent_id: str | None = None
    job_id: str | None = None
    pinned: bool = False


@attrs.frozen
class Tombstone:
    """What is left of a model or checkpoint that was deleted: its place in listings, so that a cursor goes on from it.

    `parent` is the model of a checkpoint, "" for a model.
    """

    id: str
    entity: str
    project: str
    parent: str
    step: int
    created_at: datetime


@attrs.frozen
class Dataset:
    """Training data that was uploaded: rows of JSON Lines in an artifact. Versions of a name count from 0.

    `rows` is 0 when the artifact cannot be read as examples; a job on it is refused with the reason.
    """

    id: str
    entity: str
    project: str
    name: str
    version: int
    artifact: str
    rows: int
    size: int
    digest: str
    created_at: datetime

    @property
    def url(self) -> str:
        """How a job names it."""
        return f"modelyard:///{self.entity}/{self.project}/{self.name}:v{self.version}"


@attrs.frozen
class TrajectoryLog:
    """One call of `log`: trajectory groups of a split, with the means that people ask for first."""

    id: str
    model_id: str
    entity: str
    project: str
    split: str
    step: int
    artifact: str
    groups: int
    trajectories: int
    reward: float | None
    metrics: Mapping[str, float] = attrs.field(converter=frozen_mapping)
    created_at: datetime


# ---- what training reads -----------------------------------------------------------------------------------------


@attrs.frozen
class Example:
    """A conversation to imitate: the loss is on assistant tokens."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()


@attrs.frozen
class SampledChoice:
    """An assistant turn that the model itself sampled. Trained on when it has logprobs; without them it is context.

    `token_ids`, where the client carried them back, are exactly the sampled ids (one per logprob).
    """

    message: Message
    finish_reason: FinishReason = FinishReason.STOP
    logprobs: tuple[TokenLogprob, ...] | None = None
    token_ids: tuple[int, ...] = ()
    prompt_token_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, choice: Choice) -> "SampledChoice":
        """A choice of a completion, as a rollout carries it back."""
        return cls(choice.message, choice.finish_reason, choice.logprobs, choice.token_ids, choice.prompt_token_ids)


@attrs.frozen
class History:
    """Messages and sampled choices in order."""

    items: tuple[Message | SampledChoice, ...]
    tools: tuple[Tool, ...] = ()


@attrs.frozen
class Trajectory:
    """One rollout and its reward. `histories` is the main one and any additional ones, which share the reward."""

    histories: tuple[History, ...]
    reward: float = 0.0
    metrics: Mapping[str, Any] = attrs.field(converter=frozen_mapping, factory=dict)
    metadata: Mapping[str, Any] = attrs.field(converter=frozen_mapping, factory=dict)
    logs: tuple[str, ...] = ()
    initial_policy_version: int | None = None
    final_policy_version: int | None = None


@attrs.frozen
class RolloutError:
    """A rollout that failed, as its client reported it."""

    type: str
    message: str
    traceback: str = ""


@attrs.frozen
class TrajectoryGroup:
    """Rollouts of one scenario: advantages are measured within it. May be empty."""

    trajectories: tuple[Trajectory, ...]
    exceptions: tuple[RolloutError, ...] = ()
    metadata: Mapping[str, Any] = attrs.field(converter=frozen_mapping, factory=dict)
    metrics: Mapping[str, Any] = attrs.field(converter=frozen_mapping, factory=dict)
    logs: tuple[str, ...] = ()


# ---- what training writes ------------------------------------------------------------------------------------------

TRAINING_STARTED = "training_started"
GRADIENT_STEP = "gradient_step"
TRAINING_ENDED = "training_ended"
TRAINING_FAILED = "training_failed"


@attrs.frozen
class TrainingEvent:
    """An event of a training job, as it is read. `data` of a gradient step holds finite numbers only."""

    id: str
    seq: int
    type: str
    data: Mapping[str, Any]
    created_at: datetime


@attrs.frozen
class TrainingJob:
    """A job of kind sft or rl, as it is read. `step` is the checkpoint that it made.

    `queue_position` tells how many jobs wait ahead of it, while it waits itself; counting ends at 100.
    `last_heartbeat` is its worker's last sign of life, while one holds it; `estimated_end` is told from its first step
    on, while it runs.
    """

    id: str
    kind: JobKind
    model_id: str
    entity: str
    project: str
    status: JobStatus
    created_at: datetime
    training_start: datetime | None
    training_end: datetime | None
    error_message: str | None
    step: int | None
    metrics: Mapping[str, float]
    config: Mapping[str, Any]
    attempts: int
    progress: int
    total: int | None
    queue_position: int | None = None
    last_heartbeat: datetime | None = None
    estimated_end: datetime | None = None

    @classmethod
    def of(cls, job: Job, progress: JobProgress, now: datetime, queue_position: int | None) -> "TrainingJob":
        """The training face of a job."""
        return cls(
            id=job.id,
            kind=job.kind,
            model_id=job.lane,
            entity=job.entity,
            project=job.project,
            status=job.status,
            created_at=job.created_at,
            training_start=job.started_at,
            training_end=job.ended_at,
            error_message=job.error_message,
            step=job.result.get("step"),
            metrics=job.result.get("metrics", {}),
            config=job.spec.get("config", {}),
            attempts=job.attempts,
            progress=progress.step,
            total=progress.total,
            queue_position=queue_position,
            last_heartbeat=progress.updated_at if progress.held else None,
            estimated_end=estimated_end(job, progress, now),
        )


# ---- how a model is named in a completion --------------------------------------------------------------------------

_MODEL_NAME = re.compile(
    r"(?:(?:wandb-artifact|modelyard):/{2,3})?"
    r"(?P<entity>[A-Za-z0-9._-]{1,128})/(?P<project>[A-Za-z0-9._-]{1,128})/(?P<name>[A-Za-z0-9._-]{1,128})"
    r"(?::(?P<version>[A-Za-z0-9_-]{1,64}))?"
)
_STEP = re.compile(r"step(0|[1-9][0-9]{0,17})")
_DATASET_VERSION = re.compile(r"v(0|[1-9][0-9]{0,17})")


@attrs.frozen
class ModelName:
    """`[wandb-artifact:///|modelyard:///]<entity>/<project>/<name>[:step<N>|:latest|:<alias>]`, taken apart.

    `step` None means the latest checkpoint; `alias` is any other version word.
    """

    entity: str
    project: str
    name: str
    step: int | None = None
    alias: str | None = None

    @classmethod
    def parse(cls, text: str) -> "ModelName | None":
        """The name's parts, or None when it is no name of a trained model."""
        found = _MODEL_NAME.fullmatch(text)
        if found is None:
            return None
        version = found["version"]
        step = _STEP.fullmatch(version) if version else None
        alias = None if version in (None, "latest") or step else version
        return cls(found["entity"], found["project"], found["name"], int(step[1]) if step else None, alias)


@attrs.frozen
class DatasetName:
    """`modelyard:///<entity>/<project>/<name>:v<N>` (or `wandb-artifact:///...`) in parts; `version` None = latest."""

    entity: str
    project: str
    name: str
    version: int | None = None

    @classmethod
    def parse(cls, url: str) -> "DatasetName | None":
        """The URL's parts, or None when it is no artifact URL."""
        found = _MODEL_NAME.fullmatch(url)
        if found is None or "://" not in url:
            return None
        word = found["version"]
        number = _DATASET_VERSION.fullmatch(word) if word else None
        if word not in (None, "latest") and number is None:
            return None
        return cls(found["entity"], found["project"], found["name"], int(number[1]) if number else None)


RECORDS = (
    Record(
        Model,
        "models",
        ("id",),
        unique={"name": ("entity", "project", "name")},
        indexes={
            "all": Index(()),
            "by_entity": Index(("entity",), ("created_at",)),
            "by_project": Index(("entity", "project"), ("created_at",)),
        },
    ),
    Record(
        Checkpoint,
        "checkpoints",
        ("id",),
        unique={"step": ("model_id", "step")},
        indexes={
            "all": Index(()),
            "by_model": Index(("model_id",), ("step",)),
            "by_entity": Index(("entity",), ("created_at",)),
        },
    ),
    Record(
        Tombstone,
        "tombstones",
        ("id",),
        indexes={"by_parent": Index(("parent",)), "by_entity": Index(("entity",), ("created_at",))},
    ),
    Record(
        Dataset,
        "datasets",
        ("id",),
        unique={"version": ("entity", "project", "name", "version")},
        indexes={
            "all": Index(()),
            "by_name": Index(("entity", "project", "name"), ("version",)),
            "by_digest": Index(("entity", "project", "name", "digest"), ("version",)),
            "by_entity": Index(("entity",), ("created_at",)),
        },
    ),
    Record(
        TrajectoryLog,
        "trajectory_logs",
        ("id",),
        indexes={
            "all": Index(()),
            "by_model": Index(("model_id",), ("created_at",)),
            "by_split": Index(("model_id", "split"), ("created_at",)),
            "by_entity": Index(("entity",), ("created_at",)),
        },
    ),
)
