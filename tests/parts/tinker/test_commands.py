"""The log of a run: commands are applied in the order of their numbers, each once, and fail by themselves."""

import math
from itertools import permutations
from typing import Any

import pytest

from driven_runs import Driven, course, opened
from modelyard.errors import InvalidInput, NotFound, RateLimited
from modelyard.parts.tinker.command_log import MOST_AHEAD
from modelyard.parts.tinker.payloads import MOST_IN_RECORD
from modelyard.parts.tinker.records import CommandKind, FutureStatus

DONE, FAILED, PENDING = FutureStatus.DONE, FutureStatus.FAILED, FutureStatus.PENDING


def end_of(driven: Driven) -> str:
    driven.work()
    return driven.digest("end")


@pytest.fixture(scope="module")
def undisturbed() -> str:
    with opened() as platform:
        driven = Driven(platform)
        driven.begin()
        course(driven)
        return end_of(driven)


def test_a_run_learns_and_saves(driven: Driven, undisturbed: str) -> None:
    futures = course(driven)
    driven.work()
    answers = driven.answers(*futures)
    assert [answer.status for answer in answers] == [DONE] * 7
    assert [answer.result["metrics"]["grad_norm"] > 0 for answer in answers[1:6:2]] == [True] * 3
    assert answers[-1].result["path"] == f"tinker://{driven.run}/weights/end"
    assert driven.digest("end") == undisturbed
    run = driven.platform.compat.training_runs.get(driven.run)
    assert (run.applied, run.steps, run.ended) == (7, 3, "")


def test_a_step_without_gradients_has_no_loss(driven: Driven) -> None:
    futures = [driven.step(1), driven.learn(2, "one"), driven.step(3), driven.step(4)]
    driven.work()
    metrics = [driven.answers(future)[0].result["metrics"] for future in futures[:1] + futures[2:]]
    assert ["loss" in one for one in metrics] == [False, True, False]
    assert [one["num_trainable_tokens"] > 0 for one in metrics] == [False, True, False]


@pytest.mark.parametrize("order", [*permutations(range(1, 4))])
def test_commands_that_come_in_another_order_wait_for_their_turn(
    driven: Driven, undisturbed: str, order: tuple[int, ...]
) -> None:
    send = {
        1: lambda: driven.learn(1, "one"),
        2: lambda: driven.step(2),
        3: lambda: driven.learn(3, "two"),
    }
    futures = {}
    for number in order:
        futures[number] = send[number]()
        driven.work()
        come = {one for one in futures if all(before in futures for before in range(1, one))}
        assert {one for one, id in futures.items() if driven.answers(id)[0].status is DONE} == come
    driven.step(4)
    driven.learn(5, "three")
    driven.step(6)
    driven.save(7, "end")
    assert end_of(driven) == undisturbed


def test_a_command_that_is_sent_again_is_applied_once(driven: Driven, undisturbed: str) -> None:
    first = course(driven)
    assert course(driven) == first
    driven.work()
    assert course(driven) == first
    assert end_of(driven) == undisturbed


