"""The scorers of a run: functions of the caller's and declarative ones, each with a name and a version."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, cast

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.objects import ObjectKind, ObjectRef, ObjectVersion, RefKind, object_id
from modelyard.domain.evaluation.running_totals import RunningTotals
from modelyard.domain.evaluation.scorer_rules import RULES, Combined, rule_of
from modelyard.domain.evaluation.scorers import DeclarativeScorer, LlmJudge, OwnRule, read_formula
from modelyard.domain.identity import Principal
from modelyard.domain.record import EMPTY, truncate_for_storage
from modelyard.errors import EvaluationError, InvalidInput, located_at
from modelyard.flow import Flow
from modelyard.formats.json import as_json
from modelyard.platform.evaluations.model_under_test import CompletionModel, JudgeScorer
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.references import Namespace
from modelyard.platform.evaluations.row_evaluation import (
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
ScorerFunction = Callable[[Any, Mapping[str, Any]], Any]

OneScorer = ScorerFunction | DeclarativeScorer | str | Mapping[str, Any] | ObjectVersion
"""A function of output and row; a declarative scorer, by value, as data, or by name if it needs no fields; or a
published scorer, or its reference."""

Scorers = OneScorer | Sequence[OneScorer] | Mapping[str, OneScorer]
MAX_SCORERS = 100


@attrs.frozen
class NamedScorer:
    """A scorer with its name. `function` is None for a declarative one; `rule` is None for a function. `published` is
    the version that it was read from, if it was given by its reference. `imported` is the path from which other
    processes import the function (`import_path`); None if only this one has it."""

    name: str
    rule: DeclarativeScorer | None = None
    function: ScorerFunction | None = None
    published: ObjectRef | None = None
    imported: str | None = None

    @cached_property
    def content(self) -> Mapping[str, Any]:
        """The content of its version: equal content is the same version. Source code is stored, and never run."""
        if self.rule is not None:
            return {"name": self.name, "scorer": self.rule.plain()}
        return {"name": self.name, "op_source_code": source_of(self.function)}

    def ref(self, namespace: Namespace) -> ObjectRef:
        return self.published or ObjectRef(*namespace, RefKind.OBJECT, self.name, digest(self.content))

    def publish(self, objects: Objects, namespace: Namespace) -> None:
        if self.published is None:
            objects.publish(ObjectKind.SCORER, self.name, self.content, entity=namespace[0], project=namespace[1])

    def spec(self, namespace: Namespace) -> Mapping[str, Any]:
        rule = None if self.rule is None else self.rule.plain()
        imported = {} if self.imported is None else {"imported": self.imported}
        return {"name": self.name, "ref": str(self.ref(namespace)), "rule": rule, **imported}

    @classmethod
    def kept(cls, kept: Mapping[str, Any]) -> "NamedScorer":
        """Return the scorer that a job stores as `kept`, which needs no function of this process. Raises as `load`."""
        path, rule = kept.get("imported"), None if kept["rule"] is None else rule_of(kept["rule"])
        function = None if path is None else load(path)
        return cls(kept["name"], rule, function, ObjectRef.parse(kept["ref"]), path)


def source_of(function: Any) -> str:
    try:
        return inspect.getsource(function if inspect.isroutine(function) else type(function))
    except (OSError, TypeError):
        return repr(type(function))


def import_path(function: ScorerFunction) -> str | None:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not module or module == "__main__" or module not in sys.modules or not name:
        return None
    return f"{module}:{name}" if _member(sys.modules[module], name) is function else None


def load(path: str) -> ScorerFunction:
    module, _, name = path.partition(":")
    try:
        function = _member(import_module(module), name)
        if not callable(function):
            raise ImportError(f"{module} has no function {name}")
    except ImportError as error:
        msg = f"{path} cannot be imported here: {error}; run the job where that module is installed"
        raise EvaluationError(msg) from None
    return cast(ScorerFunction, function)


def _member(module: object, name: str) -> object:
    for part in name.split("."):
        module = getattr(module, part, None)
    return module


def needs_function(kept: Mapping[str, Any]) -> bool:
    return kept["rule"] is None and "imported" not in kept


def name_scorers(scorers: Scorers, objects: Objects) -> tuple[NamedScorer, ...]:
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
    if isinstance(scorer, NamedScorer):
        return scorer
    if isinstance(scorer, ObjectVersion):
        scorer = str(scorer.ref)
    if isinstance(scorer, str) and "://" in scorer:
        return _read(objects.resolve(ObjectKind.SCORER, scorer))
    if isinstance(scorer, str):
        scorer = {"type": scorer}
    if isinstance(scorer, DeclarativeScorer):
        scorer = scorer.plain()
    if isinstance(scorer, Mapping):
        plain = as_json(scorer, at=("scorers",))
        name = name or str(plain.get("name") or plain.get("type"))
        with located_at("scorers", name):
            return NamedScorer(_checked_name(name), rule_of(plain))
    if not callable(scorer):
        raise InvalidInput.at("scorers", msg=f"must be functions, or declarative: {', '.join(sorted(RULES))}")
    own = getattr(scorer, "__name__", type(scorer).__name__)
    found = NamedScorer(_checked_name(name or own), function=scorer)
    check_signature(scorer, ("output", "row"), "scorers", found.name)
    return found


def _read(version: ObjectVersion) -> NamedScorer:
    data = version.content.get("scorer")
    if not isinstance(data, Mapping):
        msg = f"{version.object_id} is source code, which is stored and never run; publish a declarative scorer"
        raise InvalidInput.at("scorers", msg=msg)
    with located_at("scorers", version.object_id):
        return NamedScorer(_checked_name(version.object_id), rule_of(data), published=version.ref)


def _checked_name(name: str) -> str:
    checked = object_id(name)
    if ObjectRef.parse(f"weave:///e/p/object/{checked}") is None:
        raise InvalidInput.at("scorers", msg=f"{name!r} is not a valid scorer name")
    return checked


# ---- functions of the caller


@attrs.frozen
class LocalCallables:
    """The parts of a run in this process that a store cannot keep: functions, and the event loop on which to call them.
    `on_totals` receives the run's totals as soon as there are any."""

    model: ModelFunction | None = None
    scorers: Mapping[str, ScorerFunction] = EMPTY
    loop: Any = None
    principal: Principal | None = None
    on_totals: Callable[[RunningTotals], None] = lambda _: None

    def lack(self, kept: Mapping[str, Any]) -> bool:
        return needs_function(kept) and kept["name"] not in self.scorers


