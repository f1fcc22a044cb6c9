"""What people look at: plots of jobs and models, and the progress bar."""

import sys
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.domain.training import GRADIENT_STEP
from modelyard.errors import MissingExtra
from modelyard.platform.training.metrics import MetricRows, metric_order

ROWS = [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}] * 6


@pytest.fixture
def platform() -> Any:
    with open_platform() as opened:
        opened.models.create("polite", project="demo", base_model="tabular-mini")
        yield opened


def losses(job: Any) -> list[float]:
    return [event.data["loss"] for event in job.events() if event.type == GRADIENT_STEP]


def test_a_job_s_plot_shows_the_loss_of_each_step(platform: Any) -> None:
    job = platform.training.sft("demo/polite", ROWS)
    expected = losses(job)
    panel, *others = job.plot().panels
    (line,) = panel.series
    assert line.points == list(enumerate(expected, 1))
    assert [panel.label, *(one.label for one in others)] == metric_order(job.metrics()[0].values)
    assert "succeeded" in job.plot().title
    assert job._repr_html_().startswith("<svg ")


def test_a_job_that_waits_has_a_plot_without_values(platform: Any) -> None:
    job = platform.training.sft("demo/polite", ROWS)
    assert "queued" in job.plot().title
    assert "no values yet" in job.plot().svg


def test_a_model_s_plot_continues_from_job_to_job(platform: Any) -> None:
    first, second = (platform.training.sft("demo/polite", ROWS) for _ in range(2))
    expected = losses(first) + losses(second)
    model = platform.models.find("polite", project="demo")
    plot = platform.models.plot(model.id)
    assert plot.panels[0].series[0].points == list(enumerate(expected, 1))
    assert plot.marks == (len(losses(first)),)
    assert plot.panels[0].label == "loss"
    assert plot.svg.count("<polyline ") == 2 * len(plot.panels)


def test_two_models_are_lines_of_one_plot(platform: Any) -> None:
    platform.models.create("rude", project="demo", base_model="tabular-mini")
    for name in ("demo/polite", "demo/rude"):
        platform.training.sft(name, ROWS).wait()
    plot = platform.models.plot("demo/polite", "demo/rude")
    assert [line.name for line in plot.panels[0].series] == ["polite", "rude"]
    assert plot.title == "local/demo/polite, local/demo/rude"


def test_metrics_are_a_list_and_a_table(platform: Any) -> None:
    job = platform.training.sft("demo/polite", ROWS)
    expected = losses(job)
    rows = job.metrics()
    assert [row.values["loss"] for row in rows] == expected
    assert f"{expected[0]:.4g}" in rows._repr_html_()


def test_without_pandas_the_remedy_is_named(platform: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match="pip install pandas"):
        platform.training.sft("demo/polite", ROWS).metrics().to_pandas()


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


def test_tensorboard_is_named_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtra, match="pip install tensorboard"):
        MetricRows().to_tensorboard(tmp_path)
