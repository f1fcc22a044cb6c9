"""The routes of evaluation runs (specification 4.5)."""

from collections.abc import Callable

from modelyard.domain.evaluation.references import EVALUATION_KINDS, MODEL_KINDS
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.http.evaluations.route import (
    RUNS,
    TEXTS,
    Success,
    body_with_references,
    evaluation_route,
    namespace_of,
    optional_body,
    problems_in_request,
    stored_routes,
)
from modelyard.http.evaluations.run_schemas import (
    EvaluationRunCreate,
    EvaluationRunCreated,
    EvaluationRunFinish,
    EvaluationRunObject,
    EvaluationRunStop,
    RunLineageObject,
    run_filters,
    show_lineage,
    show_run,
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


def read_lineage(call: RouteCall) -> Response:
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
    evaluation_route(
        "POST", RUNS, create_run, body=Body.CONTROL, request=EvaluationRunCreate, response=EvaluationRunCreated
    ),
    *stored_routes(
        RUNS,
        "run_id",
        "run",
        Parameter("evaluation_run_ids", TEXTS, "Which to delete.", required=True),
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
            ("finish", finish_run, EvaluationRunFinish),
            ("cancel", cancel_run, EvaluationRunStop),
            ("fail", fail_run, EvaluationRunStop),
        )
    ),
    evaluation_route("GET", RUNS + "/{run_id}/lineage", read_lineage, response=RunLineageObject),
)
