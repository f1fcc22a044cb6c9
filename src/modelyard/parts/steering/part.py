"""Evaluations that run are steered: `platform.evaluations.steering`."""

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from modelyard.part import Command, DashboardPage, Part

if TYPE_CHECKING:
    from modelyard.domain.record import Record
    from modelyard.http.route import Route
    from modelyard.parts.steering.service import Steering
    from modelyard.platform.jobs.claims import ClaimedJob
    from modelyard.stores.table_changes import SchemaChange


_COMMANDS = "modelyard.parts.steering.commands"


def _records() -> "Sequence[Record]":
    from modelyard.parts.steering.records import RECORDS

    return RECORDS


def _changes() -> "Sequence[SchemaChange]":
    from modelyard.parts.steering.changes import CHANGES

    return CHANGES


def _steering() -> "type[Steering]":
    from modelyard.parts.steering.service import Steering as resource

    return resource


def _evaluates(claimed: "ClaimedJob", **more: Any) -> "Generator[None, None, None]":
    from modelyard.parts.steering.work import evaluate

    return evaluate(claimed, **more)


def _routes() -> "Sequence[Route]":
    from modelyard.parts.steering.routes import ROUTES

    return ROUTES


def _pages() -> "Sequence[DashboardPage]":
    from modelyard.parts.steering import pages

    return (
        DashboardPage("GET", ("runs", "{run}", "steering"), pages.shown),
        DashboardPage("POST", ("runs", "{run}", "steering"), pages.steer),
    )


PART = Part(
    "steering",
    records=_records,
    changes=_changes,
    resources={"evaluations.steering": _steering},
    evaluates=_evaluates,
    routes={"operations": _routes},
    pages=_pages,
    commands={
        "runs pause": Command("", f"{_COMMANDS}:pause", "Stop RUN after the rows under way, until it is resumed."),
        "runs resume": Command("", f"{_COMMANDS}:resume", "Let RUN go on, which is paused."),
        "runs requeue": Command(
            "", f"{_COMMANDS}:requeue", "Ask the failed rows of RUN again, or those that --row names."
        ),
        "runs limits": Command("", f"{_COMMANDS}:limits", "Give RUN other limits while it runs."),
        "runs add-rows": Command(
            "",
            f"{_COMMANDS}:add_rows",
            "Add ROWS to RUN: a file (.csv, else JSON Lines), or the reference of a dataset.",
        ),
        "runs steering": Command("", f"{_COMMANDS}:steering", "List what was asked of RUN, by whom and when."),
    },
)
