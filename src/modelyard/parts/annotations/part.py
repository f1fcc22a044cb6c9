"""Tags and notes on jobs, runs, models and checkpoints: `platform.annotations`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Command, DashboardPage, Notes, Part

if TYPE_CHECKING:
    from modelyard.domain.record import Record
    from modelyard.http.route import Route
    from modelyard.parts.annotations.service import Annotations
    from modelyard.platform.platform import Platform
    from modelyard.stores.table_changes import SchemaChange


def _records() -> "Sequence[Record]":
    from modelyard.parts.annotations.records import RECORDS

    return RECORDS


def _annotations() -> "type[Annotations]":
    from modelyard.parts.annotations.service import Annotations as resource

    return resource


def _routes() -> "Sequence[Route]":
    from modelyard.parts.annotations.routes import ROUTES

    return ROUTES


def _pages() -> "Sequence[DashboardPage]":
    from modelyard.parts.annotations.pages import annotate

    return (
        DashboardPage("POST", ("jobs", "{job}", "annotate"), annotate),
        DashboardPage("POST", ("models", "{model}", "annotate"), annotate),
        DashboardPage("POST", ("models", "{model}", "{step}", "annotate"), annotate),
        DashboardPage("POST", ("runs", "{run}", "annotate"), annotate),
    )


def _notes(platform: "Platform") -> Notes:
    from modelyard.parts.annotations.service import JobNotes

    return JobNotes(platform.annotations)


def _changes() -> "Sequence[SchemaChange]":
    from modelyard.parts.annotations.changes import CHANGES

    return CHANGES


PART = Part(
    "annotations",
    records=_records,
    changes=_changes,
    resources={"annotations": _annotations},
    routes={"operations": _routes},
    pages=_pages,
    notes=_notes,
    commands={
        "annotate": Command(
            "Work",
            "modelyard.parts.annotations.commands:annotate",
            "Tag a job, a run, a model or a checkpoint, or write a note on it.",
        )
    },
)
