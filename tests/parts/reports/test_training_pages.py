"""A page of a job or a model is one file: no script, nothing to load, every text escaped, and all that there is."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.errors import Conflict, InvalidInput

ROWS: list[dict[str, Any]] = [{"prompt": "q", "completion": text} for text in ("ab", "ba", "aab", "abb")]


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(project="desk") as platform:
        platform.models.create("m", base_model="tabular-mini")
        yield platform


def text_of(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"<script|\\ssrc=|<link|http-equiv=.refresh", text)
    return text


def test_a_page_of_a_job_at_every_stage(platform: Platform, tmp_path: Path) -> None:
    path = tmp_path / "job.html"
    job = platform.training.sft("desk/m", ROWS, batch_size=2)
    job.save(path)
    assert "queued" in text_of(path)
    job.wait()
    job.save(path)
    text = text_of(path)
    last = job.metrics()[-1].values["loss"]
    for shown in ("succeeded", "local/desk/m, step 1", "batch_size", "<svg", f"{last:.4g}", job.id):
        assert shown in text, shown
    failed = platform.training.sft("desk/m", ROWS, learning_rate=1e30)
    platform.worker().run_until_idle()
    failed.save(path)
    message = failed.refresh().error_message
    assert message is not None
    assert message.split(";")[0].split("'")[0] in text_of(path)


def test_a_page_of_a_model(platform: Platform, tmp_path: Path) -> None:
    path = tmp_path / "model.html"
    platform.models.save("desk/m", path)
    assert "<td" in text_of(path)
    for _ in range(2):
        platform.training.sft("desk/m", ROWS).wait()
    platform.models.promote("desk/m", 2)
    platform.models.save("desk/m", str(path))
    text = text_of(path)
    for step in (1, 2):
        assert f"{platform.models.checkpoint('desk/m', step).metrics['loss']:.4g}" in text
    assert "prod" in text
    assert "tabular-mini" in text


@pytest.mark.parametrize("ending", ["", ".png", ".md"])
def test_what_writes_one_kind_of_file_refuses_the_endings_of_others(
    platform: Platform, tmp_path: Path, ending: str
) -> None:
    job = platform.training.sft("desk/m", ROWS)
    sweep = platform.training.sweep("desk/m", ROWS, learning_rate=[1e-4, 1e-3], validation=ROWS, name="s")
    plots = [job.plot(), platform.models.plot("desk/m"), sweep.plot()]
    saves: list[tuple[Callable[[Path], None], str]] = [(one.save, r"\.svg") for one in plots]
    saves += [(one.save, r"\.html") for one in (job, sweep)]
    saves.append((lambda path: platform.models.save("desk/m", path), r"\.html"))
    for save, known in saves:
        with pytest.raises(InvalidInput, match=f"^path: must end in {known}$"):
            save(tmp_path / f"it{ending}")
    assert not list(tmp_path.iterdir())


def test_a_job_pauses_and_goes_on(platform: Platform) -> None:
    first, second = (platform.training.sft("desk/m", ROWS, epochs=epochs) for epochs in (1, 2))
    assert first.pause().status == "queued"
    platform.worker().run_until_idle()
    assert (first.status, second.status) == ("queued", "succeeded")
    platform.training.resume(first.id).wait()
    assert (first.step, second.step) == (2, 1)
    with pytest.raises(Conflict):
        first.pause()


@pytest.mark.parametrize("method", ["sft", "dpo", "rl"])
def test_a_command_that_runs_twice_trains_once(yard_file: Path, tmp_path: Path, method: str) -> None:
    data = tmp_path / "rows.jsonl"
    said = {"role": "assistant", "content": "a"}
    sampled = {
        "finish_reason": "stop",
        "index": 0,
        "message": said,
        "logprobs": {"content": [{"token": "a", "logprob": -1}]},
    }
    asked = [{"role": "user", "content": "q"}]
    group = {"trajectories": [{"messages_and_choices": [*asked, sampled], "reward": at} for at in (0, 1)]}
    rows = {"sft": ROWS[0], "dpo": {"prompt": "q", "chosen": "a", "rejected": "b"}, "rl": group}
    data.write_text(json.dumps(rows[method]))
    command = ["train", method, "desk/m", str(data), "--base-model", "tabular-mini", "--store", str(yard_file)]
    for _ in range(2):
        done = CliRunner().invoke(main, [*command, "--idempotency-key", "2026-11-29"])
        assert done.exit_code == 0, done.output
        assert "desk/m is at step 1" in done.output
    other = CliRunner().invoke(main, [*command, "-o", "learning_rate=1e-6", "--idempotency-key", "2026-11-29"])
    assert other.exit_code != 0
    assert "was used for another request" in other.output
