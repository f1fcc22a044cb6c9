"""What a run of the engine is asked to do: checked, resolved, and kept as the spec of a job."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any, TypedDict, TypeGuard, TypeVar

import attrs

from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.evaluation.objects import ObjectKind, ObjectVersion, OneObject
from modelyard.domain.evaluation.references import ObjectRef, RefKind, object_id
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobKind
from modelyard.domain.models import Checkpoint, Model
from modelyard.errors import Conflict, Forbidden, InvalidInput, NotFound, ObjectDeleted, Problem
from modelyard.formats.json import checked_dumps
from modelyard.platform.evaluations.job import LocalCallables
from modelyard.platform.evaluations.model_under_test import CompletionModel
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.references import evaluation_ref
from modelyard.platform.evaluations.row import RunLimits, check_takes
from modelyard.platform.evaluations.scorers import NamedScorer, at_work
from modelyard.platform.jobs.requester import requester_spec
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.platform.scope import Namespace
from modelyard.protocols import Tx

T = TypeVar("T")

ModelFunction = Callable[[Mapping[str, Any]], Any]

OneModel = str | CatalogueEntry | Model | Checkpoint | ModelFunction
"""What is judged: a name or reference, a value of the platform, or a function of the row."""


class WorkOptions(TypedDict, total=False):
    """How the engine works.

    `concurrency` rows at a time, `scorer_concurrency` of them in their scorers; each takes `timeout` seconds at most;
    `retries` more calls after a failure that may pass; more failed rows than `error_budget` (a count, or as a float a
    share of all) end the run as failed.
    """

    concurrency: int
    scorer_concurrency: int
    timeout: float | None
    retries: int
    error_budget: float | None


_WHOLE = {
    "concurrency": (1, 1000),
    "scorer_concurrency": (1, 1000),
    "retries": (0, 100),
    "trials": (1, 1000),
    "seed": (-(2**63), 2**63 - 1),
}
_WORK = frozenset(WorkOptions.__annotations__)
_SEED_BYTES = 6


@attrs.frozen
class RunSpec:
    """A run and its job, still to be stored, and the functions that it needs."""

    runtime: Runtime
    run: EvaluationRun
    job: Job
    crew: LocalCallables

    def check_portable(self) -> None:
        """Raise `InvalidInput` when it needs functions of the caller's, which no worker has."""
        needed = {"model": self.crew.model, "scorers": self.crew.scorers}
        problems = [
            Problem((name,), "a worker cannot run functions of yours; use what the platform has, or `run`")
            for name, functions in needed.items()
            if functions
        ]
        if problems:
            raise InvalidInput(problems)

    def keep(self, step: Callable[[Tx], T]) -> T:
        """Store it by `step`; the rows that it brought go again where that fails."""
        with ExitStack() as undone:
            if "artifact" in self.job.spec:
                undone.callback(self.runtime.artifacts.remove, self.job.spec["artifact"])
            kept = self.runtime.store.transact(step)
            undone.pop_all()
        return kept


# ---- a run ---------------------------------------------------------------------------------------------------------


def order_of(
    runtime: Runtime,
    principal: Principal,
    evaluation: OneObject,
    model: OneModel,
    scorers: Sequence[NamedScorer],
    place: Namespace,
    options: Mapping[str, Any],
) -> RunSpec:
    """The order of one model, still without rows.

    Raises `InvalidInput`, `ModelNotFound`, `Forbidden`, `StorageFull`.
    """
    runtime.require_room()
    seed = options.get("seed")
    work = {name: options[name] for name in options if name in _WORK or name == "trials"}
    chat = {name: options[name] for name in options if name not in work and name != "seed"}
    limits = _limits({**work, "seed": _fresh_seed(runtime) if seed is None else seed})
    held, ref = _model(runtime, principal, model, place, chat, seed)
    spec = {
        "model": held,
        "model_ref": str(ref),
        "options": chat,
        "trials": work.get("trials", 1),
        **_judged_by(runtime, principal, place, scorers, limits, work.get("error_budget")),
    }
    run_id, now = runtime.ids(), runtime.clock.now()
    run = EvaluationRun(run_id, *place, str(evaluation_ref(evaluation, place)), str(ref), now)
    job = Job(runtime.ids(), JobKind.EVALUATE, *place, run_id, now, spec)
    return RunSpec(runtime, run, job, crew_of(model if held is None else None, scorers))


