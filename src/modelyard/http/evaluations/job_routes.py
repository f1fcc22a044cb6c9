"""The routes of evaluations that workers run (specification 4.5)."""

from functools import partial

from modelyard.errors import NotFound
from modelyard.formats.converter import structure
from modelyard.http.evaluations.job_schemas import (
    EvaluateModel,
    EvaluationEventObject,
    EvaluationQueued,
    Rescore,
    RescoreQueued,
    StatusAnswer,
    StatusNotFound,
    StatusOf,
    check_references,
    show_event,
    status_answer,
)
from modelyard.http.evaluations.route import (
    RUNS,
    WINDOW,
    ListingQuery,
    NamespaceArguments,
    Success,
    evaluation_route,
    namespace_of,
)
from modelyard.http.message import Response, json_response, problems_at
from modelyard.http.route import Auth, Body, Interface, Route, RouteCall, documented_route


def evaluate_model(call: RouteCall) -> Response:
    """Have a worker evaluate a model as a published evaluation says."""
    body = structure(EvaluateModel, call.body, "body")
    namespace = _namespace(call, body.project_id)
    check_references(body)
    call.platform.jobs.require_worker("evaluation")
    with problems_at("body", evaluation="evaluation_ref", model="model_ref", rows="evaluation_ref"):
        run = call.platform.evaluations.submit(body.evaluation_ref, body.model_ref, **namespace)
    return json_response(EvaluationQueued(run.id))


def rescore(call: RouteCall) -> Response:
    """Have a worker score the outputs of a run again, in a new run."""
    body = structure(Rescore, call.body, "body")
    namespace = _namespace(call, body.project_id)
    check_references(body)
    source = call.platform.evaluations.runs.get(body.source_evaluation_run_id, **namespace)
    call.platform.jobs.require_worker("evaluation")
    with problems_at("body", scorers="scorer_refs"):
        run = call.platform.evaluations.submit_rescore(source.id, list(body.scorer_refs))
    return json_response(RescoreQueued(run.id, run.id))


def resume_run(call: RouteCall) -> Response:
    """Have a worker resume a run that failed; rows that were stored are not run again."""
    run = call.platform.evaluations.runs.get(call.params["run_id"], **namespace_of(call))
    call.platform.jobs.require_worker("evaluation")
    call.platform.evaluations.submit_resume(run.id)
    return json_response(Success(True))


def list_events(call: RouteCall) -> Response:
    """List the events so far of a run that a worker runs, one JSON object a line."""
    namespace, query = namespace_of(call), ListingQuery(call.query)
    query.check()
    run = call.platform.evaluations.runs.get(call.params["run_id"], **namespace)
    events = call.platform.evaluations.events(run.id, query.after, follow=False)
    return query.response_of(events, show_event)


def show_status(call: RouteCall) -> Response:
    """Show how far a run has come; for one that does not exist the status is `not_found`."""
    body = structure(StatusOf, call.body, "body")
    namespace = _namespace(call, body.project_id)
    try:
        return json_response(status_answer(call.platform.evaluations.runs.status(body.call_id, **namespace)))
    except NotFound:
        return json_response(StatusAnswer(StatusNotFound("not_found")))


def _namespace(call: RouteCall, project_id: str) -> NamespaceArguments:
    """Return the entity and project of a body. Raises `Forbidden`."""
    entity, _, project = project_id.partition("/")
    call.principal.require(entity, project)
    return {"entity": entity, "project": project}


_route = partial(documented_route, Interface.BASE, Auth.BASIC, "POST", body=Body.CONTROL)


ROUTES: tuple[Route, ...] = (
    _route("/evaluations/evaluate_model", evaluate_model, request=EvaluateModel, response=EvaluationQueued),
    _route("/evaluations/rescore", rescore, request=Rescore, response=RescoreQueued),
    _route("/evaluations/status", show_status, request=StatusOf, response=StatusAnswer),
    evaluation_route("POST", RUNS + "/{run_id}/resume", resume_run, response=Success),
    evaluation_route(
        "GET",
        RUNS + "/{run_id}/events",
        list_events,
        query=WINDOW,
        response=EvaluationEventObject,
        media="application/jsonl",
    ),
)
