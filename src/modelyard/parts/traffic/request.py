"""The conditions of a collection, checked, and as JSON data for a job to keep."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypedDict

import attrs

from modelyard.domain.evaluation.scorer_rules import rule_of
from modelyard.domain.evaluation.scorers import LlmJudge
from modelyard.domain.identity import Principal, check_name
from modelyard.domain.record import EMPTY
from modelyard.errors import InvalidInput, nearest
from modelyard.parts.traffic.redaction import Redaction, TextRedaction
from modelyard.parts.traffic.selection import AnsweredBy, Score
from modelyard.parts.traffic.traffic_row import SOURCES, Source, TrafficRow
from modelyard.platform.paging import named_place
from modelyard.platform.runtime import Runtime


class CollectOptions(TypedDict, total=False):
    """The options of a collection; `Traffic.collect` explains each."""

    model: str | None
    sources: Sequence[Source]
    metadata: Mapping[str, Any]
    since: datetime | None
    until: datetime | None
    score: Score | None
    at_least: float | None
    pairs: bool
    redact: Redaction | Sequence[Redaction]
    holdout: float
    limit: int | None
    project: str | None
    entity: str | None


@attrs.frozen
class CollectRequest:
    """The conditions of a collection, and the `entity`, `project` and `name` of its datasets.

    With `everywhere`, completions and responses of every project of the entity are read. `model` is the requested name;
    an alias is replaced by the checkpoint or version that it named then.
    """

    name: str
    entity: str
    project: str
    everywhere: bool
    model: str | None = None
    sources: tuple[Source, ...] = SOURCES
    metadata: Mapping[str, Any] = EMPTY
    since: datetime | None = None
    until: datetime | None = None
    score: Score | None = None
    at_least: float | None = None
    pairs: bool = False
    redact: tuple[Redaction, ...] = ()
    holdout: float = 0.0
    limit: int | None = None
    where: Callable[[TrafficRow], bool] | None = None

    @classmethod
    def of(
        cls, runtime: Runtime, principal: Principal, name: str, given: CollectOptions, where: Any = None
    ) -> "CollectRequest":
        options: dict[str, Any] = {**given}
        entity, only = options.pop("entity", None), options.pop("project", None)
        place = named_place(runtime, principal, entity, only)
        check_name(name, "name")
        model, redact = options.pop("model", None), options.pop("redact", ())
        _check_types(model, options)
        if model is not None:
            find = partial(AnsweredBy.of, principal=principal, name=model)
            model = runtime.store.read(find).pinned
        several = redact if isinstance(redact, Sequence) and not isinstance(redact, str) else (redact,)
        options |= {"sources": tuple(dict.fromkeys(options.get("sources", SOURCES))), "redact": tuple(several)}
        request = cls(name, *place, only is None, model, **options, where=where)
        request._check()
        return request

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> "CollectRequest":
        times = {name: datetime.fromisoformat(plain[name]) for name in ("since", "until") if plain[name]}
        redact = tuple(one if isinstance(one, str) else re.compile(*one) for one in plain["redact"])
        return cls(**{**plain, **times, "sources": tuple(plain["sources"]), "redact": redact})

    def plain(self) -> Mapping[str, Any]:
        if callable(self.score):
            raise InvalidInput.at("score", msg="must be a path in feedback or a judge: a job cannot keep a function")
        if any(not isinstance(one, str | re.Pattern) for one in self.redact):
            raise InvalidInput.at("redact", msg="must be names of kinds or patterns: a job cannot keep a function")
        values = attrs.asdict(self, recurse=False, filter=lambda field, _: field.name != "where")
        redact = [one if isinstance(one, str) else [one.pattern, one.flags] for one in self.redact]  # type: ignore[union-attr]
        times = {name: _text(values[name]) for name in ("since", "until")}
        score = dict(self.score) if isinstance(self.score, Mapping) else self.score
        more = {"sources": [*self.sources], "metadata": dict(self.metadata), "redact": redact, "score": score}
        return {**values, **times, **more}

    @property
    def judge(self) -> LlmJudge | None:
        return None if not isinstance(self.score, Mapping) else judge_of(self.score)

    def _check(self) -> None:
        for at, one in enumerate(self.sources):
            if one not in SOURCES:
                raise InvalidInput.at("sources", at, msg=f"must be one of {', '.join(SOURCES)}{nearest(one, SOURCES)}")
        if self.score is None and (self.pairs or self.at_least is not None):
            raise InvalidInput.at("score", msg="is required where answers are compared", type="missing")
        if not 0 <= self.holdout < 1:
            raise InvalidInput.at("holdout", msg="must be from 0 to below 1")
        if self.limit is not None and self.limit < 1:
            raise InvalidInput.at("limit", msg="must be at least 1")
        for name in ("since", "until"):
            moment = getattr(self, name)
            if moment is not None and moment.tzinfo is None:
                raise InvalidInput.at(name, msg="must have a time zone")
        TextRedaction.of(self.redact)
        if isinstance(self.score, Mapping):
            judge_of(self.score)


def _check_types(model: object, options: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for what is of another type than the caller was told."""
    sources, metadata, limit = options.get("sources", SOURCES), options.get("metadata", EMPTY), options.get("limit")
    if model is not None and not isinstance(model, str):
        raise InvalidInput.at("model", msg="must be the name of a model")
    if isinstance(sources, str) or not isinstance(sources, Sequence):
        raise InvalidInput.at("sources", msg=f"must be a list of {', '.join(SOURCES)}")
    if not isinstance(metadata, Mapping) or not all(isinstance(name, str) for name in metadata):
        raise InvalidInput.at("metadata", msg="must be a mapping of names to texts")
    if limit is not None and (type(limit) is not int or limit >= 2**63):
        raise InvalidInput.at("limit", msg="must be a whole number from 1 to 2**63 - 1")
    if not isinstance(options.get("holdout", 0.0), int | float):
        raise InvalidInput.at("holdout", msg="must be a number from 0 to below 1")


def judge_of(score: Mapping[str, Any]) -> LlmJudge:
    """Read a judge that is given as data. Raises `InvalidInput`, also for another declarative scorer."""
    try:
        rule = rule_of(score)
    except InvalidInput as wrong:
        raise wrong.below("score") from None
    if not isinstance(rule, LlmJudge):
        raise InvalidInput.at("score", "type", msg="must be llm_judge; other scorers need an expected answer")
    return rule


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()
