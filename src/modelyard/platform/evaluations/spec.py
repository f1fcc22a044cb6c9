"""The spec of a run: what it is to do, checked, resolved, and stored with its job."""

import math
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypedDict, TypeVar

import attrs

from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.evaluation.objects import ObjectKind, ObjectVersion, OneObject
from modelyard.domain.evaluation.prediction import Prediction
from modelyard.domain.evaluation.references import ObjectRef, RefKind, object_id
from modelyard.domain.evaluation.run import MAX_SHARDS, EvaluationRun, RunState
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobKind
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.resources import Resources, check_resources
from modelyard.errors import Conflict, Forbidden, InvalidInput, NotFound, ObjectDeleted, Problem
from modelyard.formats.json import checked_dumps
from modelyard.platform.chat.request import GenerationOptions
from modelyard.platform.evaluations.model_under_test import CompletionModel
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.references import Namespace, evaluation_ref
from modelyard.platform.evaluations.row import RunLimits, check_signature
from modelyard.platform.evaluations.run_spec import RunSpec
from modelyard.platform.evaluations.scorers import (
    ModelFunction,
    NamedScorer,
    Scorers,
    build_scorer,
    callables_of,
    name_scorers,
)
from modelyard.platform.jobs.requester import requester_spec
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime

T = TypeVar("T")

OneModel = str | CatalogueEntry | Model | Checkpoint | ModelFunction
"""The model under test: a name or reference, a value of the platform, or a function of the row."""


class WorkOptions(TypedDict, total=False):
    """How a run works through its rows.

    At most `concurrency` rows are under way at a time, `scorer_concurrency` of them in their scorers. Each takes at
    most `timeout` seconds. A call that fails for a passing reason is repeated up to `retries` times. The run fails when
    more rows have failed than `error_budget`: a count, or as a float a share of all rows.

    The rows are split into so many `shards`, each a job of its own, so that as many workers work on one run, or this
    thread where none is alive; each has as many rows under way. `needs` is what each job is to have for itself.
    """

    concurrency: int
    scorer_concurrency: int
    timeout: float | None
    retries: int
    error_budget: float | None
    shards: int
    needs: Resources | None


class EvaluationOptions(WorkOptions, GenerationOptions, total=False):
    """How a run works, the options of its completions, and where it is stored.

    Each row is evaluated in `trials` trials, each with another seed. `project` and `entity` are by default those of the
    platform and of the caller.
    """

    trials: int
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
    """Build the spec of a run of one model, still without rows.

    Raises `InvalidInput`, `ModelNotFound`, `Forbidden`, `StorageFull`.
    """
    runtime.require_room()
    seed = options.get("seed")
    work = {name: options[name] for name in options if name in WORK_OPTIONS or name == "trials"}
    chat = {name: options[name] for name in options if name not in (*work, *_NAMESPACE, "seed")}
    limits = _limits({**work, "seed": _fresh_seed(runtime) if seed is None else seed})
    pinned, ref, base_model = _model(runtime, principal, model, namespace, chat, seed)
    spec = {
        "model": pinned,
        "model_ref": str(ref),
        "options": chat,
        "trials": work.get("trials", 1),
        **_scored_by(runtime, principal, namespace, scorers, limits, work.get("error_budget")),
    }
    run_id, now = runtime.ids(), runtime.clock.now()
    run = EvaluationRun(run_id, *namespace, str(evaluation_ref(evaluation, namespace)), str(ref), now)
    needs = check_resources(options.get("needs"))
    job = Job(runtime.ids(), JobKind.EVALUATE, *namespace, run_id, now, spec, base_model=base_model, **needs)
    callables = callables_of(model if callable(model) else None, scorers)
    return RunSpec(runtime, run, job, callables, work.get("shards", 1))


def build_rescore_spec(
    runtime: Runtime, principal: Principal, source: EvaluationRun, scorers: Scorers, options: Mapping[str, Any]
) -> RunSpec:
    """Build the spec of a rescoring: a new run in the project of its source.

    Raises as `build_spec` does, and `Conflict`.
    """
    if source.state is RunState.RUNNING:
        raise Conflict(f"evaluation run {source.id} is still running; finish or cancel it, then rescore it")
    objects, namespace = Objects(runtime, principal), (source.entity, source.project)
    named = name_scorers(scorers, objects)
    total = runtime.store.read(lambda snapshot: snapshot.count(Prediction, "by_run", source.id))
    runtime.require_room()
    check_options(options, WORK_OPTIONS, "rescore")
    limits = _limits(options)
    scored_by = _scored_by(runtime, principal, namespace, named, limits, options.get("error_budget"))
    evaluation = _evaluation_with(objects, source.evaluation, [scorer["ref"] for scorer in scored_by["scorers"]])
    now = runtime.clock.now()
    run = EvaluationRun(
        runtime.ids(),
        *namespace,
        evaluation,
        source.model,
        now,
        source_evaluation_run_id=source.id,
        source_known=True,
    )
    needs = check_resources(options.get("needs"))
    job = Job(runtime.ids(), JobKind.RESCORE, *namespace, run.id, now, {"source": source.id, **scored_by}, **needs)
    return RunSpec(runtime, run, job, callables_of(None, named), options.get("shards", 1)).with_items(total)


