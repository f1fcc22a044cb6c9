"""Models, their checkpoints and aliases as the clients of the training interface know them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, Self

import attrs

from modelyard.domain.evaluation.statistics import CONFIDENCE
from modelyard.domain.models import Checkpoint
from modelyard.domain.promotion import Change, NotWorse, PromotionRuns
from modelyard.formats.constraints import ID, NAME, Length, Within
from modelyard.http.listing import PageObject, page_class
from modelyard.http.message import answering, constant

# ---- requests


@attrs.frozen
class ModelCreate:
    """The body that creates a model. Without `entity` it is the key's default one."""

    project: str = attrs.field(validator=NAME)
    name: str = attrs.field(validator=NAME)
    base_model: str = attrs.field(validator=Length(1, 512))
    entity: str | None = attrs.field(default=None, validator=NAME)
    return_existing: bool = False


@attrs.frozen
class CheckpointsDelete:
    """The body that deletes checkpoints, all or none of them."""

    steps: tuple[int, ...] = attrs.field(validator=Length(0, 1000))


@attrs.frozen
class LogCreate:
    """The body that logs trajectory groups. `model_id`, if there, is that of the path."""

    trajectory_groups: tuple[Mapping[str, Any], ...]
    split: str = attrs.field(default="train", validator=NAME)
    model_id: str | None = attrs.field(default=None, validator=ID)


@attrs.frozen
class RunPair:
    """The ids of two runs: of the checkpoint, and of the one that the alias points to."""

    candidate: str = attrs.field(validator=Length(1, 128))
    baseline: str = attrs.field(validator=Length(1, 128))


@attrs.frozen
class Requirement:
    """What must hold: an evaluation, or two runs, do not show the checkpoint to be worse than that of the alias."""

    evaluation: str | None = attrs.field(default=None, validator=Length(1, 1000))
    runs: RunPair | None = None
    metric: str | None = None
    margin: float = attrs.field(default=0.0, validator=Within(0))
    confidence: float = attrs.field(default=CONFIDENCE, validator=Within(0.5, 0.9999))
    lower_is_better: tuple[str, ...] = attrs.field(default=(), validator=Length(0, 200))

    def not_worse(self) -> NotWorse:
        runs: PromotionRuns | None = None
        if self.runs is not None:
            runs = {"baseline": self.runs.baseline, "candidate": self.runs.candidate}
        return NotWorse(self.evaluation, runs, self.metric, self.margin, self.confidence, self.lower_is_better)


@attrs.frozen
class PromotionCreate:
    """The body that points an alias to the checkpoint of a step, if that meets the requirement."""

    step: int = attrs.field(validator=Within(0))
    require: Requirement | None = None


# ---- responses


@attrs.frozen
class TrainableModel:
    """A model: a name for a sequence of checkpoints."""

    id: str
    entity: str
    project: str
    name: str
    base_model: str
    run_id: str | None
    created_at: datetime


@attrs.frozen
class ModelDeleted:
    """What was deleted with a model."""

    model_id: str
    deleted_checkpoints: int
    deleted_run: bool


@attrs.frozen
class CheckpointObject:
    """A checkpoint; step 0 is the untouched base."""

    id: str
    step: int
    metrics: Mapping[str, float]
    created_at: datetime


@attrs.frozen
class CheckpointsDeleted:
    """How many checkpoints were deleted, and which of the steps do not exist."""

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

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        files = sorted(checkpoint.files.items())
        shown = tuple(CheckpointFile(name, file["size"], file["digest"]) for name, file in files)
        return cls(checkpoint.step, checkpoint.digest, shown)


@attrs.frozen
class Logged:
    """The answer to a log, which is empty."""


@attrs.frozen
class AliasObject:
    """An alias; its id is its name. A rollback leads to `previous_step`."""

    id: str
    object: Literal["alias"]
    model_id: str
    step: int
    previous_step: int | None
    updated_at: datetime


@attrs.frozen
class PromotionObject:
    """A change of an alias. `step` is null where the alias was removed, `from_step` where there was none."""

    id: str
    object: Literal["promotion"]
    model_id: str
    alias: str
    change: Change
    step: int | None
    from_step: int | None
    by: str
    verdict: Mapping[str, Any] | None
    created_at: datetime


model_object = answering(TrainableModel)
model_deleted = answering(ModelDeleted)
checkpoint_object = answering(CheckpointObject)
checkpoints_deleted = answering(CheckpointsDeleted)
alias_object = answering(AliasObject, id="name", object=constant("alias"))
promotion_object = answering(
    PromotionObject, object=constant("promotion"), verdict=lambda promotion: promotion.verdict or None
)

AliasPage: type[PageObject] = page_class("AliasPage", AliasObject, alias_object, "All aliases of a model, by name.")
PromotionPage: type[PageObject] = page_class(
    "PromotionPage", PromotionObject, promotion_object, "Some changes of an alias, in order."
)
TrainableModelPage: type[PageObject] = page_class(
    "TrainableModelPage", TrainableModel, model_object, "Some models, in the order of their creation."
)
CheckpointPage: type[PageObject] = page_class(
    "CheckpointPage", CheckpointObject, checkpoint_object, "Some checkpoints, by step."
)