NO_CALLABLES = LocalCallables()


def callables_of(model: ModelFunction | None, scorers: Sequence[NamedScorer]) -> LocalCallables:
    functions = {one.name: one.function for one in scorers if one.function is not None and one.imported is None}
    return LocalCallables(model, functions)


# ---- in a run -------------------------------------------------------------------------------------------------------


@attrs.frozen
class RuleScorer:
    """A declarative scorer of a run."""

    waits: ClassVar[bool] = False
    name: str
    ref: ObjectRef
    rule: OwnRule

    def score(self, output: Any, row: Mapping[str, Any]) -> Flow[ScoreResult]:
        yield from ()
        try:
            return to_score_result(self.rule.score(output, row))
        except KeyError as missing:
            raise missing_field(missing) from None


@attrs.frozen
class CombinedScorer:
    name: str
    ref: ObjectRef
    rule: Combined
    parts: Mapping[str, RowScorer]

    def score(self, output: Any, row: Mapping[str, Any]) -> Flow[ScoreResult]:
        found: dict[str, ScoreResult] = {}
        for name, part in self.parts.items():
            found[name] = yield from part.score(output, row)
        used = [one for one in found.values() if one.prompt_tokens is not None]
        whole = ScoreResult(
            scored=all(one.scored for one in found.values()),
            prompt_tokens=sum(one.prompt_tokens or 0 for one in used) if used else None,
            completion_tokens=sum(one.completion_tokens or 0 for one in used) if used else None,
            cost=sum((one.cost or Decimal(0) for one in used), Decimal(0)) if used else None,
            comment=truncate_for_storage("; ".join(f"{name}: {one.value}" for name, one in found.items())),
        )
        missing = [f"{name}: {one.reason}" for name, one in found.items() if one.value is None]
        value = None if missing else self._number({name: one.value for name, one in found.items()})
        reason = "" if value is not None else "; ".join(missing) or "the formula comes to no number"
        return attrs.evolve(whole, value=value, reason=truncate_for_storage(reason))

    def _number(self, values: Mapping[str, Any]) -> float | None:
        return read_formula(self.rule.formula).value({name: float(value) for name, value in values.items()})


def build_scorer(
    runtime: Runtime,
    principal: Principal,
    namespace: Namespace,
    kept: Mapping[str, Any],
    function: ScorerFunction | None,
    retries: int,
) -> RowScorer:
    name, ref = kept["name"], ObjectRef.parse(kept["ref"])
    assert ref is not None
    if kept["rule"] is None:
        return CallableScorer(name, ref, function or load(kept["imported"]))
    return _built(runtime, principal, namespace, NamedScorer(name, rule_of(kept["rule"]), published=ref), retries)


def _built(runtime: Runtime, principal: Principal, namespace: Namespace, named: NamedScorer, retries: int) -> RowScorer:
    name, ref, rule = named.name, named.ref(namespace), named.rule
    if isinstance(rule, OwnRule):
        return RuleScorer(name, ref, rule)
    if isinstance(rule, Combined):
        parts = {
            part: _built(runtime, principal, namespace, NamedScorer(part, one, published=ref), retries)
            for part, one in rule.parts.items()
        }
        return CombinedScorer(name, ref, rule, parts)
    assert isinstance(rule, LlmJudge)
    model = CompletionModel.of(runtime, principal, rule.model, namespace, rule.options)
    return JudgeScorer(name, ref, rule, model, Retries(retries, runtime.clock))
