"""Trainable models and their checkpoints."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

from modelyard.domain.record import Index, Record, frozen_mapping, sequence_field


@attrs.frozen
class Model:
    """A trainable model: a name for a line of checkpoints that starts at `base_model`. `last_step` is the highest step
    that ever was, so that no step number is used twice."""

    id: str
    entity: str
    project: str
    name: str
    base_model: str
    created_at: datetime
    run_id: str | None = None
    last_step: int = 0
    seq: int = sequence_field()


@attrs.frozen
class Checkpoint:
    """Weights after one job. Step 0 is the untouched base and has no files. `files` maps file names to
    `{"artifact", "size", "digest"}`; `digest` is that of the mapping of names to digests. `parent_id` is the checkpoint
    that training started from. A `pinned` checkpoint stays until it is unpinned."""

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
    """A deleted model or checkpoint: it keeps its place in listings, so that a cursor continues from it. `parent` is
    the model of a checkpoint, "" for a model. `seq` is that of the model, 0 for a checkpoint."""

    id: str
    entity: str
    project: str
    parent: str
    step: int
    created_at: datetime
    seq: int = 0


@attrs.frozen
class TrajectoryLog:
    """One call of `log`: trajectory groups of a split, with their most used means."""

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
    seq: int = sequence_field()


# ---- how a model is named in a completion --------------------------------------------------------------------------

ARTIFACT_NAME = re.compile(
    r"(?:(?:wandb-artifact|modelyard):/{2,3})?"
    r"(?P<entity>[A-Za-z0-9._-]{1,128})/(?P<project>[A-Za-z0-9._-]{1,128})/(?P<name>[A-Za-z0-9._-]{1,128})"
    r"(?::(?P<version>[A-Za-z0-9_-]{1,64}))?"
)

_STEP = re.compile(r"step(0|[1-9][0-9]{0,17})")


@attrs.frozen
class ModelName:
    """`[wandb-artifact:///|modelyard:///]<entity>/<project>/<name>[:step<N>|:latest|:<alias>]` in parts. `step` None
    means the latest checkpoint; `alias` is any other version word."""

    entity: str
    project: str
    name: str
    step: int | None = None
    alias: str | None = None

    @classmethod
    def parse(cls, text: str) -> "ModelName | None":
        found = ARTIFACT_NAME.fullmatch(text)
        if found is None:
            return None
        version = found["version"]
        step = _STEP.fullmatch(version) if version else None
        alias = None if version in (None, "latest") or step else version
        return cls(found["entity"], found["project"], found["name"], int(step[1]) if step else None, alias)


RECORDS = (
    Record(
        Model,
        "models",
        ("id",),
        unique={"name": ("entity", "project", "name")},
        indexes={
            "all": Index(()),
            "by_entity": Index(("entity",)),
            "by_project": Index(("entity", "project")),
        },
        sequence="seq",
        settings=("entity", "project", "name", "base_model"),
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
        settings=tuple(field.name for field in attrs.fields(Checkpoint)),
        artifacts=lambda checkpoint: (file["artifact"] for file in checkpoint.files.values()),
    ),
    Record(
        Tombstone,
        "tombstones",
        ("id",),
        indexes={"by_parent": Index(("parent",)), "by_entity": Index(("entity",), ("created_at",))},
    ),
    Record(
        TrajectoryLog,
        "trajectory_logs",
        ("id",),
        indexes={
            "all": Index(()),
            "by_model": Index(("model_id",)),
            "by_split": Index(("model_id", "split")),
            "by_entity": Index(("entity",)),
        },
        sequence="seq",
        artifacts=lambda log: (log.artifact,),
    ),
)
