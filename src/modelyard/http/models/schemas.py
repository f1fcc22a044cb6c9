"""Aliases of checkpoints and their history as the clients of the training interface know them."""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from modelyard.domain.evaluation.statistics import CONFIDENCE
from modelyard.domain.promotion import Alias, Change, NotWorse, Promotion
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.constraints import Length, Within
from modelyard.formats.converter import structure
from modelyard.http.evaluations.run_schemas import plain
from modelyard.http.training.response_schemas import Listed, time_text


@attrs.frozen
class Runs:
    """The ids of two runs: of the checkpoint, and of what the alias points to."""

    candidate: str = attrs.field(validator=Length(1, 128))
    baseline: str = attrs.field(validator=Length(1, 128))


@attrs.frozen
class Requirement:
    """That the checkpoint is not shown to be worse than what the alias points to, on an evaluation or by two runs."""

    evaluation: str | None = attrs.field(default=None, validator=Length(1, 1000))
    runs: Runs | None = None
    metric: str | None = None
    margin: float = attrs.field(default=0.0, validator=Within(0))
    confidence: float = attrs.field(default=CONFIDENCE, validator=Within(0.5, 0.9999))

    def not_worse(self) -> NotWorse:
        """The requirement. Raises `InvalidInput`."""
        runs = None if self.runs is None else (self.runs.candidate, self.runs.baseline)
        return NotWorse(self.evaluation, runs, self.metric, self.margin, self.confidence)


@attrs.frozen
class PromotionCreate:
    """The body that lets an alias point to the checkpoint of a step, if that meets what is required."""

    step: int = attrs.field(validator=Within(0))
    require: Requirement | None = None


def promotion_asked(value: object) -> PromotionCreate:
    """What a body asks for. Raises `InvalidInput`, also for a member that is not known: a requirement that is misspelt
    must not be a promotion without one.
    """
    asked = structure(PromotionCreate, value, "body")
    problems = _unknown(PromotionCreate, value, "body")
    if asked.require is not None and isinstance(value, Mapping):
        problems += _unknown(Requirement, value["require"], "body", "require")
    if problems:
        raise InvalidInput(problems)
    return asked


def _unknown(cls: type[attrs.AttrsInstance], value: object, *loc: str) -> list[Problem]:
    known = {field.name for field in attrs.fields(cls)}
    names = [name for name in value if name not in known] if isinstance(value, Mapping) else []
    return [Problem((*loc, name), f"is not known; there is {', '.join(sorted(known))}", "unknown") for name in names]


@attrs.frozen
class AliasObject:
    """An alias; its id is its name. `previous_step` is where a rollback leads."""

    id: str
    object: Literal["alias"]
    model_id: str
    step: int
    previous_step: int | None
    updated_at: str


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
    created_at: str


@attrs.frozen
class AliasPage(Listed):
    """All aliases of a model, by name."""

    data: tuple[AliasObject, ...]


@attrs.frozen
class PromotionPage(Listed):
    """Some changes of an alias, in order."""

    data: tuple[PromotionObject, ...]


def alias_object(alias: Alias) -> Mapping[str, Any]:
    """An alias in the members of `AliasObject`."""
    return {
        "id": alias.name,
        "object": "alias",
        "model_id": alias.model_id,
        "step": alias.step,
        "previous_step": alias.previous_step,
        "updated_at": time_text(alias.updated_at),
    }


def promotion_object(promotion: Promotion) -> Mapping[str, Any]:
    """A change of an alias in the members of `PromotionObject`."""
    return {
        "id": promotion.id,
        "object": "promotion",
        "model_id": promotion.model_id,
        "alias": promotion.alias,
        "change": promotion.change.value,
        "step": promotion.step,
        "from_step": promotion.from_step,
        "by": promotion.by,
        "verdict": plain(promotion.verdict) or None,
        "created_at": time_text(promotion.created_at),
    }
