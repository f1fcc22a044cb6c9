"""What points to a checkpoint: aliases, and their promotions; and where a run, a checkpoint or a completion comes from
(specification 4.5).
"""

import re
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Protocol, TypedDict

import attrs

from modelyard.domain.evaluation.objects import OneObject
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.evaluation.statistics import CONFIDENCE
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.record import EMPTY, Index, Record, frozen_mapping, in_notebook
from modelyard.errors import InvalidInput

MAX_ALIASES = 100

ALIAS_PATTERN = r"(?!(?:latest|step[0-9]+|v[0-9]+)$)[a-z][a-z0-9_-]{0,63}"
_ALIAS = re.compile(ALIAS_PATTERN)


def check_alias(name: str) -> str:
    """Refuse a string that cannot be an alias. Raises `InvalidInput`. An alias is `[a-z][a-z0-9_-]{0,63}`, but not
    `latest`, `step<N>` or `v<N>`."""
    if not _ALIAS.fullmatch(name):
        msg = "must be a lower-case letter and up to 63 of a-z 0-9 _ -, and not latest, step<N> or v<N>"
        raise InvalidInput.at("alias", msg=msg)
    return name


class PromotionRuns(TypedDict):
    """The ids of two runs: one on the checkpoint that the alias points to, and one on the candidate."""

    baseline: str
    candidate: str


@attrs.frozen
class NotWorse:
    """A requirement of a promotion: that the candidate is not shown to be worse than what the alias points to.

    The newest completed runs of both on an `evaluation` are compared. It is given by its name in the model's project
    ("quiz", or "quiz:v0" for one version), its reference or its published version. Instead, `runs` gives the ids of the
    two runs: `{"baseline": ..., "candidate": ...}`. All metrics count, or the named one. The candidate may be worse by
    `margin`, at a `confidence`. `lower_is_better` names metrics of which lower values are better. If the alias points
    to nothing yet, the candidate must have completed the evaluation. Raises `InvalidInput` unless there is either an
    evaluation or runs.
    """

    evaluation: OneObject | None = None
    runs: PromotionRuns | None = None
    metric: str | None = None
    margin: float = 0.0
    confidence: float = CONFIDENCE
    lower_is_better: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        if (self.evaluation is None) is (self.runs is None):
            raise InvalidInput.at("evaluation", msg="give either an evaluation or two runs")

    def decide(self, runtime: Any, by: Any, *runs: EvaluationRun) -> Mapping[str, Any] | None:
        """Return what a part's own requirement shows of baseline and candidate. Raises `PromotionRefused`."""


class Promotable(Protocol):
    """What has versions to be promoted, each called a `word`: a model its steps."""

    @property
    def entity(self) -> str: ...

    @property
    def project(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def word(self) -> str: ...

    def ref_of(self, step: int, /) -> str:
        """Return the reference under which a version is evaluated."""
        ...


class Change(StrEnum):
    """How an alias came to point where it does."""

    PROMOTED = "promoted"
    ROLLED_BACK = "rolled_back"
    REMOVED = "removed"


@attrs.frozen
class Alias:
    """A name of one checkpoint of a model, by its `step`. `number` is that of the promotion in force; a rollback leads
    to `previous_step`, None for nowhere."""

    model_id: str
    name: str
    entity: str
    project: str
    step: int
    number: int
    previous_step: int | None
    updated_at: datetime


@attrs.frozen
class Promotion:
    """One change of what an alias points to: from `from_step` to `step`, None for nothing.

    Never changed, and deleted only with its model. `number` counts the changes of one alias from 1. `by` is the id of
    the key that requested it, or "host". `verdict` holds the numbers by which a requirement was met. A rollback of this
    change leads to the result of the change with the number `below`.
    """

    id: str
    model_id: str
    entity: str
    project: str
    alias: str
    number: int
    change: Change
    step: int | None
    from_step: int | None
    by: str
    created_at: datetime
    below: int | None = None
    verdict: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)


RECORDS = (
    Record(
        Alias,
        "aliases",
        ("model_id", "name"),
        indexes={"by_model": Index(("model_id",), ("name",)), "by_entity": Index(("entity",))},
        settings=("step",),
    ),
    Record(
        Promotion,
        "promotions",
        ("id",),
        unique={"number": ("model_id", "alias", "number")},
        indexes={
            "by_model": Index(("model_id",), ("alias", "number")),
            "by_alias": Index(("model_id", "alias"), ("number",)),
            "by_entity": Index(("entity",), ("created_at",)),
        },
    ),
)


@attrs.frozen
class TrainedStep:
    """How a checkpoint came to be, with the digest of its weights, and the SHA-256 and the dataset's name of its data.
    Without a job it is the untouched base, or came from elsewhere. Of a deleted one only the step is known."""

    step: int
    digest: str | None = None
    job_id: str | None = None
    kind: str | None = None
    data_digest: str | None = None
    data_url: str | None = None
    deleted: bool = False


@attrs.frozen
class CheckpointLineage:
    """The sources of a checkpoint, and what was made of it. `steps` begins with the checkpoint itself and continues
    with what it was trained from, the nearest first. `runs` are those that evaluated it, the newest first. `entries` of
    the catalogue are answered by it. `more` tells of further steps or runs. `base` has `hub_id` and `revision` (the
    commit) of a base model of a hub."""

    model: Model
    checkpoint: Checkpoint
    steps: tuple[TrainedStep, ...]
    aliases: tuple[str, ...] = ()
    runs: tuple[EvaluationRun, ...] = ()
    more: bool = False
    entries: tuple[str, ...] = ()
    base: Mapping[str, str] = EMPTY
    _repr_html_ = in_notebook

    @property
    def job_id(self) -> str | None:
        """The job that made it; None for the untouched base."""
        return self.steps[0].job_id

    @property
    def data_digest(self) -> str | None:
        """The digest of the data that it was trained on."""
        return self.steps[0].data_digest

    @property
    def parent_step(self) -> int | None:
        """The step that its training began at."""
        return self.steps[1].step if len(self.steps) > 1 else None


@attrs.frozen
class RunLineage:
    """The sources of an evaluation run, and what was made of it.

    `sources` are the runs that it was rescored from, its own source first; if the last one's source is not here,
    `missing_source` is its id. `derived` are the runs that were rescored from it, directly or not, the nearest first.
    `checkpoint` is the one that it evaluated, if that is known. `more` tells that there are further runs.
    """

    run: EvaluationRun
    sources: tuple[EvaluationRun, ...]
    missing_source: str | None
    derived: tuple[EvaluationRun, ...]
    checkpoint: CheckpointLineage | None = None
    more: bool = False
    _repr_html_ = in_notebook


@attrs.frozen
class CompletionLineage:
    """The model that answered a completion, and the price. `model` is the catalogue id, or `entity/project/name` of a
    trained model.

    If a trained model answered, also under a catalogue id, it did so with the checkpoint of `checkpoint_step`;
    `checkpoint` is its lineage, if it is still here and the caller may see its model. `price` holds the prices in USD
    that are not 0, as decimal text; `cost` is in USD.
    """

    id: str
    model: str
    base_model: str
    checkpoint_step: int | None
    checkpoint: CheckpointLineage | None
    prompt_tokens: int
    completion_tokens: int
    cost: Decimal
    created_at: datetime
    price: Mapping[str, str] = EMPTY
    _repr_html_ = in_notebook
