"""The scorers of a run: functions of the caller's and declarative ones, each with a name and a version."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.objects import ObjectKind, ObjectVersion
from modelyard.domain.evaluation.references import ObjectRef, RefKind, object_id
from modelyard.domain.evaluation.running_totals import RunningTotals
from modelyard.domain.evaluation.scorer_rules import RULES, rule_of
from modelyard.domain.evaluation.scorers import DeclarativeScorer, LlmJudge, OwnRule
from modelyard.domain.identity import Principal
from modelyard.domain.record import EMPTY
from modelyard.errors import InvalidInput
from modelyard.flow import Flow
from modelyard.platform.evaluations.model_under_test import CompletionModel, JudgeScorer
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.references import Namespace
from modelyard.platform.evaluations.row import (
    CallableScorer,
    Retries,
    RowScorer,
    ScoreResult,
    check_signature,
    missing_field,
    to_score_result,
)
from modelyard.platform.runtime import Runtime

ModelFunction = Callable[[Mapping[str, Any]], Any]
"""A function of the row."""

ScorerFunction = Callable[[Any, Mapping[str, Any]], Any]

OneScorer = ScorerFunction | DeclarativeScorer | str | Mapping[str, Any] | ObjectVersion
"""A function of output and row; a declarative scorer, by value, as data, or by name where it needs no fields; or a
published scorer, or its reference.
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
    rule: DeclarativeScorer | None = None
    function: ScorerFunction | None = None
    published: ObjectRef | None = None

    @property
    def content(self) -> Mapping[str, Any]:
        """The content of its version: equal content is the same version. Source code is stored, and never run."""
        if self.rule is not None:
            return {"name": self.name, "scorer": self.rule.plain()}
        return {"name": self.name, "op_source_code": source_of(self.function)}

    def ref(self, namespace: Namespace) -> ObjectRef:
        """Return the reference of this version, whether or not it is published."""
        return self.published or ObjectRef(*namespace, RefKind.OBJECT, self.name, digest(self.content))

    def publish(self, objects: Objects, namespace: Namespace) -> None:
        """Publish this version, unless it is published already. Raises `InvalidInput`, `Forbidden`."""
        if self.published is None:
            objects.publish(ObjectKind.SCORER, self.name, self.content, entity=namespace[0], project=namespace[1])

    def spec(self, namespace: Namespace) -> Mapping[str, Any]:
        """Return what a job stores of it: enough to build a declarative scorer again."""
        rule = None if self.rule is None else self.rule.plain()
        return {"name": self.name, "ref": str(self.ref(namespace)), "rule": rule}


def source_of(function: Any) -> str:
    """Return the source code of a function, or its type where there is none."""
    try:
        return inspect.getsource(function if inspect.isroutine(function) else type(function))
    except (OSError, TypeError):
        return repr(type(function))


def name_scorers(scorers: Scorers, objects: Objects) -> tuple[NamedScorer, ...]:
    """Name the scorers. Raises `InvalidInput`, and for a reference `NotFound`, `Forbidden`."""
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
            raise wrong.below("scorers", name) from None
    if isinstance(scorer, DeclarativeScorer):
        return NamedScorer(_checked_name(name or scorer.type), scorer)
    if not callable(scorer):
        raise InvalidInput.at("scorers", msg=f"must be functions, or declarative: {', '.join(sorted(RULES))}")
    own = getattr(scorer, "__name__", type(scorer).__name__)
    found = NamedScorer(_checked_name(name or own), function=scorer)
    check_signature(scorer, ("output", "row"), "scorers", found.name)
    return found


def _read(version: ObjectVersion) -> NamedScorer:
    """Read a declarative scorer from a published version. Raises `InvalidInput`."""
    data = version.content.get("scorer")
    if not isinstance(data, Mapping):
        msg = f"{version.object_id} is source code, which is stored and never run; publish a declarative scorer"
        raise InvalidInput.at("scorers", msg=msg)
    try:
        return NamedScorer(_checked_name(version.object_id), rule_of(data), published=version.ref)
    except InvalidInput as wrong:
        raise wrong.below("scorers", version.object_id) from None


def _checked_name(name: str) -> str:
    checked = object_id(name)
    if ObjectRef.parse(f"weave:///e/p/object/{checked}") is None:
        raise InvalidInput.at("scorers", msg=f"{name!r} is not a valid scorer name")
    return checked


# ---- functions of the caller


@attrs.frozen
class LocalCallables:
    """What a run in this process brings that a store cannot keep: functions, and the event loop on which to call them.

    `on_totals` receives the run's totals as soon as there are any.
    """

    model: ModelFunction | None = None
    scorers: Mapping[str, ScorerFunction] = EMPTY
    loop: Any = None
    principal: Principal | None = None
    on_totals: Callable[[RunningTotals], None] = lambda _: None


def callables_of(model: ModelFunction | None, scorers: Sequence[NamedScorer]) -> LocalCallables:
    """Return the functions among a model and scorers."""
    functions = {scorer.name: scorer.function for scorer in scorers if scorer.function is not None}
    return LocalCallables(model, functions)


# ---- in a run -------------------------------------------------------------------------------------------------------


@attrs.frozen
class RuleScorer:
    """A declarative scorer of a run."""

    name: str
    ref: ObjectRef
    rule: OwnRule

    def score(self, output: Any, row: Mapping[str, Any]) -> Flow[ScoreResult]:
        """Score by the rule."""
        yield from ()
        try:
            return to_score_result(self.rule.score(output, row))
        except KeyError as missing:
            raise missing_field(missing) from None


def build_scorer(
    runtime: Runtime,
    principal: Principal,
    namespace: Namespace,
    kept: Mapping[str, Any],
    function: ScorerFunction | None,
    retries: int,
) -> RowScorer:
    """Build the scorer that a job stores as `kept`, with its function if it has one. Raises as `CompletionModel.of`."""
    name, ref = kept["name"], ObjectRef.parse(kept["ref"])
    assert ref is not None
    if kept["rule"] is None:
        assert function is not None
        return CallableScorer(name, ref, function)
    rule = rule_of(kept["rule"])
    if isinstance(rule, OwnRule):
        return RuleScorer(name, ref, rule)
    assert isinstance(rule, LlmJudge)
    model = CompletionModel.of(runtime, principal, rule.model, namespace, rule.options)
    return JudgeScorer(name, ref, rule, model, Retries(retries, runtime.clock))
