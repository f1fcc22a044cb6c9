"""Runs are paused, resumed, given rows again, more rows and other limits, while they run and after."""

from typing import Any

import pytest

from modelyard import Platform
from modelyard.domain.evaluation.run import Prediction
from modelyard.errors import Conflict, InvalidInput
from modelyard.parts.steering.records import EarlierAnswer, SteeringEntry
from modelyard.testing.clock import ManualClock
from steered_runs import MORE, finish, rows_of, submitted, while_it_runs, whole


def test_a_run_that_waits_is_paused_and_resumed(platform: Platform, backend: Any) -> None:
    run, steering = submitted(platform), platform.evaluations.steering
    assert steering.pause(run).applied_at is not None
    assert steering.is_paused(run)
    finish(platform)
    assert not backend.asked
    steering.resume(run)
    assert not steering.is_paused(run)
    finish(platform)
    whole(platform, run, 12)
    assert set(backend.asked.values()) == {1}
    assert [(one.action, one.by) for one in steering.audit(run)] == [("pause", "host"), ("resume", "host")]
    for step in (steering.pause, steering.resume):
        with pytest.raises(Conflict, match=r"ended|not paused"):
            step(run)


def test_a_run_is_paused_while_it_runs(platform: Platform, backend: Any, clock: ManualClock) -> None:
    run, steering = submitted(platform, concurrency=2), platform.evaluations.steering
    while_it_runs(backend, clock, lambda: steering.pause(run))
    finish(platform)
    done = len(backend.asked)
    assert 4 <= done < 12
    assert steering.is_paused(run)
    assert platform.jobs.get(run).waiting_for == "its resumption: it is paused"
    assert len(rows_of(platform, run)) == done
    [entry] = steering.audit(run)
    assert entry.applied_at is not None
    assert entry.applied_at >= entry.created_at
    steering.resume(run)
    finish(platform)
    whole(platform, run, 12)
    assert set(backend.asked.values()) == {1}


def test_a_pause_that_is_taken_back_before_a_worker_sees_it_is_none(
    platform: Platform, backend: Any, clock: ManualClock
) -> None:
    run, steering = submitted(platform, concurrency=2), platform.evaluations.steering

    def both() -> None:
        steering.pause(run)
        steering.resume(run)

    while_it_runs(backend, clock, both)
    finish(platform)
    whole(platform, run, 12)
    assert all(one.applied_at for one in steering.audit(run))


@pytest.mark.parametrize("trials", [1, 2])
def test_failed_rows_are_asked_again_after_the_end(platform: Platform, backend: Any, trials: int) -> None:
    backend.broken = {"say 3", "say 5"}
    run, steering = submitted(platform, trials=trials), platform.evaluations.steering
    finish(platform)
    before = platform.evaluations.runs.get(run)
    booked = platform.usage.total(by=())[0].requests
    backend.broken = {"say 5"}
    entry = steering.requeue(run)
    going = platform.evaluations.runs.get(run)
    assert (going.state, going.summary) == ("running", None)
    finish(platform)
    whole(platform, run, 12, trials)
    after = platform.evaluations.runs.get(run)
    assert before.summary is not None
    assert after.summary is not None
    assert (before.summary["model_errors"], after.summary["model_errors"]) == (2 * trials, trials)
    assert {text: count for text, count in backend.asked.items() if count > trials} == dict.fromkeys(
        ("say 3", "say 5"), 2 * trials
    )
    kept = list(steering.earlier(run))
    assert sorted((one.index, one.trial) for one in kept) == [(at, trial) for at in (3, 5) for trial in range(trials)]
    assert all("it is away" in one.answer["error"] and one.entry_id == entry.id for one in kept)
    assert platform.usage.total(by=())[0].requests >= booked


