"""What people look at: plots of jobs and models, and their metrics as a table."""

from typing import Any

import pytest

from modelyard import open_platform
from modelyard.domain.training import GRADIENT_STEP
from modelyard.parts.reports.training_plots import metric_order

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


def test_a_loop_s_plot_begins_before_its_first_round_and_says_why_it_stopped(platform: Any) -> None:
    tasks = [{"prompt": "Hi", "expected": "the answer"}] * 2
    options: dict[str, Any] = {"rounds": 2, "samples": 2, "max_tokens": 4, "stop_when": {"patience": 1}}
    job = platform.training.loop("demo/polite", tasks, "exact_match", held_out=tasks, **options)
    job.wait()
    lines = {panel.label: panel.series[0].points for panel in job.plot().panels}
    assert [place for place, _ in lines["held_out"]] == [0, 1]
    assert [place for place, _ in lines["reward"]] == [1]
    assert "succeeded, patience (1)" in job.plot().title
    assert 'data-label="step">0<' in job.metrics()._repr_html_()


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


def test_metrics_are_a_table_in_a_notebook(platform: Any) -> None:
    job = platform.training.sft("demo/polite", ROWS)
    expected = losses(job)
    assert f"{expected[0]:.4g}" in job.metrics()._repr_html_()


def test_the_plot_of_a_dpo_job_shows_loss_accuracy_and_margin(platform: Any) -> None:
    prompt = [{"role": "user", "content": "What colour is the sea?"}]
    job = platform.training.dpo(
        "demo/polite", [{"messages": prompt, "chosen": "It is blue.", "rejected": "No idea."}] * 4
    )
    job.wait()
    drawn = job.plot()._repr_html_()
    assert all(name in drawn for name in ("DPO job", "loss", "accuracy", "margin"))
    assert "accuracy" in platform.models.plot("demo/polite")._repr_html_()
