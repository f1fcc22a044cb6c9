"""Loops: `platform.training.loop`, jobs that sample, judge, train and validate, round after round."""

from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from modelyard.part import Part

if TYPE_CHECKING:
    from modelyard.http.route import Route
    from modelyard.parts.loops.service import StartLoop
    from modelyard.platform.jobs.job_type import JobType

LOOP = "loop"
"""The kind of its jobs."""


def _loop() -> "type[StartLoop]":
    from modelyard.parts.loops.service import StartLoop as member

    return member


def agents() -> ModuleType:
    """Return what loops of agents are made by."""
    from modelyard.parts.loops import agent_loop

    return agent_loop


def _job() -> "JobType":
    from modelyard.domain.training import TRAINING_ENDED, TRAINING_FAILED
    from modelyard.parts.loops import record, service
    from modelyard.platform.jobs.job_type import JobType, answers, longest_row, training_job, training_steps
    from modelyard.platform.training.billing import is_over_budget

    return JobType(
        LOOP,
        service.run_loop,
        TRAINING_ENDED,
        TRAINING_FAILED,
        awaits=record.awaited,
        resumable=is_over_budget,
        can_run=answers,
        longest_pause=longest_row,
        shown=training_job,
        steps=training_steps,
        trains=True,
    )


def _routes() -> "Sequence[Route]":
    from modelyard.parts.loops.routes import ROUTES

    return ROUTES


PART = Part("loops", resources={"training.loop": _loop}, job_types={LOOP: _job}, routes={"training": _routes})
