"""Answers that the platform keeps: `platform.compat.responses`, in the format of responses."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Part

if TYPE_CHECKING:
    from modelyard.domain.record import Record
    from modelyard.http.interface import Interface
    from modelyard.http.route import Route
    from modelyard.parts.responses.service import Responses
    from modelyard.platform.jobs.job_type import JobType
    from modelyard.stores.table_changes import SchemaChange


def _records() -> "Sequence[Record]":
    from modelyard.parts.responses.records import RECORDS

    return RECORDS


def _responses() -> "type[Responses]":
    from modelyard.parts.responses.service import Responses as resource

    return resource


def _job() -> "JobType":
    from modelyard.parts.responses import background, conversation
    from modelyard.parts.responses.records import RESPONSE_JOB
    from modelyard.platform.jobs.job_type import JobType, answers, longest_row

    return JobType(
        RESPONSE_JOB,
        background.respond,
        "response_ended",
        "response_failed",
        background.end_with_job,
        found_by_lane=True,
        can_run=answers,
        reads=conversation.read_by,
        longest_pause=longest_row,
    )


def _interfaces() -> "Sequence[Interface]":
    from modelyard.parts.responses.interface import RESPONSES

    return (RESPONSES,)


def _routes() -> "Sequence[Route]":
    from modelyard.parts.responses.routes import ROUTES

    return ROUTES


def _changes() -> "Sequence[SchemaChange]":
    from modelyard.parts.responses.changes import CHANGES

    return CHANGES


PART = Part(
    "responses",
    records=_records,
    changes=_changes,
    resources={"compat.responses": _responses},
    job_types={"response": _job},
    interfaces=_interfaces,
    routes={"responses": _routes},
)
