"""Prompts that are optimised, and roads to better answers: `platform.training.prompt`, `platform.improve`."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from modelyard.part import Command, DashboardPage, Part

if TYPE_CHECKING:
    from modelyard.domain.job import Job
    from modelyard.domain.record import Record
    from modelyard.http.route import Route
    from modelyard.parts.improve.improvement import Improve
    from modelyard.parts.improve.service import StartPrompt
    from modelyard.platform.jobs.job_type import JobType
    from modelyard.protocols import Snapshot
    from modelyard.stores.table_changes import SchemaChange

PROMPT = "prompt"
"""The kind of the jobs that optimise a prompt."""

IMPROVE = "improve"
"""The kind of the jobs that go several roads."""

ROADS = "roads"
"""The member of such a job's spec that has them."""


def _records() -> "Sequence[Record]":
    from modelyard.parts.improve.records import RECORDS

    return RECORDS


def _changes() -> "Sequence[SchemaChange]":
    from modelyard.parts.improve.changes import CHANGES

    return CHANGES


def _prompt() -> "type[StartPrompt]":
    from modelyard.parts.improve.service import StartPrompt as member

    return member


def _job() -> "JobType":
    from modelyard.domain.training import TRAINING_ENDED, TRAINING_FAILED
    from modelyard.parts.improve.job import optimise
    from modelyard.parts.variants.records import Variant
    from modelyard.platform.jobs.job_type import JobType, longest_row, training_job, training_steps
    from modelyard.platform.training.billing import is_over_budget

    def reads(snapshot: "Snapshot", job: "Job") -> Iterable[tuple[type, str]]:
        return [(Variant, job.spec["variant_id"])]

    return JobType(
        PROMPT,
        optimise,
        TRAINING_ENDED,
        TRAINING_FAILED,
        resumable=is_over_budget,
        reads=reads,
        longest_pause=longest_row,
        shown=training_job,
        steps=training_steps,
        trains=True,
    )


def _improve() -> "type[Improve]":
    from modelyard.parts.improve.improvement import Improve as resource

    return resource


def _improvement() -> "JobType":
    from modelyard.parts.improve.journey import go
    from modelyard.parts.loops.record import awaited
    from modelyard.platform.jobs.job_type import JobType, longest_row

    return JobType(IMPROVE, go, "improvement_ended", "improvement_failed", awaits=awaited, longest_pause=longest_row)


def _prompt_routes() -> "Sequence[Route]":
    from modelyard.parts.improve.routes import PROMPT_ROUTES

    return PROMPT_ROUTES


def _improvement_routes() -> "Sequence[Route]":
    from modelyard.parts.improve.routes import IMPROVEMENT_ROUTES

    return IMPROVEMENT_ROUTES


def _pages() -> "Sequence[DashboardPage]":
    from modelyard.parts.improve import pages

    return (
        DashboardPage("GET", ("prompts",), pages.listed),
        DashboardPage("GET", ("prompts", "{job}"), pages.shown),
        DashboardPage("GET", ("improvements",), pages.improvements, "Improve", pages.has_improvement),
        DashboardPage("GET", ("improvements", "{improvement}"), pages.improvement),
        DashboardPage("POST", ("improvements", "{improvement}", "cancel"), pages.cancel),
    )


PART = Part(
    "improve",
    records=_records,
    changes=_changes,
    resources={"training.prompt": _prompt, "improve": _improve},
    job_types={PROMPT: _job, IMPROVE: _improvement},
    routes={"training": _prompt_routes, "operations": _improvement_routes},
    pages=_pages,
    commands={
        "improve": Command(
            "Work",
            "modelyard.parts.improve.commands:improve",
            "Try several roads to better answers, or look at what they came to.",
        ),
        "train prompt": Command(
            "",
            "modelyard.parts.improve.commands:train_prompt",
            "Have the system text of VARIANT optimised on TASKS, by GEPA.",
        ),
    },
)
