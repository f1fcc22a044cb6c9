"""Loops: rounds of sampling, judging, training and validating, each stored once, and stopped as they should be."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from random import Random
from typing import Any

import attrs
import pytest

from modelyard import Platform, Pricing, gather, open_platform
from modelyard.domain.job import JobStatus
from modelyard.domain.training import RolloutError, TrajectoryGroup
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.errors import BudgetExceeded, InvalidInput, JobFailed
from modelyard.formats.training_data import GROUPS
from modelyard.parts.loops import rounds
from modelyard.parts.loops.sampling import RoundSampler, round_metrics, tasks_of_round

TASKS = [{"prompt": f"question {number}", "expected": "the answer"} for number in range(5)]
HELD_OUT = [{"prompt": f"exam {number}", "expected": "the answer"} for number in range(3)]
SMALL: dict[str, Any] = {"rounds": 2, "samples": 2, "tasks_per_round": 2, "max_tokens": 4}


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(randomness=Random(1).randbytes) as opened:
        opened.models.create("m", project="p", base_model="tabular-mini")
        yield opened


def length(output: str, row: Mapping[str, Any]) -> float:
    """Reward what other processes can import."""
    return len(output) / 100


def impossible(output: str, row: Mapping[str, Any]) -> float:
    raise ValueError("no reward for that")


def model_id(platform: Platform) -> str:
    found = platform.models.find("m", project="p")
    assert found is not None
    return found.id


def rounds_of(job: Any) -> list[Mapping[str, Any]]:
    return [event.data for event in job.events() if event.type == "training_round"]


def test_each_round_samples_trains_and_makes_one_checkpoint(platform: Platform) -> None:
    job = platform.training.loop("p/m", TASKS, "token_f1", **SMALL)
    assert job.result().step == 2
    first, second = rounds_of(job)
    assert (first["checkpoint"], second["checkpoint"]) == (1, 2)
    assert 0 <= first["reward"] <= 1
    seen = job.refresh()
    assert (seen.progress, seen.total, seen.model_id) == (2, 2, model_id(platform))
    kinds = [(one.kind, one.loop_id, one.status) for one in platform.training.list()]
    assert kinds == [("loop", None, "succeeded"), *[("rl", job.id, "succeeded")] * 2]
    every = [one.id for one in platform.training.list()]
    for order, wanted in (("asc", every), ("desc", every[::-1])):
        found = platform.training.list(model="p/m", order=order)
        assert [one.id for one in found] == wanted
        assert [one.id for one in found.page(2)] == wanted[:2]
        assert [one.id for one in found.page(2, after=wanted[1])] == wanted[2:]


def test_rows_of_metrics_are_rounds(platform: Platform) -> None:
    job = platform.training.loop("p/m", TASKS, length, **SMALL)
    job.wait()
    assert [row.step for row in job.metrics()] == [1, 2]
    assert {"reward", "loss", "checkpoint"} <= job.metrics()[0].values.keys()


def test_nothing_but_checkpoints_is_left_in_the_artifact_store(platform: Platform) -> None:
    platform.training.loop("p/m", TASKS, length, held_out=HELD_OUT, **SMALL).wait()
    files = [file for one in platform.models.checkpoints("p/m") for file in one.files.values()]
    assert set(platform._runtime.artifacts.names()) == {file["artifact"] for file in files}


def test_the_held_out_tasks_are_evaluated_before_between_and_after(platform: Platform) -> None:
    options = {**SMALL, "rounds": 3, "evaluate_every": 2}
    job = platform.training.loop("p/m", TASKS, length, held_out=HELD_OUT, **options)
    best = job.result()
    (started,) = [event.data for event in job.events() if event.type == "training_started"]
    scores = {0: started["held_out"], **{one["checkpoint"]: one.get("held_out") for one in rounds_of(job)}}
    assert scores[1] is None
    runs = list(platform.evaluations.runs.list(project="p"))
    assert [run.model.rpartition("step")[2] for run in runs] == ["0", "2", "3"]
    assert [run.summary["mean"] for run in runs if run.summary] == [scores[0], scores[2], scores[3]]
    assert best.step == max((step for step in (2, 3)), key=lambda step: scores[step] or 0) or scores[0] >= scores[2]
    assert job.refresh().metrics["best_held_out"] == max(score for score in scores.values() if score is not None)


@pytest.mark.parametrize(
    ("stop_when", "rounds", "reason"),
    [
        ({"score": 0.0}, 0, "score: 0 on the held-out tasks reached the target of 0"),
        ({"patience": 1}, 1, "patience (1): no later validation was above 0, of step 0"),
        ({"patience": 2, "score": 0.5}, 2, "patience (2): no later validation was above 0, of step 0"),
        ({"patience": 5}, 3, "rounds: all 3 are done"),
        ({}, 3, "rounds: all 3 are done"),
    ],
)
def test_a_loop_says_why_it_stopped_and_where_it_began(
    platform: Platform, stop_when: Any, rounds: int, reason: str
) -> None:
    """Nothing is answered right here, so the first score is the best, and a target of 0 is reached at once."""
    options = {**SMALL, "rounds": 3, "stop_when": stop_when}
    job = platform.training.loop("p/m", TASKS, "exact_match", held_out=HELD_OUT, **options)
    ended = job.wait().refresh()
    assert len(rounds_of(job)) == rounds
    assert (ended.stop_reason, [*job.events()][-1].data) == (reason, {"stop_reason": reason})
    start, *others = job.metrics()
    assert (start.step, dict(start.values)) == (0, {"held_out": 0.0, "checkpoint": 0})
    assert [row.step for row in others] == [*range(1, rounds + 1)]
    assert (ended.metrics["start_held_out"], ended.metrics["best_held_out"]) == (0.0, 0.0)


def test_a_loop_without_held_out_tasks_has_no_row_before_its_first_round(platform: Platform) -> None:
    ended = (job := platform.training.loop("p/m", TASKS, length, **SMALL)).wait().refresh()
    assert [row.step for row in job.metrics()] == [1, 2]
    assert ended.stop_reason == "rounds: all 2 are done"
    assert "start_held_out" not in ended.metrics


def test_other_tasks_come_each_round_until_all_were_taken() -> None:
    taken = [place for round_ in range(5) for place in tasks_of_round(7, 5, 2, round_)]
    assert sorted(taken[:5]) == sorted(taken[5:]) == list(range(5))
    assert taken[:5] != taken[5:]


def test_a_round_counts_its_failures_and_groups_that_teach_nothing() -> None:
    def group(*rewards: float) -> TrajectoryGroup:
        data = [{"messages_and_choices": [{"role": "user", "content": "x"}], "reward": one} for one in rewards]
        return attrs.evolve(GROUPS.of({"trajectories": data}), exceptions=(RolloutError("E", "no"),))

    found = round_metrics([group(1.0, 0.0), group(0.5, 0.5), group()])
    assert found == {"reward": 0.5, "zero_variance_groups": 1, "failed_rollouts": 3}


# ---- what is refused


def test_a_function_that_no_other_process_can_import_is_refused_with_the_remedy(platform: Platform) -> None:
    with pytest.raises(InvalidInput, match=r"reward: .* cannot be imported by another process.* top of a module"):
        platform.training.loop("p/m", TASKS, lambda output, row: 1.0)
    assert list(platform.training.list()) == []
    assert list(platform._runtime.artifacts.names()) == []


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"rounds": 0}, "rounds"),
        ({"samples": 1}, "samples"),
        ({"temperature": 3.0}, "temperature"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"stop_when": {"patience": 1}}, "stop_when: needs held_out"),
        ({"stop_when": {"patient": 1}, "held_out": HELD_OUT}, "stop_when.patient"),
        ({"held_out": []}, "held_out: has no rows"),
        ({"tasks": []}, "tasks: has no rows"),
        ({"tasks": [{"prompt": "x"}, {"question": "y"}]}, "tasks.1.messages"),
        ({"reward": {"type": "token_f1", "expcted": "x"}}, "reward.expcted"),
        ({"reward": ["token_f1", "exact_match"]}, "reward: must be one scorer"),
    ],
)
def test_what_does_not_fit_is_named(platform: Platform, options: dict[str, Any], place: str) -> None:
    asked = {"tasks": TASKS, "reward": "token_f1", **options}
    with pytest.raises(InvalidInput, match=place):
        platform.training.loop("p/m", **asked)
    assert list(platform._runtime.artifacts.names()) == []


def test_an_unknown_option_is_a_type_error_with_a_hint(platform: Platform) -> None:
    with pytest.raises(TypeError, match=r"loop.*learning_rat.*learning_rate"):
        platform.training.loop("p/m", TASKS, "token_f1", learning_rat=1)  # type: ignore[call-arg]


def test_the_same_request_under_a_key_is_the_same_loop(platform: Platform) -> None:
    ids = {platform.training.loop("p/m", TASKS, length, idempotency_key="k", **SMALL).id for _ in range(2)}
    assert len(ids) == 1
    assert len(list(platform._runtime.artifacts.names())) == 1


def test_a_round_in_which_nothing_is_rewarded_fails_the_loop_with_the_reason(platform: Platform) -> None:
    job = platform.training.loop("p/m", TASKS, impossible, **SMALL)
    with pytest.raises(JobFailed, match=r"nothing was sampled in round 1: .*no reward for that"):
        job.wait()


# ---- cancelled, and over budget


def test_a_cancelled_loop_ends_with_its_training_job(platform: Platform) -> None:
    job = platform.training.loop("p/m", TASKS, length, **SMALL)
    for event in job.events():
        if event.type == "training_round":
            job.cancel()
    assert job.status is JobStatus.CANCELLED
    assert job.stop_reason == job.refresh().stop_reason == "cancelled by host"
    assert {one.status for one in platform.training.list()} <= {JobStatus.CANCELLED, JobStatus.SUCCEEDED}
    assert len(platform.models.checkpoints("p/m").page(100).items) <= 2


def test_a_loop_that_is_cancelled_while_its_training_waits_takes_it_along(platform: Platform) -> None:
    job = platform.training.loop("p/m", TASKS, length, **SMALL)
    for _ in job._follow(None):
        if len(list(platform.training.list())) > 1:
            break
    job.cancel()
    with pytest.raises(JobFailed, match="cancelled"):
        job.wait()
    assert [one.status for one in platform.training.list()] == [JobStatus.CANCELLED] * 2


@pytest.mark.parametrize("limit", ["0.05", "2"], ids=["while it samples", "while it trains"])
def test_a_budget_ends_the_loop_which_continues_when_it_is_raised(priced: Platform, limit: str) -> None:
    priced.usage.set_budget(limit, entity="local")
    job = priced.training.loop("p/m", TASKS, length, **SMALL)
    with pytest.raises(JobFailed, match="budget"):
        job.wait()
    assert "budget" in str(job.refresh().stop_reason)
    spent = priced.usage.get_budget(entity="local")
    assert spent is not None
    assert spent.spent <= spent.limit
    priced.usage.set_budget("100000", entity="local")
    continued = priced.training.resume(job.id)
    continued.wait()
    steps = [row.values["checkpoint"] for one in (job, continued) for row in one.metrics()]
    assert steps == [1, 2]
    (total,) = priced.usage.total()
    assert total.trained_tokens > 0
    assert total.completion_tokens > 0


def test_what_other_threads_have_sampled_when_a_budget_ends_the_loop_is_kept(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended, group, asked = threading.Event(), threading.Event(), RoundSampler.group, list[int]()

    class Ending(ThreadPoolExecutor):
        def shutdown(self, *given: Any, **more: Any) -> None:
            ended.set()
            super().shutdown(*given, **more)

    def slow(sampler: RoundSampler, round_: int, place: int, task: Mapping[str, Any]) -> TrajectoryGroup:
        asked.append(place)
        if not ended.is_set() and place == 0:
            assert begun.wait(60)
            raise BudgetExceeded("it costs too much")
        begun.set()
        assert ended.wait(60)
        return group(sampler, round_, place, task)

    monkeypatch.setattr(rounds, "ThreadPoolExecutor", Ending)
    monkeypatch.setattr(RoundSampler, "group", slow)
    options = {**SMALL, "rounds": 1, "concurrency": 2}
    job = platform.training.loop("p/m", TASKS[:2], length, **options)
    with pytest.raises(JobFailed, match="it costs too much"):
        job.wait()
    platform.training.resume(job.id).wait()
    assert sorted(asked) == [0, 0, 1]


@pytest.mark.parametrize(
    ("limit", "before"), [("0.01", []), ("0.05", []), ("0.3", [0])], ids=["no row", "some rows", "after a training"]
)
def test_a_validation_that_a_budget_has_cut_short_is_made_anew(limit: str, before: list[int]) -> None:
    backend = TabularBackend(pricing=Pricing(completion=Decimal("0.01")))
    with open_platform(backend=backend, trainers=[TabularTrainer()], randomness=Random(1).randbytes) as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        platform.usage.set_budget(limit, entity="local")
        job = platform.training.loop("p/m", TASKS, length, held_out=HELD_OUT, concurrency=1, **SMALL)
        with pytest.raises(JobFailed, match="a budget has cut short the validation"):
            job.wait()
        assert validated(job) == before
        platform.usage.set_budget("100000", entity="local")
        continued = platform.training.resume(job.id)
        assert "start_held_out" in continued.wait().refresh().metrics
        assert validated(job) + validated(continued) == [0, 1, 2]


def validated(job: Any) -> list[float]:
    return [row.values["checkpoint"] for row in job.metrics() if "held_out" in row.values]


def unaffordable(output: str, row: Mapping[str, Any]) -> float:
    raise BudgetExceeded("the judge costs too much")


def test_a_judge_that_a_budget_refuses_cuts_a_validation_short(platform: Platform) -> None:
    job = platform.training.loop("p/m", TASKS, unaffordable, held_out=HELD_OUT, **SMALL)
    with pytest.raises(JobFailed, match=r"cut short the validation, .*: the judge costs too much"):
        job.wait()
    assert platform.training.resume(job.id).id != job.id


@pytest.fixture
def priced() -> Iterator[Platform]:
    """A platform on which sampling and training cost something."""
    backend = TabularBackend(pricing=Pricing(completion=Decimal("0.01"), training=Decimal(1)))
    with open_platform(backend=backend, trainers=[TabularTrainer()], randomness=Random(1).randbytes) as opened:
        opened.models.create("m", project="p", base_model="tabular-mini")
        yield opened


# ---- groups in threads


def test_attempts_of_a_group_run_at_the_same_time_and_keep_their_order() -> None:
    together = threading.Barrier(3, timeout=60)
    data = {"messages_and_choices": [{"role": "user", "content": "x"}], "reward": 0.0}
    (trajectory,) = GROUPS.of({"trajectories": [data]}).trajectories

    def attempt(seed: int) -> Any:
        together.wait()
        if seed == 1:
            raise ValueError("lost")
        return attrs.evolve(trajectory, reward=float(seed))

    group = gather(attempt, range(3), concurrency=3)
    assert [one.reward for one in group.trajectories] == [0.0, 2.0]
    assert group.exceptions == (RolloutError("ValueError", "lost"),)


def test_jobs_on_the_same_data_are_listed_whatever_their_model(platform: Platform) -> None:
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}] * 2
    dataset = platform.training.upload("rows", rows, project="p")
    platform.models.create("n", project="q", base_model="tabular-mini")
    on = [platform.training.sft(model, data).id for model, data in (("p/m", dataset.url), ("q/n", dataset.url))]
    on_equal_rows, other = platform.training.sft("q/n", rows).id, platform.training.sft("q/n", rows * 2).id
    assert [job.id for job in platform.training.list(data=dataset.url)] == on
    assert [job.id for job in platform.training.list(data=dataset.digest)] == [*on, on_equal_rows]
    assert [job.id for job in platform.training.list(data=dataset.digest, model="q/n")] == [on[1], on_equal_rows]
    assert other not in [job.id for job in platform.training.list(data=dataset.digest)]
