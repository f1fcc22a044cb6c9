"""The routes of traced calls, and those with which a client of them begins."""

from collections.abc import Sequence

import attrs

from modelyard.errors import InvalidInput, NotFound
from modelyard.formats.converter import structure
from modelyard.http.interface import Auth
from modelyard.http.message import Response, json_response, problems_at
from modelyard.http.response_bodies import json_lines
from modelyard.http.route import Body, Route, RouteCall, documented_route
from modelyard.parts.traces.http.documents import call_document, with_columns, with_feedback
from modelyard.parts.traces.http.queries import call_query
from modelyard.parts.traces.http.requests import body_of, control_body, control_route, data_route, place_of
from modelyard.parts.traces.http.schemas import (
    CallAnswer,
    CallBatchAnswer,
    CallBatchRequest,
    CallDeleteRequest,
    CallEndRequest,
    CallIds,
    CallObject,
    CallOutcome,
    CallReadRequest,
    CallsCount,
    CallsDeleted,
    CallsFilter,
    CallsQueryRequest,
    CallStart,
    CallStartRequest,
    CallUpdateRequest,
    CompleteCallsRequest,
    Empty,
    ended,
    started,
)
from modelyard.parts.traces.interface import TRACES
from modelyard.parts.traces.records import CallEnd, TracedCall
from modelyard.parts.uploads import graphql_request as graphql
from modelyard.parts.uploads.graphql_request import ACCOUNT, GraphQLAnswer, GraphQLRequest

OLDEST_CLIENT = "0.50.0"
"""The oldest release of the client that these routes were seen to work with, or near it."""


@attrs.frozen
class ServerInfo:
    """Which clients this server works with."""

    min_required_weave_python_version: str


def show_trace_server(call: RouteCall) -> Response:
    """Show which clients this server works with."""
    return json_response(ServerInfo(OLDEST_CLIENT))


def perform_graphql(call: RouteCall) -> Response:
    """Answer who calls, and whether a project is there."""
    return graphql.perform(call, ACCOUNT, "ask who calls and for a project")


# ---- recording -----------------------------------------------------------------------------------------------------


def _check_path(call: RouteCall, project_id: str, *loc: str | int) -> None:
    """Raise `InvalidInput` for a call of another project than that of the path, if that names one."""
    named = "/".join(call.params.values()) or project_id
    if project_id != named:
        raise InvalidInput.at("body", *loc, "project_id", msg=f"must be that of the path, {named!r}")


def _begun(call: RouteCall, start: CallStart, *loc: str | int) -> TracedCall:
    _check_path(call, start.project_id, *loc)
    return started(start, call.platform.compat.traces.calls.new_id(), "body", *loc)


def _ended(call: RouteCall, end: CallOutcome, *loc: str | int) -> CallEnd:
    _check_path(call, end.project_id, *loc)
    return ended(end, end.id, "body", *loc)


def _record(call: RouteCall, project_id: str, items: Sequence[TracedCall | CallEnd]) -> None:
    with problems_at("body"):
        traces, place = call.platform.compat.traces, place_of(call, project_id)
        traces.calls.record(items, **place)
        traces.keep_runs([one.id for one in items if one.ended_at is not None], **place)


def start_call(call: RouteCall) -> Response:
    """Record that a call begins."""
    start = body_of(CallStartRequest, call).start
    begun = _begun(call, start, "start")
    _record(call, start.project_id, [begun])
    return json_response(CallIds(begun.id, begun.trace_id))


def end_call(call: RouteCall) -> Response:
    """Record the outcome of a call, which may come before its start."""
    end = body_of(CallEndRequest, call).end
    _record(call, end.project_id, [_ended(call, end, "end")])
    return json_response(Empty())


def record_whole_calls(call: RouteCall) -> Response:
    """Record whole calls of one project. Sent again, they are the same calls."""
    body, items = body_of(CompleteCallsRequest, call), list[TracedCall | CallEnd]()
    for at, one in enumerate(body.batch):
        begun = _begun(call, one, "batch", at)
        items.append(begun.with_end(ended(one, begun.id, "body", "batch", at)))
    _record(call, "/".join(call.params.values()), items)
    return json_response(Empty())


