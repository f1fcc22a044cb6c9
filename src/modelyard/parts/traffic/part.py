"""Training data from what was asked and answered: `platform.traffic`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Command, Part

if TYPE_CHECKING:
    from modelyard.http.route import Route
    from modelyard.parts.traffic.service import Traffic
    from modelyard.platform.jobs.job_type import JobType


def _traffic() -> "type[Traffic]":
    from modelyard.parts.traffic.service import Traffic as resource

    return resource


def _job() -> "JobType":
    from modelyard.parts.traffic import job, records
    from modelyard.platform.jobs.job_type import JobType, longest_row

    return JobType(
        records.COLLECT_JOB,
        job.collect,
        records.ENDED,
        records.FAILED,
        longest_pause=longest_row,
        shown=lambda platform, job_id: platform.traffic.job(job_id).refresh(),
    )


def _routes() -> "Sequence[Route]":
    from modelyard.parts.traffic.routes import ROUTES

    return ROUTES


PART = Part(
    "traffic",
    resources={"traffic": _traffic},
    job_types={"collect": _job},
    routes={"training": _routes},
    commands={
        "collect": Command(
            "Work",
            "modelyard.parts.traffic.commands:collect",
            "Collect stored answers into training data, and train on them.",
        )
    },
)
