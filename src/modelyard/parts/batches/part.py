"""Files that clients keep, and files of requests that a job answers: `platform.compat.files`, `.batches`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Part

if TYPE_CHECKING:
    from modelyard.domain.record import Record
    from modelyard.http.interface import Interface
    from modelyard.http.route import Route
    from modelyard.parts.batches.files.service import Files
    from modelyard.parts.batches.service import Batches
    from modelyard.platform.jobs.job_type import JobType
    from modelyard.stores.table_changes import SchemaChange


def _records() -> "Sequence[Record]":
    from modelyard.parts.batches.files.records import RECORDS

    return RECORDS


def _batches() -> "type[Batches]":
    from modelyard.parts.batches.service import Batches as resource

    return resource


def _files() -> "type[Files]":
    from modelyard.parts.batches.files.service import Files as resource

    return resource


def _job() -> "JobType":
    from modelyard.parts.batches import ends, job, records
    from modelyard.platform.jobs.job_type import JobType, longest_row

    return JobType(
        records.BATCH_JOB,
        job.run_batch,
        records.ENDED,
        records.FAILED,
        ends.end_batch,
        shares_files=ends.keeps_files,
        reads=job.input_of,
        longest_pause=longest_row,
    )


def _interfaces() -> "Sequence[Interface]":
    from modelyard.parts.batches.interface import BATCHES, FILES

    return (
        FILES,
        BATCHES,
    )


def _file_routes() -> "Sequence[Route]":
    from modelyard.parts.batches.files.routes import ROUTES

    return ROUTES


def _batch_routes() -> "Sequence[Route]":
    from modelyard.parts.batches.routes import ROUTES

    return ROUTES


def _changes() -> "Sequence[SchemaChange]":
    from modelyard.parts.batches.changes import CHANGES

    return CHANGES


PART = Part(
    "batches",
    records=_records,
    changes=_changes,
    resources={"compat.files": _files, "compat.batches": _batches},
    job_types={"batch": _job},
    interfaces=_interfaces,
    routes={"files": _file_routes, "batches": _batch_routes},
)
