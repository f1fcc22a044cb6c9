"""The figures that Prometheus reads."""

from modelyard.http.interface import Auth
from modelyard.http.interfaces import OPERATIONS
from modelyard.http.message import Response
from modelyard.http.route import Route, RouteCall, documented_route

METRICS = "text/plain; version=0.0.4; charset=utf-8"
"""The text format of Prometheus, which every version of it reads."""


def show_metrics(call: RouteCall) -> Response:
    """Show the metrics of the process that answers, in the text format of Prometheus."""
    return Response(200, [("content-type", METRICS)], call.platform.metrics.text().encode())


ROUTES: tuple[Route, ...] = (
    documented_route(OPERATIONS, Auth.BEARER, "GET", "/metrics", show_metrics, media="text/plain"),
)
