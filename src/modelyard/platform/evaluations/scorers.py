"""The scorers of a run: functions of the caller's and declarative ones, each with a name and a version."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.objects import ObjectKind, ObjectVersion
from modelyard.domain.evaluation.references import ObjectRef, RefKind, object_id
from modelyard.domain.evaluation.scorers import RULES, LlmJudge, OwnRule, Rule, rule_of
from modelyard.domain.identity import Principal
from modelyard.errors import InvalidInput
from modelyard.flow import Flow
from modelyard.formats.fields import below
from modelyard.platform.evaluations.model_under_test import CompletionModel, JudgeScorer
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.row import (
    FunctionScorer,
    Retries,
    RowScorer,
    ScoreResult,
    check_takes,
    lacking,
    verdict_of,
)
from modelyard.platform.runtime import Runtime
from modelyard.platform.scope import Namespace

ScorerFunction = Callable[[Any, Mapping[str, Any]], Any]

OneScorer = ScorerFunction | Rule | str | Mapping[str, Any] | ObjectVersion
"""A function of output and row; a declarative scorer: its value, its data, the name of one that needs no fields; or
one that was published, or its reference.
"""

Scorers = OneScorer | Sequence[OneScorer] | Mapping[str, OneScorer]
"""One scorer, several, or several by names of your choice."""

MAX_SCORERS = 100


@attrs.frozen
class NamedScorer:
    """A scorer with its name. `function` is None for a declarative one; `rule` is None for a function.

    `published` is the version that it was read from, where it was given by its reference.
    """

    name: str
    rule: Rule | None = None
    function: ScorerFunction | None = None
    published: ObjectRef | None = None

    @property
    def content(self) -> Mapping[str, Any]:
        """What a version of it is: equal content is the same version. Source code is text, and is never run."""
        if self.rule is not None:
            return {"name": self.name, "scorer": self.rule.plain()}
        return {"name": self.name, "op_source_code": source_of(self.function)}

    def ref(self, place: Namespace) -> ObjectRef:
        """The reference of this version, whether or not it is published."""
        return self.published or ObjectRef(*place, RefKind.OBJECT, self.name, digest(self.content))

    def publish(self, objects: Objects, place: Namespace) -> None:
        """Keep this version, unless it is kept already. Raises `InvalidInput`, `Forbidden`."""
        if self.published is None:
            objects.publish(ObjectKind.SCORER, self.name, self.content, entity=place[0], project=place[1])

    def plain(self, place: Namespace) -> Mapping[str, Any]:
        """As a job keeps it: enough to make a declarative one again."""
        rule = None if self.rule is None else self.rule.plain()
        return {"name": self.name, "ref": str(self.ref(place)), "rule": rule}


def source_of(function: Any) -> str:
    """The text of a function, or what is known of it."""
    try:
        return inspect.getsource(function if inspect.isroutine(function) else type(function))
    except (OSError, TypeError):
        return repr(type(function))


def named(scorers: Scorers, objects: Objects) -> tuple[NamedScorer, ...]:
    """The scorers by their names. Raises `InvalidInput`, and for a reference `NotFound`, `Forbidden`."""
    found = tuple(_each(scorers, objects))
    names = [scorer.name for scorer in found]
    if len(found) > MAX_SCORERS:
        raise InvalidInput.at("scorers", msg=f"name at most {MAX_SCORERS}")
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput.at("scorers", msg=f"two are called {name!r}; give them as a mapping of names")
    return found


def _each(scorers: Scorers, objects: Objects) -> list[NamedScorer]:
    if isinstance(scorers, Mapping) and not isinstance(scorers.get("type"), str):
        return [_named(one, objects, str(name)) for name, one in scorers.items()]
    if isinstance(scorers, Sequence) and not isinstance(scorers, str):
        return [_named(one, objects) for one in scorers]
    return [_named(scorers, objects)]


def _named(scorer: Any, objects: Objects, name: str | None = None) -> NamedScorer:
    if isinstance(scorer, ObjectVersion):
        scorer = str(scorer.ref)
    if isinstance(scorer, str) and "://" in scorer:
        return _read(objects.resolve(ObjectKind.SCORER, scorer))
    if isinstance(scorer, str):
        scorer = {"type": scorer}
    if isinstance(scorer, Mapping):
        name = name or str(scorer.get("name") or scorer.get("type"))
        try:
            scorer = rule_of(scorer)
        except InvalidInput as wrong:
            raise below(wrong, "scorers", name) from None
    if isinstance(scorer, Rule):
        return NamedScorer(_checked_name(name or scorer.type), scorer)
    if not callable(scorer):
        raise InvalidInput.at("scorers", msg=f"must be functions, or declarative: {', '.join(sorted(RULES))}")
    own = getattr(scorer, "__name__", type(scorer).__name__)
    named_so = NamedScorer(_checked_name(name or own), function=scorer)
    check_takes(scorer, ("output", "row"), "scorers", named_so.name)
    return named_so


def _read(version: ObjectVersion) -> NamedScorer:
    """A declarative scorer out of the version that was published of it. Raises `InvalidInput`."""
    plain = version.content.get("scorer")
    if not isinstance(plain, Mapping):
        msg = f"{version.object_id} is source code, which is kept and never run; publish a declarative scorer"
        raise InvalidInput.at("scorers", msg=msg)
    try:
        return NamedScorer(_checked_name(version.object_id), rule_of(plain), published=version.ref)
    except InvalidInput as wrong:
        raise below(wrong, "scorers", version.object_id) from None


def _checked_name(name: str) -> str:
    checked = object_id(name)
    if ObjectRef.parse(f"weave:///e/p/object/{checked}") is None:
        raise InvalidInput.at("scorers", msg=f"{name!r} is no name for a scorer")
    return checked


# ---- at work -------------------------------------------------------------------------------------------------------


@attrs.frozen
class RuleScorer:
    """A declarative scorer at work."""

    name: str
    ref: ObjectRef
    rule: OwnRule

    def judge(self, output: Any, row: Mapping[str, Any]) -> Flow[ScoreResult]:
        """What it says."""
        yield from ()
        try:
            return verdict_of(self.rule.score(output, row))
        except KeyError as missing:
            raise lacking(missing) from None


def at_work(
    runtime: Runtime,
    principal: Principal,
    place: Namespace,
    plain: Mapping[str, Any],
    function: ScorerFunction | None,
    retries: int,
) -> RowScorer:
    """The scorer that a job keeps as `plain`, with the function that it stands for. Raises as `CompletionModel.of`."""
    name, ref = plain["name"], ObjectRef.parse(plain["ref"])
    assert ref is not None
    if plain["rule"] is None:
        assert function is not None
        return FunctionScorer(name, ref, function)
    rule = rule_of(plain["rule"])
    if isinstance(rule, OwnRule):
        return RuleScorer(name, ref, rule)
    assert isinstance(rule, LlmJudge)
    model = CompletionModel.of(runtime, principal, rule.model, place, rule.options)
    return JudgeScorer(name, ref, rule, model, Retries(retries, runtime.clock))