def test_chosen_rows_are_asked_and_booked_again(platform: Platform, backend: Any) -> None:
    run, steering = submitted(platform), platform.evaluations.steering
    finish(platform)
    booked = platform.usage.total(by=())[0].requests
    before = {row.index: row.output for row in platform.evaluations.result(run).rows}
    steering.requeue(run, [2, 7])
    finish(platform)
    whole(platform, run, 12)
    assert platform.usage.total(by=())[0].requests == booked + 2
    assert {one.index: one.answer["output"] for one in steering.earlier(run)} == {at: before[at] for at in (2, 7)}
    assert [one.answer["scores"][0]["value"] for one in steering.earlier(run)] == [True, True]


def test_rows_are_asked_again_while_it_runs(platform: Platform, backend: Any, clock: ManualClock) -> None:
    backend.broken = {"say 1"}
    run, steering = submitted(platform, concurrency=2), platform.evaluations.steering

    def again() -> None:
        backend.broken = set()
        steering.requeue(run)

    while_it_runs(backend, clock, again, "say 6")
    finish(platform)
    whole(platform, run, 12)
    assert {text for text, count in backend.asked.items() if count > 1} == {"say 1"}


@pytest.mark.parametrize("moment", ["waits", "runs", "completed"])
def test_rows_are_added(platform: Platform, backend: Any, clock: ManualClock, moment: str) -> None:
    run, steering = submitted(platform, trials=2, concurrency=2), platform.evaluations.steering
    if moment == "runs":
        while_it_runs(backend, clock, lambda: steering.add_rows(run, MORE))
    elif moment == "completed":
        finish(platform)
    if moment != "runs":
        steering.add_rows(run, MORE)
    finish(platform)
    whole(platform, run, 16, 2)
    assert set(backend.asked.values()) == {2}
    [entry] = steering.audit(run)
    assert (entry.action, tuple(entry.changed["rows"]), entry.added) == ("rows", (12, 16), "")
    summary = platform.evaluations.runs.get(run).summary
    assert summary is not None
    assert summary["mean"] == 0.75


def test_limits_are_changed_while_it_runs(platform: Platform, backend: Any, clock: ManualClock) -> None:
    run, steering = submitted(platform, concurrency=2), platform.evaluations.steering
    while_it_runs(backend, clock, lambda: steering.change(run, concurrency=5, error_budget=0))
    backend.broken = {"say 11"}
    finish(platform)
    [entry] = steering.audit(run)
    assert {name: list(ends) for name, ends in entry.changed.items()} == {
        "concurrency": [2, 5],
        "error_budget": [None, 0],
    }
    failed = platform.evaluations.runs.get(run)
    assert (failed.state, set(backend.asked.values())) == ("failed", {1})
    backend.broken = set()
    steering.change(run, error_budget=3)
    steering.requeue(run)
    finish(platform)
    whole(platform, run, 12)


def test_a_run_that_is_steered_as_it_ends_goes_on(platform: Platform, backend: Any, clock: ManualClock) -> None:
    run, steering = submitted(platform), platform.evaluations.steering
    while_it_runs(backend, clock, lambda: steering.add_rows(run, MORE), "say 11")
    backend.on_asked = lambda text: steering.add_rows(run, MORE) if text == "say 11" else None
    finish(platform)
    whole(platform, run, 16)
    assert set(backend.asked.values()) == {1}


def test_shards_are_paused_limited_and_asked_again(platform: Platform, backend: Any) -> None:
    backend.broken = {"say 3", "say 4"}
    run, steering = submitted(platform, shards=3), platform.evaluations.steering
    steering.pause(run)
    steering.change(run, concurrency=1)
    steering.resume(run)
    finish(platform)
    backend.broken = set()
    steering.requeue(run)
    finish(platform)
    whole(platform, run, 12)
    assert {text for text, count in backend.asked.items() if count > 1} == {"say 3", "say 4"}
    with pytest.raises(Conflict, match="split in shards"):
        steering.add_rows(run, MORE)


