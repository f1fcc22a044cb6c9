"""The figures that Prometheus reads, and the slowest answers, for the host's own keys."""

from datetime import datetime
from functools import partial
from typing import Any, Literal

import attrs

from modelyard.http.interface import Auth
from modelyard.http.interfaces import OPERATIONS
from modelyard.http.message import Response, answering, json_response, problems_at
from modelyard.http.query import Query
from modelyard.http.route import Parameter, Route, RouteCall, documented_route
from modelyard.parts.metrics.service import SHOWN

METRICS = "text/plain; version=0.0.4; charset=utf-8"
"""The text format of Prometheus, which every version of it reads."""


def show_metrics(call: RouteCall) -> Response:
    """Show the metrics of the process that answers, in the text format of Prometheus."""
    return Response(200, [("content-type", METRICS)], call.platform.metrics.text().encode())


@attrs.frozen
class SlowAnswerObject:
    """A whole answer that was slow: `seconds` from its request to its end. `id` is that of its row of the ledger, and
    `key` that of the API key, "" for the host."""

    id: str
    entity: str
    project: str
    key: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    ended_at: datetime


@attrs.frozen
class SlowAnswers:
    """The slowest answers, the slowest first."""

    data: tuple[SlowAnswerObject, ...]
    object: Literal["list"] = "list"


_shown = answering(SlowAnswerObject, key="key_id")


def list_slowest(call: RouteCall) -> Response:
    """List the slowest whole answers of all processes, of the 20 that are kept of each entity and day for 31 days."""
    query = Query(call.query)
    limit, entity, month = query.whole("limit"), query.text("entity"), query.text("month")
    query.check()
    with problems_at("query"):
        found = call.platform.metrics.slowest(SHOWN if limit is None else limit, month=month, entity=entity)
    return json_response(SlowAnswers(tuple(map(_shown, found))))


_QUERY = (
    Parameter("limit", {"type": "integer"}, description=f"How many, {SHOWN} by default."),
    Parameter("month", description="Only of this month in UTC, such as 2026-11."),
    Parameter("entity", description="Only of this entity."),
)

_route: Any = partial(documented_route, OPERATIONS, Auth.BEARER)

ROUTES: tuple[Route, ...] = (
    _route("GET", "/metrics", show_metrics, media="text/plain"),
    _route("GET", "/v1/admin/slowest", list_slowest, query=_QUERY, response=SlowAnswers),
)
