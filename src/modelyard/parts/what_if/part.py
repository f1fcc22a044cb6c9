"""What stored traffic would have been like with another model or other prices: `platform.traffic.what_if`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Command, DashboardPage, Part

if TYPE_CHECKING:
    from modelyard.domain.record import Record
    from modelyard.http.route import Route
    from modelyard.parts.what_if.service import AskTraffic
    from modelyard.platform.jobs.job_type import JobType
    from modelyard.stores.table_changes import SchemaChange


def _records() -> "Sequence[Record]":
    from modelyard.parts.what_if.records import RECORDS

    return RECORDS


def _changes() -> "Sequence[SchemaChange]":
    from modelyard.parts.what_if.changes import CHANGES

    return CHANGES


def _what_if() -> "type[AskTraffic]":
    from modelyard.parts.what_if.service import AskTraffic as resource

    return resource


def _job() -> "JobType":
    from modelyard.parts.what_if import job, records
    from modelyard.platform.jobs.job_type import JobType, longest_row

    return JobType(
        records.JOB,
        job.ask_again,
        records.ENDED,
        records.FAILED,
        longest_pause=longest_row,
        shown=lambda platform, job_id: platform.traffic.what_if.record(job_id),
    )


def _routes() -> "Sequence[Route]":
    from modelyard.parts.what_if.routes import ROUTES

    return ROUTES


def _pages() -> "Sequence[DashboardPage]":
    from modelyard.parts.what_if import pages

    return (
        DashboardPage("GET", ("what-ifs",), pages.listed, "What if", pages.has_question),
        DashboardPage("GET", ("what-ifs", "{what_if}"), pages.shown),
    )


PART = Part(
    "what_if",
    records=_records,
    changes=_changes,
    resources={"traffic.what_if": _what_if},
    job_types={"what_if": _job},
    routes={"operations": _routes},
    pages=_pages,
    commands={
        "what-if": Command(
            "Work",
            "modelyard.parts.what_if.commands:what_if",
            "Ask what stored traffic would have been like.",
        )
    },
)
