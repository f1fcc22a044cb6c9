"""Shares of entities over HTTP, for the host's own keys."""

from functools import partial

import attrs

from modelyard.formats.converter import structure_exactly
from modelyard.http.interface import Auth
from modelyard.http.interfaces import OPERATIONS
from modelyard.http.message import Response, answering, json_response, problems_at
from modelyard.http.route import Body, Route, RouteCall, documented_route

SHARE = "/v1/admin/shares/{entity}"


@attrs.frozen
class ShareChange:
    """The body that replaces the share of an entity: its weight, and how many of its jobs run at a time, in all
    (`running`) and by kind; null for any number."""

    weight: int = 1
    running: int | None = None
    running_of: dict[str, int] = attrs.field(factory=dict)


@attrs.frozen
class ShareObject:
    """The share of an entity in the workers: every member, also those that were not set."""

    entity: str
    weight: int
    running: int | None
    running_of: dict[str, int]


_shown = answering(ShareObject, running_of=lambda share: dict(share.running_of))


def show_share(call: RouteCall) -> Response:
    """Show the share of an entity in the workers."""
    call.require_host()
    return json_response(_shown(call.platform.shares.get(call.params["entity"])))


def set_share(call: RouteCall) -> Response:
    """Replace the share of an entity in the workers. Idempotent."""
    call.require_host()
    body = structure_exactly(ShareChange, call.body, "body")
    with problems_at("body"):
        share = call.platform.shares.set(
            call.params["entity"], weight=body.weight, running=body.running, running_of=body.running_of
        )
    return json_response(_shown(share))


_route = partial(documented_route, OPERATIONS, Auth.BEARER)

ROUTES: tuple[Route, ...] = (
    _route("GET", SHARE, show_share, response=ShareObject),
    _route("PUT", SHARE, set_share, body=Body.CONTROL, request=ShareChange, response=ShareObject),
)