def test_a_comparison_by_row_takes_the_new_answers(platform: Platform, backend: Any) -> None:
    backend.broken = {"say 3"}
    one, other = (submitted(platform) for _ in range(2))
    finish(platform)
    backend.broken = set()
    platform.evaluations.steering.requeue(one)
    finish(platform)
    found = platform.evaluations.compare(baseline=other, candidate=one)
    assert (found.comparison.rows, found.comparison.baseline_failed, found.comparison.candidate_failed) == (12, 1, 0)


def test_what_cannot_be_is_refused_and_leaves_nothing(platform: Platform) -> None:
    run, steering = submitted(platform), platform.evaluations.steering
    with pytest.raises(InvalidInput, match="row 12 is not in the run"):
        steering.requeue(run, [12])
    with pytest.raises(InvalidInput, match="index of a row"):
        steering.requeue(run, [-1])
    with pytest.raises(InvalidInput, match="none"):
        steering.add_rows(run, [])
    with pytest.raises(InvalidInput, match="concurrency"):
        steering.change(run, concurrency=0)
    with pytest.raises(TypeError, match="shards"):
        steering.change(run, shards=2)
    platform.jobs.cancel(run)
    with pytest.raises(Conflict, match="was cancelled"):
        steering.requeue(run)
    assert steering.audit(run) == []
    assert platform.remove_orphans(0).removed == 0


def test_nothing_is_kept_of_an_entity_that_is_deleted_meanwhile(
    platform: Platform, backend: Any, clock: ManualClock
) -> None:
    run, steering = submitted(platform, concurrency=2, entity="acme"), platform.evaluations.steering

    def deleted() -> None:
        steering.requeue(run, [0])
        platform.delete_entity("acme")

    while_it_runs(backend, clock, deleted, "say 6")
    finish(platform)
    for cls in (EarlierAnswer, SteeringEntry, Prediction):
        assert platform._runtime.store.read(lambda seen, cls=cls: seen.count(cls, "by_entity", "acme")) == 0
    assert platform.remove_orphans(0).removed == 0


def test_rows_that_wait_to_be_asked_again_are_not_lost_by_another_request(
    platform: Platform, backend: Any, clock: ManualClock
) -> None:
    run, steering = submitted(platform, concurrency=2), platform.evaluations.steering
    finish(platform)
    steering.requeue(run, range(12))
    status = platform.evaluations.runs.status(run)
    assert (status.run.state, status.completed_rows, status.total_rows) == ("running", 12, 12)
    while_it_runs(backend, clock, lambda: steering.pause(run))
    finish(platform)
    assert sum(backend.asked.values()) < 24
    steering.resume(run)
    finish(platform)
    whole(platform, run, 12)
    assert set(backend.asked.values()) == {2}
    assert len(list(steering.earlier(run))) == 12


def test_what_was_asked_before_counts_before_a_worker_has_done_it(platform: Platform, backend: Any) -> None:
    run, steering = submitted(platform), platform.evaluations.steering
    steering.change(run, retries=2, error_budget=3)
    assert steering.change(run, retries=1).changed == {"retries": [2, 1]}
    assert steering.change(run, retries=0, error_budget=None).changed == {"retries": [1, 0], "error_budget": [3, None]}
    steering.add_rows(run, MORE)
    steering.requeue(run, iter([0, 15]))
    with pytest.raises(InvalidInput, match="row 16 is not in the run, which has 16 rows"):
        steering.requeue(run, [16])
    finish(platform)
    whole(platform, run, 16)
    assert set(backend.asked.values()) == {1}


def test_a_run_without_failed_rows_does_not_go_on_for_none(platform: Platform, backend: Any) -> None:
    run, steering = submitted(platform), platform.evaluations.steering
    finish(platform)
    with pytest.raises(Conflict, match=r"no row of evaluation run .* has failed; name the rows"):
        steering.requeue(run)
    assert platform.evaluations.runs.get(run).summary is not None
    assert not steering.audit(run)
