"""Figures for Prometheus, the slowest answers (`platform.metrics`), and traces for OpenTelemetry (`modelyard.otel`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Part

if TYPE_CHECKING:
    from modelyard.domain.record import Record
    from modelyard.http.route import Route
    from modelyard.parts.metrics.service import Metrics
    from modelyard.platform.runtime import Runtime


def _records() -> "Sequence[Record]":
    from modelyard.parts.metrics.records import RECORDS

    return RECORDS


def _metrics() -> "type[Metrics]":
    from modelyard.parts.metrics.service import Metrics as resource

    return resource


def _routes() -> "Sequence[Route]":
    from modelyard.parts.metrics.routes import ROUTES

    return ROUTES


def _upkeep(runtime: "Runtime") -> None:
    if runtime.cache.meters is not None:
        from modelyard.parts.metrics.slowest import SlowestHere

        runtime.cache.slot_of(SlowestHere, lambda: SlowestHere(runtime)).store()


PART = Part(
    "metrics",
    records=_records,
    resources={"metrics": _metrics},
    routes={"operations": _routes},
    upkeep=_upkeep,
)
