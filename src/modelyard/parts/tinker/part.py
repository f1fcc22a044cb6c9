"""Models that clients train command by command: `platform.compat.training_runs`, as Tinker's client asks for it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import DashboardPage, Part

if TYPE_CHECKING:
    from modelyard.domain.record import Record
    from modelyard.http.interface import Interface
    from modelyard.http.route import Route
    from modelyard.parts.tinker.service import TrainingRuns
    from modelyard.platform.jobs.job_type import JobType
    from modelyard.stores.table_changes import SchemaChange


def _records() -> "Sequence[Record]":
    from modelyard.parts.tinker.records import RECORDS

    return RECORDS


def _training_runs() -> "type[TrainingRuns]":
    from modelyard.parts.tinker.service import TrainingRuns as resource

    return resource


def _job() -> "JobType":
    from modelyard.domain.training import TRAINING_ENDED, TRAINING_FAILED
    from modelyard.parts.tinker import job, silent_sessions
    from modelyard.parts.tinker.held_run import step_trainer
    from modelyard.parts.tinker.records import COMMANDS_JOB
    from modelyard.platform.jobs.job_type import JobType

    return JobType(
        COMMANDS_JOB,
        job.apply_commands,
        TRAINING_ENDED,
        TRAINING_FAILED,
        job.end_with_job,
        can_run=lambda runtime, base_model: step_trainer(runtime, base_model) is not None,
        awaits_backend=True,
        tidy=silent_sessions.tidy_sessions,
        shown=lambda platform, job_id: platform.training.get(job_id),
        steps=lambda platform, job_id: platform.training.job(job_id).events(),
    )


def _interfaces() -> "Sequence[Interface]":
    from modelyard.parts.tinker.interface import TINKER

    return (TINKER,)


def _routes() -> "Sequence[Route]":
    from modelyard.parts.tinker.http.rest_routes import ROUTES as listings
    from modelyard.parts.tinker.http.routes import ROUTES as runs
    from modelyard.parts.tinker.http.session_routes import ROUTES as sessions

    return (*sessions, *runs, *listings)


def _pages() -> "Sequence[DashboardPage]":
    from modelyard.parts.tinker import pages

    return (
        DashboardPage("GET", ("tinker",), pages.listed, "Tinker", pages.has_run),
        DashboardPage("GET", ("tinker", "{run}"), pages.run),
    )


def _changes() -> "Sequence[SchemaChange]":
    from modelyard.parts.tinker.changes import CHANGES

    return CHANGES


PART = Part(
    "tinker",
    records=_records,
    changes=_changes,
    resources={"compat.training_runs": _training_runs},
    job_types={"commands": _job},
    interfaces=_interfaces,
    routes={"tinker": _routes},
    pages=_pages,
)
