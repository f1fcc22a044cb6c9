"""Watches over HTTP: a scorer judges stored answers as they come."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

import attrs

from modelyard.formats.constraints import Length, Within
from modelyard.formats.converter import structure_exactly
from modelyard.http.idempotency import IDEMPOTENCY_KEY, creating
from modelyard.http.interface import Auth
from modelyard.http.interfaces import OPERATIONS
from modelyard.http.listing import NAMESPACE, PAGING, page_class, requested_page
from modelyard.http.message import Response, answering, json_response, problems_at
from modelyard.http.route import Body, Route, RouteCall, documented_route
from modelyard.parts.review.routes import JudgedEstimateObject, estimate_object
from modelyard.parts.review.service import Reviews
from modelyard.parts.review.watch_service import WatchedMean, Watches
from modelyard.parts.review.watches import Watch

WATCHES = "/v1/watches"
WATCH = f"{WATCHES}/{{watch}}"


@attrs.frozen
class NewWatch:
    """The body that lets a scorer judge a share of the answers of a model that are stored, for at most `purse` USD.
    `scorer` is the reference of a declarative scorer, or one as data."""

    model: str = attrs.field(validator=Length(1, 512))
    scorer: str | Mapping[str, Any]
    share: float = attrs.field(default=0.01, validator=Within(0, 1))
    purse: str = attrs.field(default="1", validator=Length(1, 32))
    project: str | None = None


@attrs.frozen
class WatchObject:
    """A scorer that judges a share of the stored answers of a model. `state` is running or stopped; `spent` of `purse`
    is in USD, paid or reserved."""

    id: str
    entity: str
    project: str
    model: str
    scorer: str
    share: float
    purse: str
    spent: str
    state: str
    reason: str
    by: str
    created_at: datetime


@attrs.frozen
class WatchedDayObject:
    """The answers of a day (UTC) that were judged: the run with them, and their mean, corrected by labels."""

    day: str
    run: str
    estimate: JudgedEstimateObject


@attrs.frozen
class WatchedDayList:
    """The days of a watch, the oldest first."""

    data: tuple[WatchedDayObject, ...]


watch_object = answering(WatchObject, purse=lambda one: f"{one.purse:f}", spent=lambda one: f"{one.spent:f}")
WatchPage = page_class("WatchPage", WatchObject, watch_object, "A page of watches.")


def day_object(one: WatchedMean) -> WatchedDayObject:
    return WatchedDayObject(one.day, one.run_id, estimate_object(one.mean.corrected, one.mean.check))


def _of(call: RouteCall) -> Watches:
    return call.platform.part(Reviews).watches


def start_watch(call: RouteCall) -> Watch:
    """Let a scorer judge a share of the answers that are stored from now on."""
    body = structure_exactly(NewWatch, call.body, "body")
    with problems_at("body"):
        return _of(call).start(body.model, body.scorer, share=body.share, purse=body.purse, project=body.project)


def list_watches(call: RouteCall) -> Response:
    """List watches, the oldest first."""
    asked = {"project": call.one("project"), "entity": call.one("entity")}
    with problems_at("query"):
        page = requested_page(call, lambda order: _of(call).list(**asked, order=order))
    return json_response(WatchPage.of(page))


def show_watch(call: RouteCall) -> Response:
    """Show a watch and what it has spent."""
    return json_response(watch_object(_of(call).get(call.params["watch"])))


def list_watched_days(call: RouteCall) -> Response:
    """List the means of a watch by day, corrected by labels."""
    return json_response(WatchedDayList(tuple(map(day_object, _of(call).days(call.params["watch"])))))


def stop_watch(call: RouteCall) -> Response:
    """Let a watch judge no more. Idempotent."""
    return json_response(watch_object(_of(call).stop(call.params["watch"])))


def delete_watch(call: RouteCall) -> Response:
    """Delete a watch; the runs with what it judged stay."""
    return json_response(watch_object(_of(call).delete(call.params["watch"])))


_route = partial(documented_route, OPERATIONS, Auth.BEARER)

ROUTES: tuple[Route, ...] = (
    _route("GET", WATCHES, list_watches, query=(*NAMESPACE, *PAGING), response=WatchPage),
    _route(
        "POST",
        WATCHES,
        creating(start_watch, watch_object),
        body=Body.CONTROL,
        request=NewWatch,
        response=WatchObject,
        headers=(IDEMPOTENCY_KEY,),
    ),
    _route("GET", WATCH, show_watch, response=WatchObject),
    _route("DELETE", WATCH, delete_watch, response=WatchObject),
    _route("GET", f"{WATCH}/days", list_watched_days, response=WatchedDayList),
    _route("POST", f"{WATCH}/stop", stop_watch, response=WatchObject),
)
