"""DPO: jobs on pairs of answers, from their rows to the checkpoint that prefers as they do."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modelyard.compose import open_platform
from modelyard.domain.completion import Message, Role
from modelyard.domain.job import JobKind, JobStatus
from modelyard.domain.training import Preference
from modelyard.errors import InvalidInput
from modelyard.platform.platform import Platform

PAIRS = [
    {"messages": [{"role": "user", "content": f"What colour is the {word}?"}], "chosen": "It is blue.", "rejected": no}
    for word in ("sea", "sky", "night", "grass", "snow", "fire", "sand", "rain")
    for no in ("I do not know.", "No idea at all!")
]
EXAMPLE = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        opened.models.create("m", project="p", base_model="tabular-mini")
        yield opened


def steps(job: Any) -> list[Any]:
    return [event.data for event in job.events() if event.type == "gradient_step"]


def refused(platform: Platform, data: Any, **options: Any) -> tuple[tuple[str | int, ...], str]:
    with pytest.raises(InvalidInput) as wrong:
        platform.training.dpo("p/m", data, **options)
    (problem,) = wrong.value.problems
    return problem.loc, problem.msg


def test_a_job_learns_to_prefer_the_chosen_answers(platform: Platform) -> None:
    job = platform.training.dpo("p/m", PAIRS * 4, learning_rate=1e-4, batch_size=4)
    found = steps(job)
    assert len(found) == 16
    assert found[0].keys() == {
        *("loss", "accuracy", "margin", "chosen_reward", "rejected_reward", "num_trainable_tokens"),
        *("grad_norm", "entropy", "learning_rate"),
    }
    assert found[0]["loss"] == pytest.approx(math.log(2))
    assert (found[0]["margin"], found[0]["learning_rate"]) == (pytest.approx(0.0, abs=1e-9), 1e-4)
    assert found[-1]["loss"] < found[0]["loss"]
    assert found[-1]["accuracy"] == 1.0
    assert found[-1]["chosen_reward"] > found[-1]["rejected_reward"]
    assert job.refresh().kind == JobKind.DPO
    assert (job.result().step, job.result().metrics["accuracy"]) == (1, 1.0)


def test_rewards_are_measured_against_the_checkpoint_that_the_job_starts_from(platform: Platform) -> None:
    platform.training.dpo("p/m", PAIRS, learning_rate=1e-3).result()
    first = steps(platform.training.dpo("p/m", PAIRS))[0]
    assert first["loss"] == pytest.approx(math.log(2))
    assert first["chosen_reward"] == pytest.approx(0.0, abs=1e-9)


def test_beta_and_label_smoothing_are_part_of_the_configuration(platform: Platform) -> None:
    plain, smooth = (
        platform.training.dpo("p/m", PAIRS, learning_rate=[1e-4] * 4, batch_size=4, **more)
        for more in ({}, {"beta": 0.2, "label_smoothing": 0.1})
    )
    assert plain.refresh().config == {
        "learning_rate": (1e-4,) * 4,
        "batch_size": 4,
        "epochs": 1,
        "beta": 0.1,
        "label_smoothing": 0.0,
    }
    assert (smooth.refresh().config["beta"], smooth.refresh().config["label_smoothing"]) == (0.2, 0.1)
    assert steps(smooth)[-1]["loss"] != steps(plain)[-1]["loss"]


def test_rows_come_as_values_as_a_file_and_as_a_dataset(platform: Platform, tmp_path: Path) -> None:
    value = Preference((Message(Role.USER, "Hi"),), Message(Role.ASSISTANT, "Hello"), Message(Role.ASSISTANT, "What?"))
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in PAIRS))
    dataset = platform.training.upload("pairs", path, project="p")
    assert dataset.rows == len(PAIRS)
    for data, rows in (([value], 1), (PAIRS, 16), (path, 16), (dataset.url, 16)):
        assert platform.training.dpo("p/m", data).wait().refresh().total == math.ceil(rows / 2)
    again = [platform.training.dpo("p/m", dataset.url) for _ in range(2)]
    assert again[0].id == again[1].id


@pytest.mark.parametrize(
    ("change", "loc", "msg"),
    [
        ({"messages": None}, ("messages",), "is required"),
        ({"chosen": None}, ("chosen",), "is required"),
        ({"rejected": None}, ("rejected",), "is required"),
        ({"messages": []}, ("messages",), "must have the prompt, at least one message"),
        ({"messages": EXAMPLE["messages"]}, ("messages", 1), "must not be an assistant message: the prompt ends"),
        ({"chosen": 7}, ("chosen",), "must be a string or an assistant message"),
        ({"chosen": {"role": "user", "content": "x"}}, ("chosen", "role"), "must be 'assistant'"),
        ({"rejected": "It is blue."}, ("rejected",), "must differ from chosen; equal answers show no preference"),
        (
            {"rejected": {"role": "assistant", "content": "It is blue."}},
            ("rejected",),
            "must differ from chosen; equal answers show no preference",
        ),
    ],
)
def test_a_row_that_shows_no_preference_is_refused_by_row_and_field(
    platform: Platform, tmp_path: Path, change: Any, loc: Any, msg: str
) -> None:
    rows = [PAIRS[0], {**PAIRS[1], **change}]
    at, why = refused(platform, rows)
    assert (at, why[: len(msg)]) == (("data", 1, *loc), msg)
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    at, why = refused(platform, path)
    assert (at, why[: len(msg)]) == (("line", 2, *loc), msg)
    assert list(platform.training.list()) == []


def test_no_rows_and_settings_out_of_bounds_are_refused(platform: Platform) -> None:
    assert refused(platform, []) == (("data",), "has no rows; give at least one example")
    assert refused(platform, PAIRS, beta=0.0) == (("beta",), "must be a finite number above 0")
    assert refused(platform, PAIRS, label_smoothing=0.5)[0] == ("label_smoothing",)
    assert refused(platform, PAIRS, batch_size=0)[0] == ("batch_size",)
    assert refused(platform, PAIRS, learning_rate=[1e-4])[0] == ("learning_rate",)


def test_a_dataset_of_the_other_format_is_refused_by_line_and_field(platform: Platform) -> None:
    examples = platform.training.upload("examples", [EXAMPLE], project="p")
    pairs = platform.training.upload("pairs", PAIRS, project="p")
    with pytest.raises(InvalidInput) as wrong:
        platform.training.dpo("p/m", examples.url)
    assert [problem.loc[-1] for problem in wrong.value.problems] == ["chosen", "rejected"]
    assert {problem.loc[:-1] for problem in wrong.value.problems} == {("training_data_url", "line", 1)}
    assert {problem.msg for problem in wrong.value.problems} == {"is required; training.sft takes examples"}
    with pytest.raises(InvalidInput) as wrong:
        platform.training.sft("p/m", pairs.url)
    assert [problem.loc for problem in wrong.value.problems] == [
        ("training_data_url", "line", 1, name) for name in ("chosen", "rejected")
    ]
    assert {problem.msg for problem in wrong.value.problems} == {"is not known; training.dpo takes preferences"}


def test_a_job_given_back_between_steps_ends_as_if_undisturbed(platform: Platform) -> None:
    whole, broken = (platform.training.dpo(f"p/{name}", PAIRS, batch_size=1) for name in (named(platform, "a"), "m"))
    events = whole.events()
    expected = [event.data for event in events if event.type == "gradient_step"]
    seen = broken.events()
    for _ in range(6):
        next(seen)
    seen.close()
    assert broken.status is JobStatus.QUEUED
    assert steps(broken) == expected
    assert broken.refresh().attempts == 2
    assert broken.result().digest == whole.result().digest


def named(platform: Platform, name: str) -> str:
    return platform.models.create(name, project="p", base_model="tabular-mini").name