@pytest.mark.parametrize(
    ("adapter", "says"),
    [
        ({"rnk": 8}, "lora_config.rnk: is not known; did you mean 'rank'"),
        ({"rank": "8"}, "lora_config.rank: must be a whole number"),
        ({"rank": 0}, "lora_config.rank: is 0; it is at least 1"),
        ({"train_mlp": None, "train_attn": False, "train_unembed": False, "seed": -1}, "lora_config.seed: is -1"),
    ],
)
def test_an_adapter_that_cannot_be_is_refused_at_its_place(driven: Driven, adapter: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        driven.begin(1, **adapter)


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"learning_rat": 1.0}, "adam_params.learning_rat: is not known; did you mean 'learning_rate'"),
        ({"learning_rate": "1"}, "adam_params.learning_rate: must be a number"),
        ({"beta1": 1}, "adam_params.beta1: is 1; it is at least 0 and below 1"),
        ({"eps": math.nan}, "adam_params.eps: is nan"),
    ],
)
def test_a_step_that_cannot_be_is_refused_before_its_turn(driven: Driven, params: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        driven.platform.compat.training_runs.command(driven.run, 1, CommandKind.OPTIM_STEP, params)
    assert driven.step(1)


def test_options_of_saved_weights_are_those_that_there_are(driven: Driven) -> None:
    with pytest.raises(TypeError, match="ttl_second"):
        driven.save(1, "end", ttl_second=5)


def test_another_request_with_a_number_that_is_taken_is_refused(driven: Driven) -> None:
    driven.learn(1, "one")
    with pytest.raises(InvalidInput, match="1 was the number of another request"):
        driven.learn(1, "other")
    driven.work()
    with pytest.raises(InvalidInput, match="1 was the number of another request"):
        driven.step(1)


def test_a_command_that_is_refused_leaves_no_artifact(driven: Driven) -> None:
    artifacts = driven.platform._runtime.artifacts
    before = set(artifacts.names())
    with pytest.raises(RateLimited, match="wait for one before them"):
        driven.learn(MOST_AHEAD + 1, "long" * MOST_IN_RECORD)
    assert set(artifacts.names()) == before


def test_what_is_wrong_fails_by_itself_and_those_after_it_have_their_turn(driven: Driven, undisturbed: str) -> None:
    driven.learn(1, "one")
    wrong = driven.platform.compat.training_runs.command(driven.run, 2, CommandKind.REFUSED, {"why": "of this"})
    overlong = driven.learn(3, "x" * 20000)
    driven.step(4)
    driven.learn(5, "two")
    driven.step(6)
    driven.learn(7, "three")
    driven.step(8)
    driven.save(9, "end")
    assert end_of(driven) == undisturbed
    found = driven.answers(wrong, overlong)
    assert [one.status for one in found] == [FAILED, FAILED]
    assert "of this" in found[0].error
    assert "the model reads" in found[1].error


def test_a_run_that_cannot_be_opened_ends_with_a_reason(driven: Driven) -> None:
    run = driven.begin(1, rank=10**6)
    later = driven.step(1)
    driven.work()
    first, second = driven.answers(f"{run}:0", later)
    if first.status is DONE:  # the tabular model takes any rank
        assert second.status is DONE
        return
    assert (first.status, second.status) == (FAILED, FAILED)


def test_a_run_that_is_unloaded_ends_after_its_commands(driven: Driven) -> None:
    futures = [driven.learn(1, "one"), driven.step(2), driven.platform.compat.training_runs.unload(driven.run)]
    assert driven.platform.compat.training_runs.unload(driven.run) == futures[-1]
    driven.work()
    assert [one.status for one in driven.answers(*futures)] == [DONE] * 3
    assert driven.platform.compat.training_runs.get(driven.run).ended == "it was unloaded"
    late = driven.step(4)
    driven.work()
    assert driven.answers(late)[0].error == "the run has ended: it was unloaded"


def test_a_session_that_finishes_ends_its_runs(driven: Driven) -> None:
    other = driven.begin(1)
    driven.platform.compat.training_runs.finish_session(driven.session, "success")
    driven.work()
    runs = driven.platform.compat.training_runs
    assert [runs.get(run).ended for run in (f"{driven.session}:train:0", other)] == ["it was unloaded"] * 2
    with pytest.raises(InvalidInput, match="has finished"):
        driven.begin(2)


def test_the_job_of_a_run_steps_aside_and_comes_back(driven: Driven) -> None:
    driven.work()
    [job] = driven.platform.jobs.list()
    assert job.status == "queued"
    assert not driven.platform.worker().run_next()
    driven.learn(1, "one")
    assert driven.platform.worker().run_next()
    assert not driven.platform.worker().run_next()
    driven.platform.models.delete(driven.platform.compat.training_runs.get(driven.run).model_id)
    assert [one.status for one in driven.platform.jobs.list()] == ["cancelled"]
    assert "deletion of its model" in driven.platform.compat.training_runs.get(driven.run).ended


def test_another_entity_finds_nothing(driven: Driven) -> None:
    driven.save(1, "mine")
    driven.work()
    platform = driven.platform
    stranger = platform.acting_as(platform.keys.authenticate(platform.keys.create("other").secret)).compat.training_runs
    path = f"tinker://{driven.run}/weights/mine"
    for call in (
        lambda: stranger.get(driven.run),
        lambda: stranger.command(driven.run, 2, CommandKind.OPTIM_STEP, {}),
        lambda: stranger.future(f"{driven.run}:1"),
        lambda: stranger.unload(driven.run),
        lambda: stranger.sessions.beat(driven.session),
        lambda: stranger.sessions.get(driven.session),
        lambda: stranger.weights.of_run(driven.run),
        lambda: stranger.weights.delete(path),
        lambda: stranger.weights.set_expiry(path, 10),
        lambda: stranger.samplers.create(stranger.sessions.begin().id, 0, path=path),
        lambda: stranger.create_from(stranger.sessions.begin().id, 0, path, optimizer=True),
        lambda: stranger.create(driven.session, 5, base_model="tabular-mini", adapter={"rank": 1}),
    ):
        with pytest.raises(NotFound):
            call()
    assert stranger.list(0, 10).total == stranger.weights.list(0, 10).total == 0
