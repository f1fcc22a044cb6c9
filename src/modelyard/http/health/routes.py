"""The routes that check the platform (specification 4.3), and the public probes of load balancers and containers."""

from functools import partial

import attrs

from modelyard.flow import Call, Flow
from modelyard.http.interface import Auth
from modelyard.http.interfaces import BASE, TRAINING
from modelyard.http.message import Response, json_response
from modelyard.http.route import Route, RouteCall, documented_route
from modelyard.platform.operations.health import SystemCheck


@attrs.frozen
class HealthBody:
    """The platform answers."""

    status: str


@attrs.frozen
class ReadinessBody:
    """Whether requests can be served, and whether the artifacts can be reached, which not all requests need."""

    status: str
    artifacts: str


PROBES = "(probes)"
"""The tenant on whose account probes wait; no entity has this name."""


def show_health(call: RouteCall) -> Response:
    """Report that the platform answers."""
    return json_response(HealthBody(call.platform.health.check()))


def check_liveness(call: RouteCall) -> Flow[Response]:
    """Report that the process answers, whether or not its store does."""
    yield from ()  # a flow, so that it takes no thread of the store's
    return json_response(HealthBody("ok"))


def check_readiness(call: RouteCall) -> Flow[Response]:
    """Report whether requests can be served: 503 while the store cannot be written, and when the server is to end."""
    health = call.platform.health
    found = yield Call(health.ready, True, call.platform.threads.backends.of(PROBES))
    body = ReadinessBody("ok" if found.ready else "unavailable", "ok" if found.artifacts else "unavailable")
    return json_response(body, 200) if found.ready else json_response(body, 503, [("retry-after", "1")])


def check_system(call: RouteCall) -> Response:
    check = call.platform.health.system_check()
    return json_response(attrs.asdict(check), 200 if check.success else 503)


_probe = partial(documented_route, BASE, Auth.PUBLIC, "GET", response=HealthBody)

ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "/v1/health",
        TRAINING,
        Auth.BEARER,
        show_health,
        response=HealthBody,
        summary="Report that the platform answers.",
    ),
    Route(
        "GET",
        "/v1/system-check",
        TRAINING,
        Auth.BEARER,
        check_system,
        response=SystemCheck,
        statuses=(200, 503),
        summary="Try every part of the platform.",
    ),
    _probe("/livez", check_liveness),
    _probe("/readyz", check_readiness, response=ReadinessBody, statuses=(200, 503)),
    _probe("/health", check_readiness, response=ReadinessBody, statuses=(200, 503), operation="check_health"),
)
