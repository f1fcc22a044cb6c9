"""What others hear of a run that is steered: its end, once; and a call of `run` returns it."""

import threading
from collections import Counter
from typing import Any

import pytest

from modelyard import Platform, open_platform
from modelyard.domain.events import JobChanged
from modelyard.domain.job import JobStatus
from modelyard.errors import Conflict
from modelyard.testing.clock import ManualClock
from steered_runs import MORE, ROWS, Counting, finish, submitted, while_it_runs, whole

HELD = 60.0


def told(platform: Platform) -> Counter[str]:
    return Counter(one.type for one in platform.webhooks.waiting())


def steer(steering: Any, run: str) -> None:
    steering.requeue(run, [0, 1])
    steering.change(run, concurrency=1)
    steering.add_rows(run, MORE)


@pytest.mark.parametrize("moment", ["say 3", "say 11"])
def test_webhooks_hear_once_that_a_run_and_its_job_have_ended(
    platform: Platform, backend: Counting, clock: ManualClock, moment: str
) -> None:
    platform.webhooks.add("https://one.example/hook")
    run, steering = submitted(platform, concurrency=2), platform.evaluations.steering
    while_it_runs(backend, clock, lambda: steer(steering, run), moment)
    finish(platform)
    whole(platform, run, 16)
    assert told(platform) == {"run.ended": 1, "job.ended": 1}
    steering.requeue(run, [3])
    finish(platform)
    assert told(platform) == {"run.ended": 2, "job.ended": 2}


def test_shards_that_are_steered_are_told_of_once(platform: Platform, backend: Counting, clock: ManualClock) -> None:
    platform.webhooks.add("https://one.example/hook")
    run, steering = submitted(platform, concurrency=2, shards=2), platform.evaluations.steering
    while_it_runs(backend, clock, lambda: steering.requeue(run, [0, 1, 2]), "say 2")
    finish(platform)
    whole(platform, run, 12)
    assert told(platform) == {"run.ended": 1, "job.ended": 2}


def test_an_observer_hears_which_job_goes_on_in_the_place_of_another(backend: Counting, clock: ManualClock) -> None:
    seen: list[Any] = []
    with open_platform(clock=clock, backend=backend, observer=seen.append) as platform:
        run, steering = submitted(platform, concurrency=2), platform.evaluations.steering
        while_it_runs(backend, clock, lambda: steer(steering, run))
        finish(platform)
        whole(platform, run, 16)
        ended = [one for one in seen if isinstance(one, JobChanged) and one.status is JobStatus.SUCCEEDED]
        assert len(ended) > 1
        assert [one.job_id for one in ended[1:]] == [one.continued_by for one in ended[:-1]]
        assert not ended[-1].continued_by


def test_what_comes_too_late_leaves_a_run_as_it_ended(platform: Platform, backend: Counting) -> None:
    run, steering = submitted(platform), platform.evaluations.steering
    backend.on_asked = lambda text: steering.pause(run) if text == "say 11" else None
    finish(platform)
    whole(platform, run, 12)
    assert not steering.is_paused(run)
    assert [one.pending for one in steering.audit(run)] == [False]


@pytest.mark.parametrize("what", ["pause", "requeue", "rows", "at the end"])
def test_a_call_of_run_returns_the_run_that_was_steered_meanwhile(
    platform: Platform, backend: Counting, clock: ManualClock, what: str
) -> None:
    found: dict[str, Any] = {}

    def do() -> None:
        (run,) = platform.evaluations.runs.list()
        steering = platform.evaluations.steering
        if what == "pause":
            steering.pause(run.id)
        elif what == "requeue":
            steering.requeue(run.id, [0])
        else:
            steering.add_rows(run.id, MORE)

    def call() -> None:
        try:
            found["result"] = platform.evaluations.run("quiz", "echo", ROWS, "exact_match", concurrency=2)
        except BaseException as error:
            found["error"] = error

    while_it_runs(backend, clock, do, "say 11" if what == "at the end" else "say 3")
    thread = threading.Thread(target=call)
    thread.start()
    if what == "pause":
        steering = platform.evaluations.steering
        while thread.is_alive():
            (run,) = platform.evaluations.runs.list() or [None]
            if run is not None and platform.jobs.get(run.id).waiting_for == "its resumption: it is paused":
                asked = len(backend.asked)
                steering.resume(run.id)
                break
            thread.join(0.01)
        assert 4 <= asked < 12
    while what == "pause" and thread.is_alive():
        clock.advance(1)  # the call looks again
        thread.join(0.01)
    thread.join(HELD)
    assert not thread.is_alive()
    assert "error" not in found, found
    result = found["result"]
    rows = 16 if what in ("rows", "at the end") else 12
    assert len(result.rows) == rows
    whole(platform, result.run.id, rows)
    twice = {text for text, times in backend.asked.items() if times > 1}
    assert twice == ({"say 0"} if what == "requeue" else set())


def test_a_run_whose_outputs_are_scored_again_takes_no_rows_meanwhile(platform: Platform, backend: Counting) -> None:
    run, steering = submitted(platform), platform.evaluations.steering
    finish(platform)
    tried: list[Exception] = []

    def score(output: Any, row: Any) -> bool:
        for step in (lambda: steering.requeue(run, [0]), lambda: steering.add_rows(run, MORE)):
            try:
                step()
            except Conflict as error:
                tried.append(error)
        return True

    scored = platform.evaluations.rescore(run, score)
    assert len(scored.rows) == 12
    assert len(tried) == 24
    assert "scores these outputs again; wait for its end" in str(tried[0])
    steering.requeue(run, [0])
    finish(platform)
    whole(platform, run, 12)
    assert len(platform.evaluations.result(scored.run.id).rows) == 12
