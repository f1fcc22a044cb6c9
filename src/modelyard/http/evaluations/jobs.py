"""Evaluations that workers run: what clients send and receive, and the routes (specification 4.5)."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypedDict

import attrs

from modelyard.domain.evaluation.objects import EVALUATION_KINDS, MODEL_KINDS, RefKind, RefMode, reference_problem
from modelyard.domain.evaluation.run import MAX_SHARDS, RunState, RunStatus
from modelyard.domain.worker import Resources
from modelyard.errors import InvalidInput, NotFound, Problem
from modelyard.formats.constraints import Length, Matching, Within
from modelyard.http.body_schemas import EvaluationRef, ModelRef, NeedsBody, resources_of
from modelyard.http.evaluations.route import (
    RUNS,
    WINDOW,
    ListingQuery,
    NamespaceArguments,
    Success,
    body_of,
    evaluation_route,
    namespace_of,
)
from modelyard.http.idempotency import IDEMPOTENCY_KEY, idempotency_key
from modelyard.http.interface import Auth
from modelyard.http.interfaces import BASE
from modelyard.http.message import Response, answering, json_response, problems_at
from modelyard.http.route import Body, Route, RouteCall, documented_route

_NAME = r"(?!\.+(?:/|$))[A-Za-z0-9._-]{1,128}"
_place = Matching(rf"{_NAME}/{_NAME}", "must be <entity>/<project>")
_id = Length(1, 128)


# ---- requests


@attrs.frozen
class EvaluateModel:
    """The body that requests the evaluation of a model by a published evaluation."""

    project_id: str = attrs.field(validator=_place)
    evaluation_ref: EvaluationRef
    model_ref: ModelRef
    shards: int | None = attrs.field(default=None, validator=Within(1, MAX_SHARDS))
    needs: NeedsBody | None = None


@attrs.frozen
class Rescore:
    """The body that requests that the outputs of a run are scored again."""

    project_id: str = attrs.field(validator=_place)
    source_evaluation_run_id: str = attrs.field(validator=_id)
    scorer_refs: tuple[ModelRef, ...] = attrs.field(validator=Length(1, 100))
    shards: int | None = attrs.field(default=None, validator=Within(1, MAX_SHARDS))
    needs: NeedsBody | None = None


@attrs.frozen
class StatusOf:
    """The body that requests the status of a run."""

    project_id: str = attrs.field(validator=_place)
    call_id: str = attrs.field(validator=_id)


def check_references(body: EvaluateModel | Rescore) -> None:
    found = [
        Problem(("body", *loc), wrong.msg, wrong.type)
        for loc, text, kinds in _references(body)
        if (wrong := reference_problem("", text, kinds, RefMode.SYNTAX)) is not None
    ]
    if found:
        raise InvalidInput(found)


def _references(body: EvaluateModel | Rescore) -> list[tuple[tuple[str | int, ...], str, frozenset[RefKind]]]:
    if isinstance(body, Rescore):
        return [(("scorer_refs", at), text, MODEL_KINDS) for at, text in enumerate(body.scorer_refs)]
    return [(("evaluation_ref",), body.evaluation_ref, EVALUATION_KINDS), (("model_ref",), body.model_ref, MODEL_KINDS)]


# ---- responses


@attrs.frozen
class EvaluationQueued:
    """The id of a run that waits for a worker."""

    call_id: str


@attrs.frozen
class RescoreQueued:
    """The id of a new run that waits for a worker, under both of its names."""

    call_id: str
    evaluation_run_id: str


@attrs.frozen
class EvaluationEventObject:
    """An event of a run that workers run. An `evaluation_progress` has how far it, or its `shard`, has come."""

    id: str
    type: Literal["evaluation_started", "evaluation_progress", "shard_ended", "evaluation_ended", "evaluation_failed"]
    data: Mapping[str, Any]
    created_at: datetime


show_event = answering(EvaluationEventObject)


@attrs.frozen
class StatusNotFound:
    """The run does not exist."""

    code: Literal["not_found"]


@attrs.frozen
class StatusRunning:
    """The run is under way, or waits for a worker."""

    code: Literal["running"]
    completed_rows: int
    total_rows: int


@attrs.frozen
class StatusFailed:
    """The run has failed or was cancelled."""

    code: Literal["failed"]
    error: str | None


@attrs.frozen
class StatusComplete:
    """The run has completed, with its summary."""

    code: Literal["complete"]
    output: Mapping[str, Any]


@attrs.frozen
class StatusAnswer:
    """How far a run has come."""

    status: StatusNotFound | StatusRunning | StatusFailed | StatusComplete


def status_answer(status: RunStatus) -> StatusAnswer:
    if status.run.state is RunState.RUNNING:
        return StatusAnswer(StatusRunning("running", status.completed_rows, status.total_rows))
    if status.run.state is RunState.COMPLETED:
        return StatusAnswer(StatusComplete("complete", status.run.summary or {}))
    return StatusAnswer(StatusFailed("failed", status.run.reason))


# ---- routes


def evaluate_model(call: RouteCall) -> Response:
    """Have a worker evaluate a model as a published evaluation says."""
    body = body_of(EvaluateModel, call)
    namespace = _namespace(call, body.project_id)
    check_references(body)
    key = idempotency_key(call)
    call.platform.jobs.require_worker("evaluation")
    with problems_at("body", "evaluation_ref", **_MEMBERS):
        run = call.platform.evaluations.submit(
            body.evaluation_ref, body.model_ref, idempotency_key=key, **_work_of(body), **namespace
        )
    return json_response(EvaluationQueued(run.id))


class _Work(TypedDict, total=False):
    shards: int
    needs: Resources


def _work_of(body: EvaluateModel | Rescore) -> _Work:
    work: _Work = {} if body.shards is None else {"shards": body.shards}
    return work if body.needs is None else {**work, "needs": resources_of(body.needs)}


_MEMBERS = {"model": "model_ref", **dict.fromkeys(("evaluation", "rows", "scorers"), "evaluation_ref")}


def rescore_evaluation_run(call: RouteCall) -> Response:
    """Have a worker score the outputs of a run again, in a new run."""
    body = body_of(Rescore, call)
    namespace = _namespace(call, body.project_id)
    check_references(body)
    key = idempotency_key(call)
    source = call.platform.evaluations.runs.get(body.source_evaluation_run_id, **namespace)
    call.platform.jobs.require_worker("evaluation")
    with problems_at("body", "scorer_refs", scorers="scorer_refs"):
        run = call.platform.evaluations.submit_rescore(
            source.id, list(body.scorer_refs), idempotency_key=key, **_work_of(body)
        )
    return json_response(RescoreQueued(run.id, run.id))


def resume_evaluation_run(call: RouteCall) -> Response:
    """Have a worker resume a run that failed; rows that were stored are not run again."""
    run = call.platform.evaluations.runs.get(call.params["run_id"], **namespace_of(call))
    call.platform.jobs.require_worker("evaluation")
    call.platform.evaluations.submit_resume(run.id)
    return json_response(Success(True))


def list_evaluation_events(call: RouteCall) -> Response:
    """List the events so far of a run that a worker runs, one JSON object a line."""
    namespace, query = namespace_of(call), ListingQuery(call.query)
    query.check()
    run = call.platform.evaluations.runs.get(call.params["run_id"], **namespace)
    events = call.platform.evaluations.events(run.id, query.after, follow=False)
    return query.response_of(events, show_event)


def show_evaluation_status(call: RouteCall) -> Response:
    """Show how far a run has come; for one that does not exist the status is `not_found`."""
    body = body_of(StatusOf, call)
    namespace = _namespace(call, body.project_id)
    try:
        return json_response(status_answer(call.platform.evaluations.runs.status(body.call_id, **namespace)))
    except NotFound:
        return json_response(StatusAnswer(StatusNotFound("not_found")))


def _namespace(call: RouteCall, project_id: str) -> NamespaceArguments:
    entity, _, project = project_id.partition("/")
    call.principal.require(entity, project)
    return {"entity": entity, "project": project}


_route = partial(documented_route, BASE, Auth.BASIC, "POST", body=Body.CONTROL)
_job_route = partial(_route, headers=(IDEMPOTENCY_KEY,))


ROUTES: tuple[Route, ...] = (
    _job_route("/evaluations/evaluate_model", evaluate_model, request=EvaluateModel, response=EvaluationQueued),
    _job_route("/evaluations/rescore", rescore_evaluation_run, request=Rescore, response=RescoreQueued),
    _route("/evaluations/status", show_evaluation_status, request=StatusOf, response=StatusAnswer),
    evaluation_route("POST", RUNS + "/{run_id}/resume", resume_evaluation_run, response=Success),
    evaluation_route(
        "GET",
        RUNS + "/{run_id}/events",
        list_evaluation_events,
        query=WINDOW,
        response=EvaluationEventObject,
        media="application/jsonl",
    ),
)
