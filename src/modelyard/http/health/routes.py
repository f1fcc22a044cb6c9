"""The routes that check the platform (specification 4.3), and the public probes of load balancers and containers."""

from functools import partial

import attrs

from modelyard.flow import Flow
from modelyard.http.interface import Auth
from modelyard.http.interfaces import BASE, TRAINING
from modelyard.http.message import Response, json_response
from modelyard.http.route import Route, RouteCall, documented_route
from modelyard.platform.operations.health import SystemCheck


@attrs.frozen
class HealthBody:
    """The platform answers."""

    status: str


def health(call: RouteCall) -> Response:
    """Report that the platform answers."""
    return json_response(HealthBody(call.platform.health.check()))


def live(call: RouteCall) -> Flow[Response]:
    """Report that the process answers, whether or not its store does."""
    yield from ()  # a flow, so that it takes no thread of the store's
    return json_response(HealthBody("ok"))


def ready(call: RouteCall) -> Response:
    """Report whether requests can be served: 503 while the store or the artifacts cannot be reached."""
    if call.platform.health.ready():
        return json_response(HealthBody("ok"))
    return json_response(HealthBody("unavailable"), 503, [("retry-after", "1")])


def system_check(call: RouteCall) -> Response:
    check = call.platform.health.system_check()
    return json_response(attrs.asdict(check), 200 if check.success else 503)


_probe = partial(documented_route, BASE, Auth.PUBLIC, "GET", response=HealthBody)

ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "/v1/health",
        TRAINING,
        Auth.BEARER,
        health,
        response=HealthBody,
        summary="Report that the platform answers.",
    ),
    Route(
        "GET",
        "/v1/system-check",
        TRAINING,
        Auth.BEARER,
        system_check,
        response=SystemCheck,
        statuses=(200, 503),
        summary="Try every part of the platform.",
    ),
    _probe("/livez", live),
    _probe("/readyz", ready, statuses=(200, 503)),
    _probe("/health", ready, statuses=(200, 503)),
)
