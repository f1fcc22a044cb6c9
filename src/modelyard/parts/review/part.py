"""People label rows of runs, and judges are checked and corrected by that: `platform.review`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from modelyard.part import Command, DashboardPage, Part

if TYPE_CHECKING:
    from modelyard.domain.evaluation.run import EvaluationRun
    from modelyard.domain.record import Record
    from modelyard.http.route import Route
    from modelyard.parts.review.service import Reviews
    from modelyard.platform.runtime import Runtime
    from modelyard.stores.table_changes import SchemaChange


def _records() -> "Sequence[Record]":
    from modelyard.parts.review.records import RECORDS
    from modelyard.parts.review.watches import RECORDS as WATCHES

    return (*RECORDS, *WATCHES)


def _changes() -> "Sequence[SchemaChange]":
    from modelyard.parts.review.changes import CHANGES

    return CHANGES


def _reviews() -> "type[Reviews]":
    from modelyard.parts.review.service import Reviews as resource

    return resource


def _routes() -> "Sequence[Route]":
    from modelyard.parts.review.routes import ROUTES
    from modelyard.parts.review.watch_routes import ROUTES as WATCHES

    return (*ROUTES, *WATCHES)


def _pages() -> "Sequence[DashboardPage]":
    from modelyard.parts.review import pages
    from modelyard.parts.review.live import pages as live

    return (
        DashboardPage("GET", ("watches",), live.listed),
        DashboardPage("GET", ("watches", "{watch}"), live.shown),
        DashboardPage("POST", ("watches", "{watch}", "stop"), live.stop),
        DashboardPage("GET", ("reviews",), pages.listed, "Reviews", pages.has_review),
        DashboardPage("POST", ("reviews",), pages.start),
        DashboardPage("GET", ("reviews", "{review}"), pages.shown),
        DashboardPage("GET", ("reviews", "{review}", "label"), pages.label),
        DashboardPage("POST", ("reviews", "{review}", "label"), pages.keep),
        DashboardPage("GET", ("reviews", "{review}", "results"), pages.results),
    )


def _remarks(runtime: "Runtime", runs: "Sequence[EvaluationRun]", options: Mapping[str, Any]) -> Iterator[str]:
    from modelyard.parts.review.remarks import remarks

    return remarks(runtime, runs, options)


def _upkeep(runtime: "Runtime") -> None:
    from modelyard.parts.review.watches import is_any_running

    if runtime.store.read(is_any_running):
        from modelyard.parts.review.watching import Watching

        runtime.cache.slot(Watching).wake(runtime)


PART = Part(
    "review",
    records=_records,
    changes=_changes,
    resources={"review": _reviews},
    routes={"operations": _routes},
    pages=_pages,
    remarks=_remarks,
    upkeep=_upkeep,
    commands={
        "review": Command(
            "Work", "modelyard.parts.review.commands:review", "Label rows of runs, and correct judges by that."
        ),
        "watches": Command(
            "Work", "modelyard.parts.review.watch_commands:watches", "Judge a sample of stored answers as they come."
        ),
    },
)
