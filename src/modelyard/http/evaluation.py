"""The routes of evaluation runs (specification 4.5)."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypedDict

import attrs

from modelyard.domain.evaluation import EvaluationRun
from modelyard.domain.identity import check_name
from modelyard.domain.reference import EVALUATION_KINDS, MODEL_KINDS, RefMode, reference_problem
from modelyard.errors import InvalidInput, Problem
from modelyard.http.message import Response, json_response
from modelyard.http.route import Auth, Body, Call, Handler, Interface, Parameter, Route
from modelyard.wire.converter import structure
from modelyard.wire.evaluation import (
    EvaluationRunCreate,
    EvaluationRunCreated,
    EvaluationRunFinish,
    EvaluationRunObject,
    EvaluationRunStop,
    NumDeleted,
    Success,
    parse_ids,
    parse_run_query,
    run_object,
    wire_places,
)
from modelyard.wire.json import dump

RUNS = "/v2/{entity}/{project}/evaluation_runs"
FIRST_LINES = 1000
"""So many lines are read before the status is sent; what fails among them fails the request."""


class Where(TypedDict):
    """The arguments that name a place."""

    entity: str
    project: str


def create_run(call: Call) -> Response:
    """Create a run."""
    place = _place(call)
    try:
        body = structure(EvaluationRunCreate, call.body, "body")
    except InvalidInput as wrong:
        raise InvalidInput([*wrong.problems, *_wrong_references(call)]) from None
    with wire_places():
        run = call.platform.evaluations.create(body.evaluation, body.model, body.source_evaluation_run_id, **place)
    return json_response({"evaluation_run_id": run.id})


def _wrong_references(call: Call) -> list[Problem]:
    """The references at fault in a body that does not fit anyway, so that all problems are told at once."""
    given = call.body if isinstance(call.body, dict) else {}
    mode = RefMode(call.platform.ports.settings.reference_mode)
    kinds = {"evaluation": EVALUATION_KINDS, "model": MODEL_KINDS}
    texts = ((field, given[field]) for field in kinds if isinstance(given.get(field), str))
    found = [reference_problem(field, text, kinds[field], mode) for field, text in texts]
    return [Problem(("body", *problem.loc), problem.msg, problem.type) for problem in found if problem is not None]


def read_run(call: Call) -> Response:
    """Show a run."""
    return json_response(run_object(call.platform.evaluations.get(call.params["run_id"], **_place(call))))


def list_runs(call: Call) -> Response:
    """List runs, one JSON object a line."""
    place = _place(call)
    query = parse_run_query(call.query)
    runs = call.platform.evaluations.list(**place, **attrs.asdict(query))
    first = list(islice(runs, FIRST_LINES))
    body = _lines(first) if len(first) < FIRST_LINES else _stream(first, runs)
    return Response(200, [("content-type", "application/jsonl")], body)


def _stream(batch: list[EvaluationRun], runs: Iterator[EvaluationRun]) -> Iterator[bytes]:
    while batch:
        yield _lines(batch)
        batch = list(islice(runs, FIRST_LINES))


def _lines(runs: Iterable[EvaluationRun]) -> bytes:
    return b"".join(dump(run_object(run)) + b"\n" for run in runs)


def finish_run(call: Call) -> Response:
    """Complete a run; again with an equal summary, or without one, changes nothing."""
    place = _place(call)
    body = structure(EvaluationRunFinish, _or_empty(call.body), "body")
    with wire_places():
        call.platform.evaluations.finish(call.params["run_id"], body.summary, **place)
    return json_response({"success": True})


def cancel_run(call: Call) -> Response:
    """End a running run because nobody wants it."""
    return _stop(call, call.platform.evaluations.cancel)


def fail_run(call: Call) -> Response:
    """End a running run because it went wrong."""
    return _stop(call, call.platform.evaluations.fail)


def _stop(call: Call, stop: Callable[..., EvaluationRun]) -> Response:
    place = _place(call)
    body = structure(EvaluationRunStop, _or_empty(call.body), "body")
    reason = {} if body.reason is None else {"reason": body.reason}
    with wire_places():
        stop(call.params["run_id"], **reason, **place)
    return json_response({"success": True})


def delete_runs(call: Call) -> Response:
    """Delete runs; those that do not exist are not counted."""
    place = _place(call)
    return json_response({"num_deleted": call.platform.evaluations.delete(parse_ids(call.query), **place)})


def _place(call: Call) -> Where:
    """The path's entity and project. A caller who lacks them hears so before the rest of the request is looked at."""
    entity, project = call.params["entity"], call.params["project"]
    call.platform.principal.require(entity, project)
    with wire_places():
        return {"entity": check_name(entity, "entity"), "project": check_name(project, "project")}


def _or_empty(body: Any) -> Any:
    return {} if body is None else body


_TEXTS = {"type": "array", "items": {"type": "string"}}
_COUNT = {"type": "integer", "minimum": 0}

_LISTING = (
    Parameter("evaluations", _TEXTS, "Keep runs of these evaluations (references)."),
    Parameter("models", _TEXTS, "Keep runs of these models (references)."),
    Parameter("evaluation_run_ids", _TEXTS, "Keep these runs."),
    Parameter("source_evaluation_run_ids", _TEXTS, "Keep runs that were made from these."),
    Parameter("evaluation_refs", _TEXTS, "An older name of `evaluations`."),
    Parameter("model_refs", _TEXTS, "An older name of `models`."),
    Parameter("limit", _COUNT, "How many at most; all when absent."),
    Parameter("offset", _COUNT, "How many to leave out at the start."),
)


def _route(method: str, path: str, handler: Handler, **more: Any) -> Route:
    summary = (handler.__doc__ or "").partition("\n")[0]
    return Route(method, path, Interface.BASE, Auth.BASIC, handler, summary=summary, **more)


ROUTES: tuple[Route, ...] = (
    _route("POST", RUNS, create_run, body=Body.CONTROL, request=EvaluationRunCreate, response=EvaluationRunCreated),
    _route("GET", RUNS, list_runs, query=_LISTING, response=EvaluationRunObject, media="application/jsonl"),
    _route(
        "DELETE",
        RUNS,
        delete_runs,
        query=(Parameter("evaluation_run_ids", _TEXTS, "Which to delete.", required=True),),
        response=NumDeleted,
    ),
    _route("GET", RUNS + "/{run_id}", read_run, response=EvaluationRunObject),
    *(
        _route("POST", f"{RUNS}/{{run_id}}/{word}", handler, body=Body.CONTROL, request=request, response=Success)
        for word, handler, request in (
            ("finish", finish_run, EvaluationRunFinish),
            ("cancel", cancel_run, EvaluationRunStop),
            ("fail", fail_run, EvaluationRunStop),
        )
    ),
)
