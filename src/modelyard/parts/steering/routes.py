"""Steering over HTTP: what is asked of a run, its audit, and the answers that were asked for again."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import attrs

from modelyard.errors import InvalidInput
from modelyard.formats.constraints import Length
from modelyard.formats.converter import structure_exactly
from modelyard.http.idempotency import IDEMPOTENCY_KEY, creating
from modelyard.http.interface import Auth
from modelyard.http.interfaces import OPERATIONS
from modelyard.http.listing import PAGING, page_class, requested_page
from modelyard.http.message import Response, answering, json_response, problems_at
from modelyard.http.route import Body, Route, RouteCall, documented_route
from modelyard.parts.steering.records import SteeringAction, SteeringEntry
from modelyard.parts.steering.service import MOST_INDICES, Steering

STEERING = "/v1/runs/{run}/steering"
EARLIER = "/v1/runs/{run}/earlier-answers"


@attrs.frozen
class SteeringRequest:
    """The body that asks something of a run. `limits` is for the action "limits": concurrency, scorer_concurrency,
    timeout, retries, error_budget. `indices` is for "requeue": without it, the rows that have failed are asked again.
    `rows` are added by "rows": a list, or the reference of a dataset."""

    action: SteeringAction
    limits: Mapping[str, Any] | None = None
    indices: tuple[int, ...] | None = attrs.field(default=None, validator=Length(1, MOST_INDICES))
    rows: tuple[Mapping[str, Any], ...] | str | None = None


@attrs.frozen
class SteeringObject:
    """What was asked of a run, and by whom. `changed` maps names to [from, to]; `rows` says which rows are asked again.
    `applied_at` is null until a worker has done it."""

    id: str
    run_id: str
    action: SteeringAction
    by: str
    key_id: str | None
    created_at: datetime
    changed: Mapping[str, Sequence[Any]]
    rows: Mapping[str, Any]
    applied_at: datetime | None


@attrs.frozen
class SteeringAudit:
    """What was asked of a run, the oldest first, and whether it is paused."""

    paused: bool
    entries: Sequence[SteeringObject]


@attrs.frozen
class EarlierAnswerObject:
    """An answer that was asked for again: its output, error, usage and scores. `entry_id` is who asked."""

    id: str
    run_id: str
    entry_id: str
    index: int
    trial: int
    answer: Mapping[str, Any]


entry_object: Any = answering(SteeringObject)
earlier_object: Any = answering(EarlierAnswerObject)
EarlierAnswerPage: Any = page_class("EarlierAnswerPage", EarlierAnswerObject, earlier_object, "A page of answers.")


def _of(call: RouteCall) -> Steering:
    return call.platform.part(Steering)


_GOES_WITH = {"limits": SteeringAction.LIMITS, "indices": SteeringAction.REQUEUE, "rows": SteeringAction.ROWS}


def steer_run(call: RouteCall) -> SteeringEntry:
    """Ask something of an evaluation run: pause, resume, limits, requeue or rows."""
    body, run, of = structure_exactly(SteeringRequest, call.body, "body"), call.params["run"], _of(call)
    for name, action in _GOES_WITH.items():
        if getattr(body, name) is not None and body.action is not action:
            raise InvalidInput.at("body", name, msg=f"goes with the action {action.value}")
    if body.action is SteeringAction.LIMITS and body.limits:
        with problems_at("body", "limits"):
            return of.change_limits(run, body.limits)
    moved = {"rows": "indices"} if body.action is SteeringAction.REQUEUE else {}
    with problems_at("body", **moved):
        if body.action is SteeringAction.PAUSE:
            return of.pause(run)
        if body.action is SteeringAction.RESUME:
            return of.resume(run)
        if body.action is SteeringAction.REQUEUE:
            return of.requeue(run, body.indices)
        if body.action is SteeringAction.ROWS:
            return of.add_rows(run, () if body.rows is None else body.rows)
        return of.change_limits(run, {})


def show_steering(call: RouteCall) -> Response:
    """Show what was asked of an evaluation run."""
    of, run = _of(call), call.params["run"]
    return json_response(SteeringAudit(of.is_paused(run), [entry_object(one) for one in of.audit(run)]))


def list_earlier_answers(call: RouteCall) -> Response:
    """List the answers of an evaluation run that were asked for again."""
    run = call.params["run"]
    with problems_at("query"):
        page = requested_page(call, lambda order: _of(call).earlier(run, order=order))
    return json_response(EarlierAnswerPage.of(page))


_route = partial(documented_route, OPERATIONS, Auth.BEARER)

ROUTES: tuple[Route, ...] = (
    _route("GET", STEERING, show_steering, response=SteeringAudit),
    _route(
        "POST",
        STEERING,
        creating(steer_run, entry_object),
        body=Body.CONTROL,
        request=SteeringRequest,
        response=SteeringObject,
        headers=(IDEMPOTENCY_KEY,),
    ),
    _route("GET", EARLIER, list_earlier_answers, query=PAGING, response=EarlierAnswerPage),
)
