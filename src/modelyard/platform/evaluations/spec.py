"""The spec of a run: what it is to do, checked, resolved, and stored with its job."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypedDict, TypeVar

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.evaluation.objects import (
    EVALUATION_KINDS,
    ObjectKind,
    ObjectRef,
    ObjectVersion,
    OneObject,
    RefKind,
    object_id,
)
from modelyard.domain.evaluation.run import MAX_SHARDS, EvaluationRun
from modelyard.domain.evaluation.scorer_rules import Combined
from modelyard.domain.evaluation.scorers import LlmJudge
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobKind
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.worker import Resources, check_resources
from modelyard.errors import InvalidInput, NotFound, Problem
from modelyard.formats.json import as_json
from modelyard.platform.artifacts import remove_unless_recorded
from modelyard.platform.chat.request import GenerationOptions
from modelyard.platform.evaluations.model_under_test import CompletionModel
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.references import Namespace
from modelyard.platform.evaluations.row_evaluation import RunLimits, check_signature
from modelyard.platform.evaluations.scorers import (
    LocalCallables,
    ModelFunction,
    NamedScorer,
    build_scorer,
    callables_of,
)
from modelyard.platform.evaluations.shards import split
from modelyard.platform.jobs.claims import requester_spec
from modelyard.platform.jobs.queue import enqueue
from modelyard.platform.owned import store_texts
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Tx

T = TypeVar("T")

OneModel = str | CatalogueEntry | Model | Checkpoint | ModelFunction


class WorkOptions(TypedDict, total=False):
    """How a run works through its rows. At most `concurrency` rows are in flight at a time, `scorer_concurrency` of
    them in their scorers: by default as many if a judge scores and no function does, else one. Each takes at most
    `timeout` seconds. A call with a temporary failure is repeated up to `retries` times: by default one of a judge 3
    times, one of the model never. The run fails when more rows have failed than `error_budget`: a count, or as a float
    a share of all rows. The rows are split into so many `shards`, each a job, so that as many workers work on one run,
    or this thread if none is alive; each has as many rows in flight. `needs` are the resources of each job."""

    concurrency: int
    scorer_concurrency: int
    timeout: float | None
    retries: int
    error_budget: float | None
    shards: int
    needs: Resources | None


class EvaluationOptions(WorkOptions, GenerationOptions, total=False):
    """How a run works, the options of its completions, and its namespace. Each row is evaluated in `trials` trials,
    each with another seed. `system` is the system message of each row, and `prompt` what its user asks; `{name}` stands
    for a field of the row. `project` and `entity` are by default those of the platform and of the caller."""

    trials: int
    system: str | None
    prompt: str | None
    project: str | None
    entity: str | None


_MODEL = "a name, a reference, an entry, a trained model, a checkpoint or a function of the row"

_WHOLE = {
    "concurrency": (1, 1000),
    "scorer_concurrency": (1, 1000),
    "retries": (0, 100),
    "trials": (1, 1000),
    "shards": (1, MAX_SHARDS),
    "seed": (-(2**63), 2**63 - 1),
}
WORK_OPTIONS = frozenset(WorkOptions.__annotations__)
EVALUATION_OPTIONS = frozenset(EvaluationOptions.__annotations__)
_NAMESPACE = ("project", "entity")
_SEED_BYTES = 6


@attrs.frozen
class RunSpec:
    """A run and its job, still to be stored, and the functions that it needs. Once it has rows, `more` are the jobs of
    its other `shards`. If it `needs_messages`, each row must have them, or a prompt."""

    runtime: Runtime
    run: EvaluationRun
    job: Job
    callables: LocalCallables
    shards: int = 1
    needs_messages: bool = False
    more: tuple[Job, ...] = ()

    def with_items(self, count: int, **source: str) -> "RunSpec":
        job = attrs.evolve(self.job, spec={**self.job.spec, **source})
        first, *more = split(job, self.shards, count, self.job.spec.get("trials", 1), self.runtime.ids)
        return attrs.evolve(self, job=first, more=tuple(more))

    def check_portable(self) -> None:
        """Raise `InvalidInput` when it needs functions of the caller's, which no worker has."""
        needed = {"model": self.callables.model, "scorers": self.callables.scorers}
        problems = [
            Problem(
                (name,), "workers cannot run a function of the caller; name one of the platform's own, or use `run`"
            )
            for name, functions in needed.items()
            if functions
        ]
        if problems:
            raise InvalidInput(problems)

    def add(self, tx: Tx) -> None:
        tx.add(self.run)
        for job in (self.job, *self.more):
            enqueue(tx, job, self.runtime.settings.max_queued_jobs)

    def store(self, step: Callable[[Tx], T]) -> T:
        if "artifact" not in self.job.spec:
            return store_texts(self.runtime, self.job.entity, step)
        with remove_unless_recorded(self.runtime.artifacts, self.job.spec["artifact"]):
            return store_texts(self.runtime, self.job.entity, step)


