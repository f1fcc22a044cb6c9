"""Evaluation runs as the clients of the evaluation interface know them (specification 4.5, 7)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal

import attrs

from modelyard.domain.evaluation import EvaluationRun, RunState
from modelyard.errors import InvalidInput, Problem

MAX_VALUES = 1000

_WHOLE = re.compile(r"-?[0-9]{1,15}")


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


def parse_run_query(query: Mapping[str, Sequence[str]]) -> RunQuery:
    """The query of a listing. Raises `InvalidInput` naming every parameter at fault.

    Array parameters repeat; older clients join them with commas, and say `evaluation_refs` and `model_refs`.
    """
    problems: list[Problem] = []
    limit = _whole(query, "limit", problems)
    offset = _whole(query, "offset", problems)
    found = RunQuery(
        evaluations=_texts(query, problems, "evaluations", "evaluation_refs"),
        models=_texts(query, problems, "models", "model_refs"),
        ids=_texts(query, problems, "evaluation_run_ids"),
        sources=_texts(query, problems, "source_evaluation_run_ids"),
        limit=limit,
        offset=offset or 0,
    )
    if problems:
        raise InvalidInput(problems)
    return found


def parse_ids(query: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The `evaluation_run_ids` of a deletion, at least one. Raises `InvalidInput`."""
    problems: list[Problem] = []
    ids = _texts(query, problems, "evaluation_run_ids")
    if not ids and not problems:
        problems.append(Problem(("query", "evaluation_run_ids"), "is required", "missing"))
    if problems:
        raise InvalidInput(problems)
    return ids


def _texts(query: Mapping[str, Sequence[str]], problems: list[Problem], *names: str) -> tuple[str, ...]:
    given = [text for name in names for value in query.get(name, ()) for text in value.split(",")]
    values = tuple(dict.fromkeys(filter(None, given)))
    if len(values) > MAX_VALUES:
        problems.append(Problem(("query", names[0]), f"must be at most {MAX_VALUES} values", "too_long"))
    return values


def _whole(query: Mapping[str, Sequence[str]], name: str, problems: list[Problem]) -> int | None:
    values = query.get(name, ())
    if not values:
        return None
    loc = ("query", name)
    if len(values) > 1 or not _WHOLE.fullmatch(values[0]):
        problems.append(Problem(loc, "must be one whole number of at most 15 digits", "int_parsing"))
        return None
    number = int(values[0])
    if number < 0:
        problems.append(Problem(loc, "must be at least 0", "greater_than_equal"))
    return number


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
        "started_at": _time(run.started_at),
        "finished_at": None if run.finished_at is None else _time(run.finished_at),
        "summary": _plain(run.summary),
        "source_evaluation_run_id": run.source_evaluation_run_id,
        "state": run.state.value,
        "reason": run.reason,
        "source_known": run.source_known,
    }


def _plain(value: Any) -> Any:
    """JSON data with dicts and lists in the place of what a record keeps frozen."""
    if isinstance(value, Mapping):
        return {name: _plain(member) for name, member in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _time(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
