"""The metrics of a training job as rows, handed to other tools, and the progress bar."""

import sys
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.domain.training import GRADIENT_STEP

ROWS = [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}] * 6


@pytest.fixture
def platform() -> Any:
    with open_platform() as opened:
        opened.models.create("polite", project="demo", base_model="tabular-mini")
        yield opened


def test_metrics_are_a_list(platform: Any) -> None:
    job = platform.training.sft("demo/polite", ROWS)
    losses = [event.data["loss"] for event in job.events() if event.type == GRADIENT_STEP]
    assert [row.values["loss"] for row in job.metrics()] == losses


def test_a_list_shows_its_first_items_alone(platform: Any) -> None:
    job = platform.training.sft("demo/polite", ROWS * 40, batch_size=1).wait()
    rows = job.metrics()
    assert len(rows) > 12
    first, step, *_, last = lines = repr(rows).splitlines()
    assert (first, last, len(lines)) == ("<MetricRows", "  and more>", 12)
    assert step.startswith("  MetricRow(step=1, values={'loss': ")
    assert len(repr(rows)) < 2000
    assert repr(type(rows)()) == "<MetricRows of nothing>"
    assert repr(platform.usage.total(by=["model"])) == "<SummedUsage of nothing>"


def test_waiting_shows_progress_only_on_request(platform: Any, capsys: pytest.CaptureFixture[str]) -> None:
    platform.training.sft("demo/polite", ROWS).wait()
    assert capsys.readouterr() == ("", "")
    job = platform.training.sft("demo/polite", ROWS)
    job.wait(progress=True)
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert "SFT demo/polite" in shown
    assert "loss=" in shown


def test_progress_without_tqdm_is_lines(
    platform: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    platform.training.sft("demo/polite", ROWS).wait(progress=True)
    assert "3 of 3 steps, loss " in capsys.readouterr().err.splitlines()[-1]


def test_the_numbers_are_logged_step_by_step(platform: Any) -> None:
    job = platform.training.sft("demo/polite", ROWS)
    job.wait()
    seen: list[Any] = []

    class Run:
        def log(self, values: dict[str, Any], /, *, step: int) -> None:
            seen.append((step, values))

    job.metrics().log_to(Run())
    assert seen == [(row.step, row.values) for row in job.metrics()]