# ---- a run ---------------------------------------------------------------------------------------------------------


def build_spec(
    runtime: Runtime,
    principal: Principal,
    evaluation: OneObject,
    model: OneModel,
    scorers: Sequence[NamedScorer],
    namespace: Namespace,
    options: Mapping[str, Any],
) -> RunSpec:
    runtime.require_room()
    seed = options.get("seed")
    work = {name: options[name] for name in options if name in WORK_OPTIONS or name == "trials"}
    given = {name: options[name] for name in options if name not in (*work, *_NAMESPACE, "seed")}
    chat = as_json(given, at=("options",))
    limits = limits_of({**work, "seed": _fresh_seed(runtime) if seed is None else seed}, scorers)
    pinned, ref, base_model, needs_messages = _model(runtime, principal, model, namespace, chat, seed)
    spec = {
        "model": pinned,
        "model_ref": str(ref),
        "options": chat,
        "trials": work.get("trials", 1),
        **scored_by(runtime, principal, namespace, scorers, limits, work.get("error_budget")),
    }
    run_id, now = runtime.ids(), runtime.clock.now()
    run = EvaluationRun(run_id, *namespace, str(evaluation_ref(evaluation, namespace)), str(ref), now)
    needs = resources_of(options)
    job = Job(runtime.ids(), JobKind.EVALUATE, *namespace, run_id, now, spec, base_model=base_model, **needs)
    callables = callables_of(model if callable(model) else None, scorers)
    return RunSpec(runtime, run, job, callables, work.get("shards", 1), needs_messages)


def scored_by(
    runtime: Runtime,
    principal: Principal,
    namespace: Namespace,
    scorers: Sequence[NamedScorer],
    limits: RunLimits,
    error_budget: float | None,
) -> Mapping[str, Any]:
    """Return the part of a spec about scoring, with the scorers published as versions. Every scorer is built once
    before, so that errors show now."""
    stored, objects = [scorer.spec(namespace) for scorer in scorers], Objects(runtime, principal)
    for kept, scorer in zip(stored, scorers, strict=True):
        build_scorer(runtime, principal, namespace, kept, scorer.function, limits.judge_retries)
    for scorer in scorers:
        scorer.publish(objects, namespace)
    return {
        "scorers": stored,
        "limits": attrs.asdict(limits),
        "error_budget": error_budget,
        "asker": requester_spec(runtime, principal),
    }


# ---- its parts -----------------------------------------------------------------------------------------------------


def check_models(models: Sequence[OneModel]) -> tuple[OneModel, ...]:
    if not isinstance(models, list | tuple) or not models:
        raise InvalidInput.at("model", msg=f"must be a list of models, each {_MODEL}")
    for model in models:
        if not (isinstance(model, str | CatalogueEntry | Model | Checkpoint) or callable(model)):
            raise InvalidInput.at("model", msg=f"must be {_MODEL}; to evaluate several, use `run_each`")
    return tuple(models)


def check_options(options: Mapping[str, Any], known: Collection[str], function: str) -> None:
    """Raise TypeError for an option that the function does not take, naming the nearest that it does."""
    for name in options:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")


def _model(
    runtime: Runtime,
    principal: Principal,
    model: OneModel,
    namespace: Namespace,
    chat: Mapping[str, Any],
    seed: int | None,
) -> tuple[str | None, ObjectRef, str, bool]:
    if callable(model):
        check_signature(model, ("row",), "model")
        if chat:
            raise InvalidInput(
                [
                    Problem((name,), "is an option of completions, and a function takes none; leave it out")
                    for name in chat
                ]
            )
        return None, ObjectRef(*namespace, RefKind.OP, object_id(_function_name(model)) or "function"), "", False
    options = chat if seed is None else {**chat, "seed": seed}
    resolved = CompletionModel.of(runtime, principal, _name_of(runtime, model), namespace, options)
    needs_messages = resolved.reads is None and "prompt" not in resolved.prompts
    return resolved.request.model, resolved.ref, resolved.base_model, needs_messages


