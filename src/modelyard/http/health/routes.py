"""The routes that check the platform (specification 4.3)."""

import attrs

from modelyard.http.message import Response, json_response
from modelyard.http.route import Auth, Interface, Route, RouteCall
from modelyard.platform.operations.health import SystemCheck


@attrs.frozen
class HealthBody:
    """The platform answers."""

    status: str


def health(call: RouteCall) -> Response:
    """Report that the platform answers."""
    return json_response(HealthBody(call.platform.health.check()))


def system_check(call: RouteCall) -> Response:
    """Try every part of the platform; the status is 503 when one fails."""
    check = call.platform.health.system_check()
    return json_response(attrs.asdict(check), 200 if check.success else 503)


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "/v1/health",
        Interface.TRAINING,
        Auth.BEARER,
        health,
        response=HealthBody,
        summary="Report that the platform answers.",
    ),
    Route(
        "GET",
        "/v1/system-check",
        Interface.TRAINING,
        Auth.BEARER,
        system_check,
        response=SystemCheck,
        statuses=(200, 503),
        summary="Try every part of the platform.",
    ),
)
