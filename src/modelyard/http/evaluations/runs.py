"""Evaluation runs: what clients send and receive, and the routes (specification 4.5, 7)."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal

import attrs

from modelyard.domain.evaluation.objects import EVALUATION_KINDS, MODEL_KINDS
from modelyard.domain.evaluation.run import MAX_REASON, EvaluationRun, RunState
from modelyard.formats.constraints import Length
from modelyard.http.body_schemas import EvaluationRef, ModelRef
from modelyard.http.evaluations.route import (
    RUNS,
    SOME_TEXTS,
    TEXTS,
    Success,
    body_with_references,
    creation_route,
    evaluation_route,
    namespace_of,
    optional_body,
    problems_in_request,
    stored_routes,
)
from modelyard.http.message import Response, answering, each, json_response
from modelyard.http.query import Query
from modelyard.http.route import Body, Parameter, Route, RouteCall

# ---- requests


@attrs.frozen
class EvaluationRunCreate:
    """The body that creates a run."""

    evaluation: EvaluationRef
    model: ModelRef
    source_evaluation_run_id: str | None = None


@attrs.frozen
class EvaluationRunFinish:
    """The body that completes a run; it may be left out."""

    summary: Mapping[str, Any] | None = None


@attrs.frozen
class EvaluationRunStop:
    """The body that cancels or fails a run; it may be left out."""

    reason: str | None = attrs.field(default=None, validator=Length(1, MAX_REASON))


def run_filters(query: Query) -> Mapping[str, tuple[str, ...]]:
    """Read the filters of a listing of runs. Older clients send `evaluation_refs` and `model_refs`."""
    return {
        "evaluations": query.texts("evaluations", "evaluation_refs"),
        "models": query.texts("models", "model_refs"),
        "ids": query.texts("evaluation_run_ids"),
        "sources": query.texts("source_evaluation_run_ids"),
    }


# ---- responses


@attrs.frozen
class EvaluationRunCreated:
    """The answer to a creation."""

    evaluation_run_id: str


@attrs.frozen
class EvaluationRunObject:
    """A run.

    The members after `source_evaluation_run_id` are our additions: the exact `state`, the `reason` of a run that did
    not complete, and whether the source run was known.
    """

    evaluation_run_id: str
    evaluation: str
    model: str
    status: Literal["running", "completed", "failed"]
    started_at: datetime
    finished_at: datetime | None
    summary: Mapping[str, Any] | None
    source_evaluation_run_id: str | None
    state: RunState
    reason: str | None
    source_known: bool | None


show_run = answering(EvaluationRunObject, evaluation_run_id="id")


@attrs.frozen
class TrainedStepObject:
    """How one checkpoint came to be; of one that was `deleted` only the step is known."""

    step: int
    digest: str | None
    job_id: str | None
    kind: str | None
    data_digest: str | None
    data_url: str | None
    deleted: bool


@attrs.frozen
class CheckpointLineageObject:
    """The checkpoint that a run evaluated: its model, what it was trained from, and the aliases that point to it."""

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


show_checkpoint = answering(
    CheckpointLineageObject,
    model_id="model.id",
    checkpoint_id="checkpoint.id",
    step="checkpoint.step",
    steps=each(answering(TrainedStepObject), "steps"),
)

show_lineage = answering(
    RunLineageObject,
    run=lambda found: show_run(found.run),
    sources=each(show_run, "sources"),
    derived=each(show_run, "derived"),
    checkpoint=lambda found: None if found.checkpoint is None else show_checkpoint(found.checkpoint),
    has_more="more",
)


# ---- routes


def create_evaluation_run(call: RouteCall) -> EvaluationRun:
    """Create a run."""
    namespace = namespace_of(call)
    body = body_with_references(EvaluationRunCreate, call, evaluation=EVALUATION_KINDS, model=MODEL_KINDS)
    with problems_in_request():
        return call.platform.evaluations.runs.create(
            body.evaluation, body.model, body.source_evaluation_run_id, **namespace
        )


def finish_evaluation_run(call: RouteCall) -> Response:
    """Complete a run; again with an equal summary, or without one, changes nothing."""
    namespace = namespace_of(call)
    body = optional_body(EvaluationRunFinish, call)
    with problems_in_request():
        call.platform.evaluations.runs.finish(call.params["run_id"], body.summary, **namespace)
    return json_response(Success(True))


def cancel_evaluation_run(call: RouteCall) -> Response:
    """End a running run that is no longer wanted."""
    return _stop(call, call.platform.evaluations.runs.cancel)


def fail_evaluation_run(call: RouteCall) -> Response:
    """End a running run because it went wrong."""
    return _stop(call, call.platform.evaluations.runs.fail)


def _stop(call: RouteCall, stop: Callable[..., EvaluationRun]) -> Response:
    namespace = namespace_of(call)
    body = optional_body(EvaluationRunStop, call)
    reason = {} if body.reason is None else {"reason": body.reason}
    with problems_in_request():
        stop(call.params["run_id"], **reason, **namespace)
    return json_response(Success(True))


def show_evaluation_lineage(call: RouteCall) -> Response:
    """Show what a run was made from, what was made from it, and the checkpoint that it evaluated."""
    lineage = call.platform.evaluations.runs.lineage(call.params["run_id"], **namespace_of(call))
    return json_response(show_lineage(lineage))


_FILTERS = (
    Parameter("evaluations", TEXTS, "Keep runs of these evaluations (references)."),
    Parameter("models", TEXTS, "Keep runs of these models (references)."),
    Parameter("evaluation_run_ids", TEXTS, "Keep these runs."),
    Parameter("source_evaluation_run_ids", TEXTS, "Keep runs that were made from these."),
    Parameter("evaluation_refs", TEXTS, "An older name of `evaluations`."),
    Parameter("model_refs", TEXTS, "An older name of `models`."),
)

ROUTES: tuple[Route, ...] = (
    creation_route(
        RUNS,
        create_evaluation_run,
        lambda run: EvaluationRunCreated(run.id),
        body=Body.CONTROL,
        request=EvaluationRunCreate,
        response=EvaluationRunCreated,
        links={"run_id": "evaluation_run_id"},
    ),
    *stored_routes(
        RUNS,
        "run_id",
        "run",
        Parameter("evaluation_run_ids", SOME_TEXTS, "Which to delete.", required=True),
        lambda evaluations: evaluations.runs,
        EvaluationRunObject,
        show_run,
        _FILTERS,
        run_filters,
    ),
    *(
        evaluation_route(
            "POST", f"{RUNS}/{{run_id}}/{word}", handler, body=Body.CONTROL, request=request, response=Success
        )
        for word, handler, request in (
            ("finish", finish_evaluation_run, EvaluationRunFinish),
            ("cancel", cancel_evaluation_run, EvaluationRunStop),
            ("fail", fail_evaluation_run, EvaluationRunStop),
        )
    ),
    evaluation_route("GET", RUNS + "/{run_id}/lineage", show_evaluation_lineage, response=RunLineageObject),
)
