"""A loop whose rounds are trained on what a teacher says of the answers."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from modelyard import Platform, Pricing, open_platform
from modelyard.domain.job import Job, JobKind
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.errors import InvalidInput, JobFailed, ModelNotFound
from modelyard.platform.training.handle import JobHandle

WORDS = ("sea", "grass", "fire")
TASKS = [{"prompt": f"Say {word}.", "expected": f"The {word}."} for word in WORDS]
OPTIONS: dict[str, Any] = {"rounds": 6, "samples": 4, "max_tokens": 6, "teacher": "p/teacher", "learning_rate": 1e-4}


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(randomness=Random(1).randbytes) as opened:
        rows = [
            {
                "messages": [
                    {"role": "user", "content": one["prompt"]},
                    {"role": "assistant", "content": one["expected"]},
                ]
            }
            for one in TASKS
        ]
        opened.models.create("teacher", project="p", base_model="tabular-mini")
        opened.training.sft("p/teacher", rows * 20, learning_rate=1e-4).result()
        opened.models.create("student", project="p", base_model="tabular-mini")
        yield opened


def test_a_model_comes_nearer_to_its_teacher_round_by_round(platform: Platform) -> None:
    job = platform.training.loop("p/student", TASKS, "exact_match", held_out=TASKS, **OPTIONS)
    best = job.result()
    held_out = [row.values["held_out"] for row in job.metrics()]
    assert held_out[0] == 0.0
    assert held_out[-1] == 1.0
    assert best.step == job.refresh().step
    kinds = {one.kind for one in platform.training.list(model="p/student") if one.loop_id == job.id}
    assert kinds == {JobKind.DISTILL}


def test_a_round_is_sampled_and_scored_once(platform: Platform) -> None:
    before = platform.usage.total(by=("model",))
    options = {**OPTIONS, "rounds": 1}
    platform.training.loop("p/student", TASKS, "exact_match", **options).result()
    requests = {one.model: one.requests for one in platform.usage.total(by=("model",))}
    asked = {one.model: one.requests for one in before}
    taught = sum(count - asked.get(name, 0) for name, count in requests.items())
    assert taught == len(TASKS) + len(TASKS) * options["samples"]  # a request samples a task, and one scores an answer


def cut_short(platform: Platform, concurrency: int) -> JobHandle:
    """A loop of a round that a budget has ended while its teacher scores."""
    platform.usage.set_budget("13.5", entity="local")  # a task costs 6 for its answers, and 1 for the scores
    job = platform.training.loop(
        "p/student", TASKS, "exact_match", **{**OPTIONS, "rounds": 1, "concurrency": concurrency}
    )
    with pytest.raises(JobFailed, match="budget"):
        job.wait()
    platform.usage.set_budget("100000", entity="local")
    return job


@pytest.mark.parametrize("concurrency", [1, 2])
def test_what_a_teacher_has_said_is_not_asked_again_when_a_budget_has_ended_the_loop(
    priced: Platform, concurrency: int
) -> None:
    job = cut_short(priced, concurrency)
    before = requests(priced)
    assert 0 < before["p/teacher"] < len(TASKS) * OPTIONS["samples"]
    assert any(name.endswith("/0") for name in files(priced, job))
    priced.training.resume(job.id).wait()
    assert requests(priced) == {"p/teacher": len(TASKS) * OPTIONS["samples"], "p/student": len(TASKS)}
    checkpoints = [one for name in before for one in priced.models.checkpoints(name)]
    named = {file["artifact"] for one in checkpoints for file in one.files.values()}
    assert set(priced._runtime.artifacts.names()) == named


@pytest.mark.parametrize(("lost", "again"), [("/answers", "p/student"), ("/0", "p/teacher")])
def test_a_piece_that_is_lost_is_made_again(priced: Platform, lost: str, again: str) -> None:
    job = cut_short(priced, 1)
    (file,) = (file for name, file in files(priced, job).items() if name.endswith(lost))
    priced._runtime.artifacts.remove(file["artifact"])
    priced.training.resume(job.id).wait()
    once = {"p/teacher": len(TASKS) * OPTIONS["samples"], "p/student": len(TASKS)}
    assert requests(priced) == {**once, again: once[again] + 1}


@pytest.fixture
def priced() -> Iterator[Platform]:
    backend = TabularBackend(pricing=Pricing(completion=Decimal("0.25")))
    with open_platform(backend=backend, trainers=[TabularTrainer()], randomness=Random(1).randbytes) as opened:
        for name in ("teacher", "student"):
            opened.models.create(name, project="p", base_model="tabular-mini")
        yield opened


def requests(platform: Platform) -> dict[str, int]:
    """How often each model was asked."""
    totals = platform.usage.total(by=("model",))
    return {one.model.partition("/")[2]: one.requests for one in totals if one.requests}


def files(platform: Platform, job: JobHandle) -> Mapping[str, Any]:
    """What a loop continues with."""
    return platform._runtime.store.read(lambda snapshot: snapshot.get(Job, job.id)).resume


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"beta": 2}, "beta"),
        ({"ppo": True}, "ppo"),
        ({"agent": "tests:run"}, "teacher"),
    ],
)
def test_what_a_teacher_cannot_have_is_refused(platform: Platform, changed: dict[str, Any], place: str) -> None:
    with pytest.raises((InvalidInput, TypeError), match=place):
        platform.training.loop("p/student", TASKS, "exact_match", **{**OPTIONS, **changed})


def test_a_teacher_may_be_the_model_itself_or_a_checkpoint(platform: Platform) -> None:
    for teacher in (platform.models.find("p/teacher"), platform.models.checkpoint("p/teacher", 1)):
        options = {**OPTIONS, "teacher": teacher, "rounds": 1}
        assert platform.training.loop("p/student", TASKS, "exact_match", **options).result().step


def test_a_teacher_that_is_not_there_is_refused_before_the_loop(platform: Platform) -> None:
    with pytest.raises(ModelNotFound):
        platform.training.loop("p/student", TASKS, "exact_match", **{**OPTIONS, "teacher": "p/nobody"})
    assert not [one for one in platform.training.list() if one.kind == "loop"]


def test_a_teacher_that_reads_other_tokens_ends_the_loop_with_the_reason(platform: Platform) -> None:
    long = {**OPTIONS, "teacher": "echo", "rounds": 1, "max_tokens": 40}  # of single bytes alone they read the same
    with pytest.raises(JobFailed, match="one tokenizer"):
        platform.training.loop("p/student", TASKS, "exact_match", **long).result()