def rescore_order(
    runtime: Runtime,
    principal: Principal,
    source: EvaluationRun,
    total: int,
    scorers: Sequence[NamedScorer],
    options: Mapping[str, Any],
) -> RunSpec:
    """The order of a rescoring: a new run, in the place of its source. Raises as `order_of`."""
    runtime.require_room()
    if unknown := options.keys() - _WORK:
        raise InvalidInput([Problem((name,), "is no option of a rescoring") for name in sorted(unknown)])
    limits = _limits(options)
    place = (source.entity, source.project)
    judged_by = _judged_by(runtime, principal, place, scorers, limits, options.get("error_budget"))
    spec = {"source": source.id, "total": total, **judged_by}
    now = runtime.clock.now()
    run = EvaluationRun(
        runtime.ids(),
        *place,
        _evaluation_with(
            Objects(runtime, principal), source.evaluation, [plain["ref"] for plain in judged_by["scorers"]]
        ),
        source.model,
        now,
        source_evaluation_run_id=source.id,
        source_known=True,
    )
    job = Job(runtime.ids(), JobKind.RESCORE, *place, run.id, now, spec)
    return RunSpec(runtime, run, job, crew_of(None, scorers))


def _evaluation_with(objects: Objects, evaluation: str, scorers: Sequence[str]) -> str:
    """The reference of an evaluation's new version, with these scorers; of itself where no version is to be had: it was
    never published, names something else, or is not for this caller to see.
    """
    try:
        old = objects.resolve(ObjectKind.EVALUATION, evaluation)
    except (InvalidInput, NotFound, Forbidden):
        return evaluation
    content = {**old.content, "scorers": scorers}
    return str(objects.publish(old.kind, content["name"], content, entity=old.entity, project=old.project).ref)


def _judged_by(
    runtime: Runtime,
    principal: Principal,
    place: Namespace,
    scorers: Sequence[NamedScorer],
    limits: RunLimits,
    error_budget: float | None,
) -> Mapping[str, Any]:
    """The part of a spec that says who judges and how, by versions that are published.

    Every scorer is made once before, so that what is wrong shows now.
    """
    plain, objects = [scorer.plain(place) for scorer in scorers], Objects(runtime, principal)
    for kept, scorer in zip(plain, scorers, strict=True):
        at_work(runtime, principal, place, kept, scorer.function, limits.retries)
    for scorer in scorers:
        scorer.publish(objects, place)
    return {
        "scorers": plain,
        "limits": attrs.asdict(limits),
        "error_budget": error_budget,
        "asker": requester_spec(runtime, principal),
    }


def crew_of(model: Any, scorers: Sequence[NamedScorer]) -> LocalCallables:
    """The functions among a model and scorers."""
    functions = {scorer.name: scorer.function for scorer in scorers if scorer.function is not None}
    return LocalCallables(model, functions)


# ---- its parts -----------------------------------------------------------------------------------------------------


def is_one(model: OneModel | Sequence[OneModel]) -> TypeGuard[OneModel]:
    """Whether this is one model, and not several."""
    return isinstance(model, str | CatalogueEntry | Model | Checkpoint) or callable(model)


def several(model: OneModel | Sequence[OneModel]) -> Sequence[OneModel]:
    """The models, also where it is one. Raises `InvalidInput` for none."""
    if is_one(model):
        return (model,)
    if not isinstance(model, list | tuple) or not model or not all(map(is_one, model)):
        raise InvalidInput.at(
            "model",
            msg="must be a name, a reference, an entry, a trained model, a checkpoint or a function of the row; "
            "or a list of such",
        )
    return tuple(model)


