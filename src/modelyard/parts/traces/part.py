"""Calls that programs trace: `platform.compat.traces`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import DashboardPage, Part

if TYPE_CHECKING:
    from modelyard.domain.record import Record
    from modelyard.http.interface import Interface
    from modelyard.http.route import Route
    from modelyard.parts.traces.service import Traces
    from modelyard.stores.table_changes import SchemaChange


def _records() -> "Sequence[Record]":
    from modelyard.parts.traces.records import RECORDS

    return RECORDS


def _traces() -> "type[Traces]":
    from modelyard.parts.traces.service import Traces as resource

    return resource


def _interfaces() -> "Sequence[Interface]":
    from modelyard.parts.traces.interface import TRACES

    return (TRACES,)


def _routes() -> "Sequence[Route]":
    from modelyard.parts.traces.http.feedback_routes import ROUTES as feedback
    from modelyard.parts.traces.http.object_routes import ROUTES as objects
    from modelyard.parts.traces.http.otlp_routes import ROUTES as otlp
    from modelyard.parts.traces.http.routes import ROUTES as calls

    return (*calls, *objects, *feedback, *otlp)


def _pages() -> "Sequence[DashboardPage]":
    from modelyard.parts.traces import pages

    return (
        DashboardPage("GET", ("traces",), pages.listed, "Traces"),
        DashboardPage("GET", ("traces", "{entity}", "{project}", "{call}"), pages.call),
    )


def _changes() -> "Sequence[SchemaChange]":
    from modelyard.parts.traces.changes import CHANGES

    return CHANGES


PART = Part(
    "traces",
    records=_records,
    changes=_changes,
    resources={"compat.traces": _traces},
    interfaces=_interfaces,
    routes={"traces": _routes},
    pages=_pages,
)