def record_call_batch(call: RouteCall) -> Response:
    """Record starts and outcomes of calls in their order, all of one project."""
    items, answers, project = list[TracedCall | CallEnd](), list[dict[str, str]](), ""
    for at, item in enumerate(body_of(CallBatchRequest, call).batch):
        loc = "batch", at, "req", item.mode
        if item.mode == "start":
            start = structure(CallStartRequest, item.req, "body", "batch", at, "req").start
            begun, named = _begun(call, start, *loc), start.project_id
            items.append(begun)
            answers.append({"id": begun.id, "trace_id": begun.trace_id})
        else:
            end = structure(CallEndRequest, item.req, "body", "batch", at, "req").end
            items.append(_ended(call, end, *loc))
            answers.append({})
            named = end.project_id
        if named != (project := project or named):
            raise InvalidInput.at("body", *loc, "project_id", msg="must be the same in all items of a batch")
    if items:
        _record(call, project, items)
    return json_response(CallBatchAnswer(tuple(answers)))


def update_call(call: RouteCall) -> Response:
    """Give a call another name to be shown by."""
    body = control_body(CallUpdateRequest, call)
    call.platform.compat.traces.calls.rename(body.call_id, body.display_name, **place_of(call, body.project_id))
    return json_response(Empty())


def delete_calls(call: RouteCall) -> Response:
    """Delete calls with those that they made, and the feedback on them."""
    body = control_body(CallDeleteRequest, call)
    deleted = call.platform.compat.traces.calls.delete(body.call_ids, **place_of(call, body.project_id))
    return json_response(CallsDeleted(deleted))


# ---- reading -------------------------------------------------------------------------------------------------------


def read_call(call: RouteCall) -> Response:
    """Show a call; null where there is none."""
    body = control_body(CallReadRequest, call)
    try:
        found = call.platform.compat.traces.calls.get(body.id, **place_of(call, body.project_id))
    except NotFound:
        return json_response({"call": None})
    return json_response({"call": call_document(found)})


def query_calls(call: RouteCall) -> Response:
    """Find calls, one JSON object a line, by their start unless sorted."""
    body = control_body(CallsQueryRequest, call, filter=CallsFilter)
    place, traces = place_of(call, body.project_id), call.platform.compat.traces
    with problems_at("body"):
        found = traces.calls.query(call_query(body, traces.feedback), **place)
    show = (lambda one: with_feedback(one, traces.feedback)) if body.include_feedback else call_document
    return json_lines(with_columns(show(one), body.columns) for one in found)


def count_calls(call: RouteCall) -> Response:
    """Count the calls that a query finds."""
    body = control_body(CallsQueryRequest, call, filter=CallsFilter)
    traces = call.platform.compat.traces
    place = place_of(call, body.project_id)
    with problems_at("body"):
        found = traces.calls.count(call_query(body, traces.feedback), **place)
    return json_response(CallsCount(found, body.limit is not None and found >= body.limit))


_PROJECT = "/v2/{entity}/{project}"

ROUTES: tuple[Route, ...] = (
    documented_route(TRACES, Auth.BASIC, "GET", "/server_info", show_trace_server, response=ServerInfo),
    documented_route(
        TRACES,
        Auth.BASIC,
        "POST",
        "/graphql",
        perform_graphql,
        body=Body.CONTROL,
        request=GraphQLRequest,
        response=GraphQLAnswer,
    ),
    *(
        route
        for base, calls in (("", "call"), (_PROJECT, "project_call"))
        for route in (
            data_route(f"{base}/call/start", start_call, CallStartRequest, CallIds, operation=f"start_{calls}"),
            data_route(f"{base}/call/end", end_call, CallEndRequest, Empty, operation=f"end_{calls}"),
        )
    ),
    data_route(f"{_PROJECT}/calls/complete", record_whole_calls, CompleteCallsRequest, Empty),
    data_route("/call/upsert_batch", record_call_batch, CallBatchRequest, CallBatchAnswer),
    control_route("/call/update", update_call, CallUpdateRequest, Empty),
    control_route("/call/read", read_call, CallReadRequest, CallAnswer),
    control_route("/calls/delete", delete_calls, CallDeleteRequest, CallsDeleted),
    control_route("/calls/query_stats", count_calls, CallsQueryRequest, CallsCount),
    control_route("/calls/stream_query", query_calls, CallsQueryRequest, CallObject, media="application/jsonl"),
)