def _model(
    runtime: Runtime,
    principal: Principal,
    model: OneModel,
    place: Namespace,
    chat: Mapping[str, Any],
    seed: int | None,
) -> tuple[str | None, ObjectRef]:
    """The name that completions take, None for a function, and the reference."""
    if callable(model):
        check_takes(model, ("row",), "model")
        if chat:
            raise InvalidInput(
                [Problem((name,), "is an option of a completion; a function takes none") for name in chat]
            )
        name = object_id(getattr(model, "__name__", type(model).__name__)) or "function"
        return None, ObjectRef(*place, RefKind.OP, name)
    checked_dumps(chat, at=("options",))
    options = chat if seed is None else {**chat, "seed": seed}
    resolved = CompletionModel.of(runtime, principal, _name_of(runtime, model), place, options)
    return resolved.request.model, resolved.ref


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
    """What a version of an evaluation says: its dataset, the references of its scorers, how often a row is asked."""

    ref: ObjectRef
    dataset: ObjectVersion
    scorers: Sequence[str]
    trials: int

    @classmethod
    def of(cls, objects: Objects, evaluation: ObjectRef) -> "Published":
        """What the evaluation of a reference says now. Raises `NotFound`, `Forbidden`."""
        try:
            version = objects.resolve(ObjectKind.EVALUATION, evaluation)
        except ObjectDeleted:
            raise
        except NotFound as unknown:
            raise NotFound(unknown.kind, unknown.id, "publish it, or give rows and scorers") from None
        content = version.content
        dataset = objects.resolve(ObjectKind.DATASET, content["dataset"])
        return cls(version.ref, dataset, tuple(content.get("scorers", ())), content.get("trials", 1))


def again(job: Job, job_id: str, asker: Mapping[str, Any], now: datetime) -> Job:
    """A new job that goes on, for an asker, where one that failed has ended.

    One that failed by its error budget had brought what was under way to its end, and its failures are forgiven.
    """
    spec = {**job.spec, **job.result, "asker": asker, "resumed": True, "drained": "forgiven" in job.result}
    return Job(job_id, job.kind, job.entity, job.project, job.lane, now, spec)


def check_portable(job: Job) -> None:
    """Raise `Conflict` for a job that needs functions, which no worker has."""
    if needs_model(job) or any(plain["rule"] is None for plain in job.spec["scorers"]):
        msg = "was begun with functions, which no worker has; resume it in Python, with the functions"
        raise Conflict(f"evaluation run {job.lane} {msg}")


def needs_model(job: Job) -> bool:
    """Whether the model of a job is a function."""
    return job.kind is JobKind.EVALUATE and job.spec["model"] is None


def functions_for(job: Job, model: ModelFunction | None, scorers: Sequence[NamedScorer]) -> LocalCallables:
    """The functions that a job needs, out of those given. Raises `InvalidInput` for one that is missing or changed."""
    given = {scorer.name: scorer for scorer in scorers}
    problems, place = [], (job.entity, job.project)
    for plain in job.spec["scorers"]:
        scorer = given.get(plain["name"])
        if scorer is None and plain["rule"] is None:
            problems.append(Problem(("scorers", plain["name"]), "the run was begun with this function; give it again"))
        elif scorer is not None and str(scorer.ref(place)) != plain["ref"]:
            problems.append(
                Problem(("scorers", plain["name"]), "has changed since the run began; rescore the run instead")
            )
    if needs_model(job) and model is None:
        problems.append(Problem(("model",), "the run was begun with a function as its model; give it again"))
    if model is not None and not needs_model(job):
        problems.append(Problem(("model",), "the run needs no function: it goes on with the model that it names"))
    if problems:
        raise InvalidInput(problems)
    if model is not None:
        check_takes(model, ("row",), "model")
    return crew_of(model, scorers)
