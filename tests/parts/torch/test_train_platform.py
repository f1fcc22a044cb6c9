"""Training through the platform: what was trained is what answers, by an adapter and in full."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from training_kit import micro

from http_client import client_of
from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.errors import InvalidInput, JobFailed
from modelyard.parts.torch.records import Tuning
from modelyard.parts.torch.tiny_model import build_tiny_model

PAIRS = {"sea": "blue", "grass": "green", "night": "black", "snow": "white"}
ROWS = [
    {"messages": [{"role": "user", "content": requested}, {"role": "assistant", "content": generated}]}
    for requested, generated in PAIRS.items()
]


@pytest.mark.parametrize(("tuning", "rate", "passes"), [(Tuning.LORA, 1e-2, 60), (Tuning.FULL, 4e-3, 30)])
def test_each_step_of_a_model_says_what_it_was_taught(tuning: Tuning, rate: float, passes: int) -> None:
    with open_platform() as platform:
        platform.add_base_model(micro(), id="base", tuning=tuning)
        model = platform.models.create("m", project="p", base_model="base")

        def says(step: int, requested: str) -> str:
            name = f"local/p/m:step{step}"
            answer = platform.chat.complete(model=name, messages=requested, project="p", temperature=0, max_tokens=8)
            return answer.text

        platform.training.sft(model, ROWS * passes, batch_size=4, learning_rate=rate).wait()
        assert {requested: says(1, requested) for requested in PAIRS} == PAIRS
        assert {requested: says(0, requested) for requested in PAIRS} != PAIRS
        platform.training.sft(model, ROWS, learning_rate=1e-9).wait()
        assert {requested: says(2, requested) for requested in PAIRS} == PAIRS


def test_a_job_that_cannot_be_trained_fails_in_words_and_leaves_the_model_at_its_parent(tmp_path: Path) -> None:
    folder = build_tiny_model(tmp_path / "m", "nano")
    with open_platform() as platform:
        platform.add_base_model(folder, id="base")
        model = platform.models.create("m", project="p", base_model="base")
        with pytest.raises(JobFailed, match=r"diverged at step \d+: .* try a learning rate far below"):
            platform.training.sft(model, ROWS * 4, learning_rate=1e30).wait()
        assert platform.models.get("p/m").last_step == 0


@pytest.fixture(scope="module")
def teachable() -> Iterator[Platform]:
    with open_platform(project="p") as platform:
        platform.add_base_model(micro(), id="base")
        platform.models.create("m", base_model="base")
        yield platform


STOPS: dict[str, Any] = {"epochs": 12, "batch_size": 1, "early_stopping_patience": 1, "shuffle": True}


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_a_sweep_chooses_among_trials_that_stopped_early_by_the_weights_they_kept(
    teachable: Platform, method: str
) -> None:
    no = {"role": "assistant", "content": "no"}
    pairs = [{"messages": one[:1], "chosen": one[1], "rejected": no} for one in (row["messages"] for row in ROWS)]
    options = {"method": method, "learning_rate": [5e-2, 1e-9], **STOPS, "name": f"stops-{method}"}
    rows = ROWS if method == "sft" else pairs
    sweep = teachable.training.sweep("p/m", rows, validation=rows[:2], **options).wait()
    jobs = {one.number: teachable.training.get(one.job_ids[0]) for one in sweep.table()}
    assert any(job.stop_reason for job in jobs.values())
    for one in sweep.table():
        assert one.score == pytest.approx(jobs[one.number].metrics["best_valid_loss"])
    assert (sweep.best.of, sweep.best.options) == (2, {"learning_rate": 5e-2})


def test_a_job_that_stopped_early_says_why_wherever_it_is_looked_at(teachable: Platform, tmp_path: Path) -> None:
    job = teachable.training.sft("p/m", ROWS * 3, validation_split=0.3, seed=1, **{**STOPS, "learning_rate": 0.2})
    job.wait()
    why = job.stop_reason
    assert why is not None
    assert why.startswith("patience (1): no later validation was below ")
    *_, last = job.events()
    assert (last.type, last.data) == ("training_ended", {"stop_reason": why})
    job.save(tmp_path / "job.html")
    assert why in (tmp_path / "job.html").read_text()
    assert "stopped by" in (tmp_path / "job.html").read_text()


@pytest.mark.parametrize("method", ["sft", "dpo", "distill"])
def test_patience_without_held_out_rows_is_refused_when_the_job_is_made(teachable: Platform, method: str) -> None:
    answers = {"chosen": ROWS[0]["messages"][1], "rejected": ROWS[1]["messages"][1]}
    choice = {"message": answers["chosen"], "logprobs": {"content": [{"token": "b", "logprob": -1.0}]}}
    data = {
        "sft": ROWS,
        "dpo": [{"messages": ROWS[0]["messages"][:1], **answers}],
        "distill": [{"messages_and_choices": [ROWS[0]["messages"][0], choice], "reward": 0.0}],
    }[method]
    with pytest.raises(InvalidInput, match="early_stopping_patience: needs held-out rows; give validation_split"):
        teachable.training.submit(method, "p/m", data, {"early_stopping_patience": 2})
    with pytest.raises(InvalidInput, match="validation_split: is not possible"):
        teachable.training.sweep("p/m", ROWS, learning_rate=[1e-3, 1e-4], validation_split=0.5)


def test_patience_without_held_out_rows_is_refused_over_http_and_by_the_command_line(tmp_path: Path) -> None:
    store, rows = tmp_path / "yard.db", tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    with open_platform(store, project="p") as platform:
        platform.add_base_model(micro(), id="base")
        platform.models.create("m", base_model="base")
        model = platform.models.create("theirs", base_model="base", entity="acme")
        data = platform.training.upload("rows", ROWS, entity="acme").url
        platform.worker().beat()
        body = {"model_id": model.id, "training_data_url": data, "config": {"early_stopping_patience": 2}}
        answer = client_of(platform).send("POST", "/v1/preview/sft-training-jobs", body)
        assert (answer.status, b"needs held-out rows" in answer.raw) == (422, True), answer.raw
    words = ["train", "sft", "p/m", str(rows), "--store", str(store), "-o", "early_stopping_patience=2", "--no-wait"]
    refused = CliRunner().invoke(main, words)
    assert (refused.exit_code != 0, "early_stopping_patience: needs held-out rows" in refused.output) == (True, True)
    with open_platform(store) as platform:
        assert list(platform.training.list()) == []
