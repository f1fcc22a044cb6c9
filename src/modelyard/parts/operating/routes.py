"""Sums of usage over HTTP, for every key: of what it may see. Amounts are strings, which no client rounds."""

from functools import partial
from typing import Any, Literal

import attrs

from modelyard.domain.usage import UsageSum
from modelyard.http.interface import Auth
from modelyard.http.interfaces import OPERATIONS
from modelyard.http.message import Response, json_response, problems_at
from modelyard.http.query import Query
from modelyard.http.route import Parameter, Route, RouteCall, documented_route
from modelyard.parts.operating.ranges import range_of


@attrs.frozen
class UsageSumObject:
    """The sum of a group of ledger entries: its cost in USD, and counts. A field by which they were not grouped is
    null; `key` is the id of an API key, "" for the host, and `day` is in UTC."""

    entity: str | None
    project: str | None
    model: str | None
    key: str | None
    day: str | None
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    images: int
    trained_tokens: int
    cost: str


@attrs.frozen
class UsageSums:
    """Sums of usage, sorted by what they are grouped by."""

    data: tuple[UsageSumObject, ...]
    object: Literal["list"] = "list"


def _shown(one: UsageSum) -> UsageSumObject:
    return UsageSumObject(**{**attrs.asdict(one), "cost": f"{one.cost:f}"})


def sum_usage(call: RouteCall) -> Response:
    """Sum usage and its cost over a range of time."""
    query = Query(call.query)
    by = query.texts("by")
    named: dict[str, Any] = {name: query.text(name) for name in ("since", "until", "month", "entity", "project")}
    query.check()
    with problems_at("query"):
        times = range_of(named.pop("since"), named.pop("until"), named.pop("month"), call.platform.clock.now())
        found = call.platform.usage.total(by, **times, **named)
    return json_response(UsageSums(tuple(map(_shown, found))))


_TIME = "A date or a time, such as 2026-11-23 or 2026-11-23T12:00Z, or an age, such as 2h, 30d or 4w."
_QUERY = (
    Parameter("by", description="Some of entity, project, model, key and day, with commas between them."),
    Parameter("since", description=f"Only from then on. {_TIME}"),
    Parameter("until", description=f"Only before. {_TIME}"),
    Parameter("month", description="Only of this month in UTC, such as 2026-11."),
    Parameter("entity", description="Only of this entity."),
    Parameter("project", description="Only of this project."),
)

ROUTES: tuple[Route, ...] = (
    partial(documented_route, OPERATIONS, Auth.BEARER)("GET", "/v1/usage", sum_usage, query=_QUERY, response=UsageSums),
)
