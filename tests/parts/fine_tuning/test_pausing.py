"""Pausing jobs while they run, and what becomes of them."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from modelyard import Platform, open_platform
from modelyard.domain.events import JobEventRecorded
from modelyard.domain.job import JobKind
from modelyard.domain.training import GRADIENT_STEP, TRAINING_ROUND
from modelyard.parts.fine_tuning.records import FineTuningRequest

USER = {"role": "user", "content": "hi"}
EXAMPLE = {"messages": [USER, {"role": "assistant", "content": "hello there"}]}
TASK = {"messages": [USER], "answer": "ho"}
GRADER = {
    "type": "text_similarity",
    "evaluation_metric": "fuzzy_match",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}


def tuned(platform: Platform, row: Any, **options: Any) -> str:
    lines = [json.dumps(row).encode() + b"\n"] * 6
    file = platform.compat.files.create("train.jsonl", lines, purpose="fine-tune")
    return platform.compat.fine_tuning.create(FineTuningRequest("tabular-mini", file.id, seed=7, **options)).id


def pausing_at(kind: str, number: int) -> tuple[Platform, Callable[[], None]]:
    """A platform that pauses each fine-tuning job at an event of it; and what stops it from doing so."""
    active, seen = [True], [0]

    def observe(event: Any) -> None:
        if isinstance(event, JobEventRecorded) and event.type == kind and active:
            seen[0] += 1
            if seen[0] == number:
                (job,) = platform.compat.fine_tuning.list()
                assert platform.compat.fine_tuning.pause(job.id).pausing == "pausing"

    platform = open_platform(observer=observe)
    return platform, active.clear


def test_a_paused_job_ends_as_if_it_had_not_been() -> None:
    platform, unobserved = pausing_at(GRADIENT_STEP, 4)
    with platform, open_platform() as other:
        job = tuned(platform, EXAMPLE, hyperparameters={"n_epochs": 3})
        platform.worker().run_until_idle()
        shown = platform.compat.fine_tuning.get(job)
        assert (shown.pausing, shown.job.progress, shown.job.status) == ("paused", 5, "queued")
        platform.worker().run_until_idle()
        assert platform.compat.fine_tuning.get(job) == shown
        unobserved()
        assert platform.compat.fine_tuning.resume(job).pausing is None
        platform.worker().run_until_idle()
        undisturbed = tuned(other, EXAMPLE, hyperparameters={"n_epochs": 3})
        other.worker().run_until_idle()
        digests = [
            {name: file["digest"] for name, file in next(iter(at.compat.fine_tuning.checkpoints(id))).files.items()}
            for at, id in ((platform, job), (other, undisturbed))
        ]
        assert digests[0] == digests[1]


@pytest.mark.slow
def test_a_loop_is_paused_with_the_job_of_its_round() -> None:
    platform, unobserved = pausing_at(GRADIENT_STEP, 1)
    with platform:
        options = {"n_epochs": 2, "batch_size": 6, "compute_multiplier": 0.5}
        job = tuned(platform, TASK, method="reinforcement", hyperparameters=options, grader=GRADER)
        platform.worker().run_until_idle()
        assert platform.compat.fine_tuning.get(job).pausing == "paused"
        rounds = [one for one in platform.training.list() if one.kind == JobKind.RL]
        assert [(one.status, one.waiting_for) for one in rounds] == [("queued", "its resumption: it is paused")]
        unobserved()
        platform.compat.fine_tuning.resume(job)
        platform.worker().run_until_idle()
        assert platform.compat.fine_tuning.get(job).job.status == "succeeded"
        assert sum(event.type == TRAINING_ROUND for event in platform.compat.fine_tuning.events(job)) == 2