def _function_name(model: Any) -> str:
    """Return the name of a function; of a lambda with a digest of what it does, as others have that name too."""
    name: str = getattr(model, "__name__", type(model).__name__)
    if name != "<lambda>":
        return name
    code, own = model.__code__, [cell.cell_contents for cell in model.__closure__ or ()]
    known = [one for one in (*code.co_consts, *(model.__defaults__ or ()), *own) if isinstance(one, str | int | float)]
    return f"lambda-{digest([code.co_code.hex(), *code.co_names, *(repr(one) for one in known)])[:6]}"


def _name_of(runtime: Runtime, model: str | CatalogueEntry | Model | Checkpoint) -> str:
    if isinstance(model, CatalogueEntry):
        return model.id
    if isinstance(model, Checkpoint):
        trained = runtime.store.read(lambda snapshot: get_or_none(snapshot, Model, model.model_id))
        if trained is None:
            raise NotFound("Model", model.model_id)
        return f"{trained.entity}/{trained.project}/{trained.name}:step{model.step}"
    return f"{model.entity}/{model.project}/{model.name}" if isinstance(model, Model) else model


def limits_of(work: Mapping[str, Any], scorers: Sequence[NamedScorer]) -> RunLimits:
    problems = [
        Problem((name,), f"must be a whole number from {least} to {most}")
        for name, (least, most) in _WHOLE.items()
        if name in work and (type(work[name]) is not int or not least <= work[name] <= most)
    ]
    timeout, budget = work.get("timeout"), work.get("error_budget")
    if timeout is not None and not (_is_number(timeout) and 0 < timeout < math.inf):
        problems.append(Problem(("timeout",), "must be a number of seconds above 0"))
    if budget is not None and not (_is_number(budget) and 0 <= budget <= (1 if type(budget) is float else math.inf)):
        problems.append(Problem(("error_budget",), "must be a count of rows, or as a float a share from 0.0 to 1.0"))
    if problems:
        raise InvalidInput(problems)
    names = {field.name for field in attrs.fields(RunLimits)}
    limits = RunLimits(**{name: value for name, value in work.items() if name in names})
    rules = [scorer.rule for scorer in scorers]
    asks = None not in rules and any(map(_asks, rules))
    return attrs.evolve(
        limits,
        scorer_concurrency=work.get("scorer_concurrency", limits.concurrency if asks else limits.scorer_concurrency),
        judge_retries=work.get("retries", JUDGE_RETRIES),
    )


JUDGE_RETRIES = 3


def _asks(rule: object) -> bool:
    """Return whether a rule asks a model."""
    return isinstance(rule, LlmJudge) or (isinstance(rule, Combined) and any(map(_asks, rule.parts.values())))


def resources_of(options: Mapping[str, Any]) -> dict[str, Any]:
    needs = options.get("needs")
    return check_resources({} if needs is None else needs)


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _fresh_seed(runtime: Runtime) -> int:
    return int.from_bytes(runtime.randomness(_SEED_BYTES), "big")


_NAME_FORM = (
    "must be a name such as quiz or quiz:v0, a reference such as modelyard:///<entity>/<project>/object/<name>"
    "[:<version>] or a version of an evaluation as `publish` and `get` return it"
)


def evaluation_ref(evaluation: OneObject, namespace: Namespace) -> ObjectRef:
    if isinstance(evaluation, ObjectVersion):
        if evaluation.kind is not ObjectKind.EVALUATION:
            raise InvalidInput.at("evaluation", msg=f"is a version of a {evaluation.kind}; it {_NAME_FORM}")
        return evaluation.ref
    ref = _parsed(evaluation, namespace) if isinstance(evaluation, str) else evaluation
    if not isinstance(ref, ObjectRef) or ref.kind not in EVALUATION_KINDS:
        raise InvalidInput.at("evaluation", msg=_NAME_FORM)
    return ref


def _parsed(text: str, namespace: Namespace) -> ObjectRef | None:
    if "://" in text:
        return ObjectRef.parse(text)
    name, colon, version = text.partition(":")
    return ObjectRef.parse(str(ObjectRef(*namespace, RefKind.OBJECT, object_id(name))) + colon + version)
