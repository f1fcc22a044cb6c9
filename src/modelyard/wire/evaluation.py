"""Evaluation runs as the clients of the evaluation interface know them (specification 4.5, 7)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal

import attrs

from modelyard.domain.evaluation import EvaluationRun, RunState
from modelyard.errors import InvalidInput, Problem
from modelyard.wire.query import Query

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
