"""The routes of evaluation runs (specification 4.5)."""

from collections.abc import Callable

import attrs

from modelyard.domain.evaluation.references import EVALUATION_KINDS, MODEL_KINDS
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.http.evaluations.route import (
    RUNS,
    TEXTS,
    WINDOW,
    body_with_references,
    evaluation_route,
    lines_response,
    namespace_of,
    optional_body,
    problems_in_request,
)
from modelyard.http.evaluations.run_schemas import (
    EvaluationRunCreate,
    EvaluationRunCreated,
    EvaluationRunFinish,
    EvaluationRunObject,
    EvaluationRunStop,
    NumDeleted,
    RunLineageObject,
    Success,
    parse_ids,
    parse_run_query,
)
from modelyard.http.message import Response, json_response
from modelyard.http.route import Body, Parameter, Route, RouteCall


def create_run(call: RouteCall) -> Response:
    """Create a run."""
    namespace = namespace_of(call)
    body = body_with_references(EvaluationRunCreate, call, evaluation=EVALUATION_KINDS, model=MODEL_KINDS)
    with problems_in_request():
        run = call.platform.evaluations.runs.create(
            body.evaluation, body.model, body.source_evaluation_run_id, **namespace
        )
    return json_response(EvaluationRunCreated(run.id))


def read_run(call: RouteCall) -> Response:
    """Show a run."""
    return json_response(
        EvaluationRunObject.of(call.platform.evaluations.runs.get(call.params["run_id"], **namespace_of(call)))
    )


def list_runs(call: RouteCall) -> Response:
    """List runs, one JSON object a line."""
    namespace = namespace_of(call)
    query = parse_run_query(call.query)
    return lines_response(
        call.platform.evaluations.runs.list(**namespace, **attrs.asdict(query)), EvaluationRunObject.of
    )


def finish_run(call: RouteCall) -> Response:
    """Complete a run; again with an equal summary, or without one, changes nothing."""
    namespace = namespace_of(call)
    body = optional_body(EvaluationRunFinish, call)
    with problems_in_request():
        call.platform.evaluations.runs.finish(call.params["run_id"], body.summary, **namespace)
    return json_response(Success(True))


def cancel_run(call: RouteCall) -> Response:
    """End a running run that is no longer wanted."""
    return _stop(call, call.platform.evaluations.runs.cancel)


def fail_run(call: RouteCall) -> Response:
    """End a running run because it went wrong."""
    return _stop(call, call.platform.evaluations.runs.fail)


def _stop(call: RouteCall, stop: Callable[..., EvaluationRun]) -> Response:
    namespace = namespace_of(call)
    body = optional_body(EvaluationRunStop, call)
    reason = {} if body.reason is None else {"reason": body.reason}
    with problems_in_request():
        stop(call.params["run_id"], **reason, **namespace)
    return json_response(Success(True))


def delete_runs(call: RouteCall) -> Response:
    """Delete runs; those that do not exist are not counted."""
    namespace = namespace_of(call)
    return json_response(NumDeleted(call.platform.evaluations.runs.delete(parse_ids(call.query), **namespace)))


_LISTING = (
    Parameter("evaluations", TEXTS, "Keep runs of these evaluations (references)."),
    Parameter("models", TEXTS, "Keep runs of these models (references)."),
    Parameter("evaluation_run_ids", TEXTS, "Keep these runs."),
    Parameter("source_evaluation_run_ids", TEXTS, "Keep runs that were made from these."),
    Parameter("evaluation_refs", TEXTS, "An older name of `evaluations`."),
    Parameter("model_refs", TEXTS, "An older name of `models`."),
    *WINDOW,
)


def read_lineage(call: RouteCall) -> Response:
    """Show what a run was made from, what was made from it, and the checkpoint that it evaluated."""
    return json_response(
        RunLineageObject.of(call.platform.evaluations.runs.lineage(call.params["run_id"], **namespace_of(call)))
    )


ROUTES: tuple[Route, ...] = (
    evaluation_route(
        "POST", RUNS, create_run, body=Body.CONTROL, request=EvaluationRunCreate, response=EvaluationRunCreated
    ),
    evaluation_route("GET", RUNS, list_runs, query=_LISTING, response=EvaluationRunObject, media="application/jsonl"),
    evaluation_route(
        "DELETE",
        RUNS,
        delete_runs,
        query=(Parameter("evaluation_run_ids", TEXTS, "Which to delete.", required=True),),
        response=NumDeleted,
    ),
    evaluation_route("GET", RUNS + "/{run_id}", read_run, response=EvaluationRunObject),
    *(
        evaluation_route(
            "POST", f"{RUNS}/{{run_id}}/{word}", handler, body=Body.CONTROL, request=request, response=Success
        )
        for word, handler, request in (
            ("finish", finish_run, EvaluationRunFinish),
            ("cancel", cancel_run, EvaluationRunStop),
            ("fail", fail_run, EvaluationRunStop),
        )
    ),
    evaluation_route("GET", RUNS + "/{run_id}/lineage", read_lineage, response=RunLineageObject),
)
