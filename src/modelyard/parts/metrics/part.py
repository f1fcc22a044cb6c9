"""Figures for Prometheus (`platform.metrics`), and traces for OpenTelemetry (`modelyard.otel`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Part

if TYPE_CHECKING:
    from modelyard.http.route import Route
    from modelyard.parts.metrics.service import Metrics


def _metrics() -> "type[Metrics]":
    from modelyard.parts.metrics.service import Metrics as resource

    return resource


def _routes() -> "Sequence[Route]":
    from modelyard.parts.metrics.routes import ROUTES

    return ROUTES


PART = Part(
    "metrics",
    resources={"metrics": _metrics},
    routes={"operations": _routes},
)
