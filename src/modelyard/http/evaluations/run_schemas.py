"""Evaluation runs as the clients of the evaluation interface know them (specification 4.5, 7)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal

import attrs

from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.domain.job import JobKind
from modelyard.domain.lineage import CheckpointLineage, RunLineage, TrainedStep
from modelyard.errors import InvalidInput, Problem
from modelyard.http.query import Query

# ---- what comes in


@attrs.frozen
class EvaluationRunCreate:
    """The body that creates a run."""

    evaluation: str
    model: str
    source_evaluation_run_id: str | None = None


@attrs.frozen
class EvaluationRunFinish:
    """The body that completes a run; it may be left out."""

    summary: Mapping[str, Any] | None = None


@attrs.frozen
class EvaluationRunStop:
    """The body that cancels or fails a run; it may be left out."""

    reason: str | None = None


@attrs.frozen
class RunQuery:
    """Which runs to list. An empty filter keeps all."""

    evaluations: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    limit: int | None = None
    offset: int = 0


def parse_run_query(parameters: Mapping[str, Sequence[str]]) -> RunQuery:
    """The query of a listing. Raises `InvalidInput` naming every parameter at fault.

    Older clients say `evaluation_refs` and `model_refs`.
    """
    query = Query(parameters)
    limit, offset = query.whole("limit"), query.whole("offset") or 0
    found = RunQuery(
        evaluations=query.texts("evaluations", "evaluation_refs"),
        models=query.texts("models", "model_refs"),
        ids=query.texts("evaluation_run_ids"),
        sources=query.texts("source_evaluation_run_ids"),
        limit=limit,
        offset=offset,
    )
    query.check()
    return found


def parse_ids(parameters: Mapping[str, Sequence[str]], name: str = "evaluation_run_ids") -> tuple[str, ...]:
    """The ids of a deletion, at least one. Raises `InvalidInput`."""
    query = Query(parameters)
    ids = query.texts(name, required=True)
    query.check()
    return ids


_IN_PATH = {("entity",), ("project",)}


@contextmanager
def wire_places() -> Iterator[None]:
    """Give the problems of a use case the places where a client put the values: the path or the body."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput([_moved(problem) for problem in error.problems]) from error


def _moved(problem: Problem) -> Problem:
    return attrs.evolve(problem, loc=("path" if problem.loc in _IN_PATH else "body", *problem.loc))


# ---- what goes out


@attrs.frozen
class EvaluationRunCreated:
    """The answer to a creation."""

    evaluation_run_id: str


@attrs.frozen
class EvaluationRunObject:
    """A run. Behind `source_evaluation_run_id` stand our additions: the exact `state`, the `reason` of a run that did
    not complete, and whether the source run was known.
    """

    evaluation_run_id: str
    evaluation: str
    model: str
    status: Literal["running", "completed", "failed"]
    started_at: str
    finished_at: str | None
    summary: Mapping[str, Any] | None
    source_evaluation_run_id: str | None
    state: RunState
    reason: str | None
    source_known: bool | None


@attrs.frozen
class Success:
    """The answer to an action."""

    success: bool


@attrs.frozen
class NumDeleted:
    """How many there were to delete."""

    num_deleted: int


def run_object(run: EvaluationRun) -> dict[str, Any]:
    """A run as plain JSON data, in the members of `EvaluationRunObject`."""
    return {
        "evaluation_run_id": run.id,
        "evaluation": run.evaluation,
        "model": run.model,
        "status": run.status,
        "started_at": wire_time(run.started_at),
        "finished_at": None if run.finished_at is None else wire_time(run.finished_at),
        "summary": plain(run.summary),
        "source_evaluation_run_id": run.source_evaluation_run_id,
        "state": run.state.value,
        "reason": run.reason,
        "source_known": run.source_known,
    }


def plain(value: Any) -> Any:
    """JSON data with dicts and lists in the place of what a record keeps frozen."""
    if isinstance(value, Mapping):
        return {name: plain(member) for name, member in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def wire_time(moment: datetime) -> str:
    """A time as this interface writes it."""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


@attrs.frozen
class TrainedStepObject:
    """How one checkpoint came to be; of one that was `deleted` only the step is known."""

    step: int
    digest: str | None
    job_id: str | None
    kind: JobKind | None
    data_digest: str | None
    data_url: str | None
    deleted: bool


@attrs.frozen
class CheckpointLineageObject:
    """The checkpoint that a run judged: its model, what it was trained from, and the aliases that point to it."""

    model_id: str
    checkpoint_id: str
    step: int
    steps: tuple[TrainedStepObject, ...]
    aliases: tuple[str, ...]


@attrs.frozen
class RunLineageObject:
    """What a run was rescored from and what was rescored from it, both the nearest first."""

    run: EvaluationRunObject
    sources: tuple[EvaluationRunObject, ...]
    missing_source: str | None
    derived: tuple[EvaluationRunObject, ...]
    checkpoint: CheckpointLineageObject | None
    has_more: bool


def lineage_object(lineage: RunLineage) -> Mapping[str, Any]:
    """A lineage as plain JSON data, in the members of `RunLineageObject`."""
    return {
        "run": run_object(lineage.run),
        "sources": [run_object(run) for run in lineage.sources],
        "missing_source": lineage.missing_source,
        "derived": [run_object(run) for run in lineage.derived],
        "checkpoint": None if lineage.checkpoint is None else _checkpoint(lineage.checkpoint),
        "has_more": lineage.more,
    }


def _checkpoint(lineage: CheckpointLineage) -> Mapping[str, Any]:
    return {
        "model_id": lineage.model.id,
        "checkpoint_id": lineage.checkpoint.id,
        "step": lineage.checkpoint.step,
        "steps": [_step(step) for step in lineage.steps],
        "aliases": list(lineage.aliases),
    }


def _step(step: TrainedStep) -> Mapping[str, Any]:
    return {**attrs.asdict(step), "kind": step.kind and step.kind.value}