def _evaluation_with(objects: Objects, evaluation: str, scorers: Sequence[str]) -> str:
    """Publish a version of an evaluation with these scorers, and return its reference.

    Returns the given reference where there is no version to start from: it was never published, is not an evaluation,
    or is not visible to this caller.
    """
    try:
        old = objects.resolve(ObjectKind.EVALUATION, evaluation)
    except (InvalidInput, NotFound, Forbidden):
        return evaluation
    content = {**old.content, "scorers": scorers}
    return str(objects.publish(old.kind, content["name"], content, entity=old.entity, project=old.project).ref)


def _scored_by(
    runtime: Runtime,
    principal: Principal,
    namespace: Namespace,
    scorers: Sequence[NamedScorer],
    limits: RunLimits,
    error_budget: float | None,
) -> Mapping[str, Any]:
    """Return the part of a spec about scoring, with the scorers published as versions.

    Every scorer is built once before, so that errors show now.
    """
    stored, objects = [scorer.spec(namespace) for scorer in scorers], Objects(runtime, principal)
    for kept, scorer in zip(stored, scorers, strict=True):
        build_scorer(runtime, principal, namespace, kept, scorer.function, limits.retries)
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
    """Return the models. Raises `InvalidInput` for none, and for a value that is not a model."""
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
) -> tuple[str | None, ObjectRef, str]:
    """Return the model's name for completions, None for a function; its reference; its base model, or ""."""
    if callable(model):
        check_signature(model, ("row",), "model")
        if chat:
            raise InvalidInput(
                [
                    Problem((name,), "is an option of completions, and a function takes none; leave it out")
                    for name in chat
                ]
            )
        name = object_id(getattr(model, "__name__", type(model).__name__)) or "function"
        return None, ObjectRef(*namespace, RefKind.OP, name), ""
    checked_dumps(chat, at=("options",))
    options = chat if seed is None else {**chat, "seed": seed}
    resolved = CompletionModel.of(runtime, principal, _name_of(runtime, model), namespace, options)
    return resolved.request.model, resolved.ref, resolved.base_model


def _name_of(runtime: Runtime, model: str | CatalogueEntry | Model | Checkpoint) -> str:
    if isinstance(model, CatalogueEntry):
        return model.id
    if isinstance(model, Checkpoint):
        trained = runtime.store.read(lambda snapshot: get_or_none(snapshot, Model, model.model_id))
        if trained is None:
            raise NotFound("Model", model.model_id)
        return f"{trained.entity}/{trained.project}/{trained.name}:step{model.step}"
    return f"{model.entity}/{model.project}/{model.name}" if isinstance(model, Model) else model


def _limits(work: Mapping[str, Any]) -> RunLimits:
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
    return RunLimits(**{name: value for name, value in work.items() if name in names})


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _fresh_seed(runtime: Runtime) -> int:
    return int.from_bytes(runtime.randomness(_SEED_BYTES), "big")


# ---- what was published ----


@attrs.frozen
class Published:
    """A published version of an evaluation: its dataset, the references of its scorers, and its trials."""

    ref: ObjectRef
    dataset: ObjectVersion
    scorers: Sequence[str]
    trials: int

    @classmethod
    def of(cls, objects: Objects, evaluation: ObjectRef) -> "Published":
        """Return the version that a reference names now. Raises `NotFound`, `Forbidden`."""
        try:
            version = objects.resolve(ObjectKind.EVALUATION, evaluation)
        except ObjectDeleted:
            raise
        except NotFound as unknown:
            raise NotFound(unknown.kind, unknown.id, "publish it, or give rows and scorers") from None
        content = version.content
        dataset = objects.resolve(ObjectKind.DATASET, content["dataset"])
        return cls(version.ref, dataset, tuple(content.get("scorers", ())), content.get("trials", 1))
