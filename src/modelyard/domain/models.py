"""Trainable models, their checkpoints, and which checkpoints are kept."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar

import attrs

from modelyard.domain.record import Index, Record, brief, digests_of, frozen_mapping, in_notebook, sequence_field
from modelyard.errors import InvalidInput, Problem


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
    run_id: str | None = attrs.field(default=None, repr=False)
    last_step: int = 0
    seq: int = sequence_field()
    word: ClassVar[str] = "step"
    __repr__ = brief
    _repr_html_ = in_notebook

    def ref_of(self, step: int) -> str:
        """Return the reference of a checkpoint, an `ObjectRef` as text."""
        return f"weave:///{self.entity}/{self.project}/object/{self.name}:step{step}"


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
    _repr_html_ = in_notebook


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

    @classmethod
    def within(cls, entity: str, text: str) -> "ModelName | None":
        """Read a name, which may begin with the project: it is then one of this entity. Raises `InvalidInput`."""
        if not isinstance(text, str):
            raise InvalidInput.at("model", msg="must be a name or an id")
        return cls.parse(text) or cls.parse(f"{entity}/{text}")


MAX_METRIC = 128


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**63


@attrs.frozen
class Retention:
    """The rules by which a model's checkpoints are kept. A checkpoint that no rule keeps is removed; without any rule
    all stay.

    `keep_last` is how many of the highest steps to keep. `keep_best` is how many to keep with the highest `metric`, or
    the lowest if `lower_is_better`; a checkpoint without that metric stays. `ttl` keeps checkpoints younger than this
    many seconds. Raises `InvalidInput` naming every rule out of bounds.
    """

    model_id: str
    keep_last: int | None = None
    keep_best: int | None = None
    metric: str | None = None
    lower_is_better: bool = False
    ttl: float | None = None

    def __attrs_post_init__(self) -> None:
        problems = [Problem((name,), message) for name, fits, message in self._bounds() if not fits]
        if problems:
            raise InvalidInput(problems)

    def _bounds(self) -> list[tuple[str, bool, str]]:
        metric = "must be the name of a metric and a number of 1 or more"
        best = (self.metric, self.keep_best)
        fits = best == (None, None) or (None not in best and 1 <= len(self.metric or "") <= MAX_METRIC)
        longest = timedelta.max.total_seconds()
        return [
            ("keep_last", self.keep_last is None or _is_count(self.keep_last), "must be 1 or more"),
            ("keep_best", fits and (self.keep_best is None or _is_count(self.keep_best)), metric),
            ("ttl", self.ttl is None or 0 < self.ttl <= longest, "must be more than 0"),
        ]

    def expired(self, checkpoints: Sequence[Checkpoint], now: datetime) -> list[Checkpoint]:
        """Return the checkpoints that no rule keeps, from all of a model's, sorted by step. The latest, pinned ones,
        and step 0, which has no files, are never among them."""
        if self.keep_last is self.keep_best is self.ttl is None:
            return []
        kept = {one.id for one in (*self._last(checkpoints), *self._best(checkpoints), *self._young(checkpoints, now))}
        return [one for one in checkpoints[:-1] if one.step > 0 and not one.pinned and one.id not in kept]

    def _last(self, checkpoints: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
        return checkpoints[-self.keep_last :] if self.keep_last else ()

    def _best(self, checkpoints: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
        if self.metric is None:
            return ()
        sign = -1 if self.lower_is_better else 1
        unknown = [one for one in checkpoints if self.metric not in one.metrics]
        measured = [
            (sign * one.metrics[self.metric], one.step, one) for one in checkpoints if self.metric in one.metrics
        ]
        best = sorted(measured, key=lambda ranked: ranked[:2])[-(self.keep_best or 0) :]
        return [*unknown, *(one for _, _, one in best)]

    def _young(self, checkpoints: Sequence[Checkpoint], now: datetime) -> Iterable[Checkpoint]:
        ttl = self.ttl
        return () if ttl is None else (one for one in checkpoints if (now - one.created_at).total_seconds() < ttl)


RECORDS = (
    Record(
        Model,
        "models",
        ("id",),
        unique={"name": ("entity", "project", "name")},
        indexes={"all": Index(()), "by_entity": Index(("entity",)), "by_project": Index(("entity", "project"))},
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
        artifacts=lambda checkpoint: digests_of(checkpoint.files.values()),
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
            "by_age": Index((), ("created_at",)),
        },
        sequence="seq",
        artifacts=lambda log: (log.artifact,),
        texts="created_at",
    ),
    Record(Retention, "retentions", ("model_id",)),
)
