"""Aliases of checkpoints, such as `prod`: their names, what each points to, and its changes (specification 4.3). An
alias is served by name, `<entity>/<project>/<name>:prod`, and its checkpoint stays until the alias leaves it."""

import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, TypedDict

import attrs

from modelyard.domain.evaluation.objects import OneObject
from modelyard.domain.evaluation.statistics import CONFIDENCE
from modelyard.domain.record import EMPTY, Index, Record, frozen_mapping
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
    `margin`, at a `confidence`. `lower_is_better` names metrics of which lower values are better. An alias that points
    to nothing yet meets every requirement. Raises `InvalidInput` unless there is either an evaluation or runs.
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
