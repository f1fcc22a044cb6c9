"""What is listed as a data frame, and the metrics of a job as a file."""

import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from modelyard import Platform, open_platform
from modelyard.errors import InvalidInput, MissingExtra
from modelyard.platform.training.metrics import MetricRows

ROWS = [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}] * 6
ASKED = [{"prompt": f"say {at}", "expected": f"say {at}" if at else ""} for at in range(3)]


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(project="desk") as opened:
        opened.models.create("m", base_model="tabular-mini")
        yield opened


@pytest.fixture
def frames() -> None:
    pytest.importorskip("pandas")


@pytest.mark.usefixtures("frames")
def test_jobs_are_lines_with_their_options_and_metrics(platform: Platform) -> None:
    jobs = [platform.training.sft("desk/m", ROWS, learning_rate=rate).wait() for rate in (1e-4, 1e-3)]
    frame = platform.training.list().to_pandas()
    assert [*frame.index] == [job.id for job in jobs]
    assert frame.index.name == "id"
    assert [*frame["learning_rate"]] == [1e-4, 1e-3]
    assert [*frame["loss"]] == [job.refresh().metrics["loss"] for job in jobs]
    assert [*frame["status"]] == ["succeeded"] * 2
    assert str(frame["created_at"].dtype).startswith("datetime64")
    newest = platform.jobs.list(order="desc").page(1).to_pandas()
    assert [*newest.index] == [jobs[1].id]


@pytest.mark.usefixtures("frames")
def test_checkpoints_are_lines_under_their_steps(platform: Platform) -> None:
    job = platform.training.sft("desk/m", ROWS).wait().refresh()
    frame = platform.models.checkpoints("desk/m").to_pandas()
    assert [*frame.index] == [0, 1]
    assert frame.index.name == "step"
    assert frame.loc[1, "loss"] == job.metrics["loss"]
    assert frame["loss"].isna().tolist() == [True, False]
    assert frame.loc[1, "files"] == platform.models.checkpoint("desk/m", 1).files


@pytest.mark.usefixtures("frames")
def test_rows_are_lines_with_what_was_asked_and_each_score(platform: Platform) -> None:
    result = platform.evaluations.run("quiz", "echo", ASKED, ["exact_match", "token_f1"], trials=2)
    frame = result.rows.to_pandas()
    assert len(frame) == 6
    assert [*frame["trial"]] == [row.trial for row in result.rows]
    assert [*frame["prompt"]] == [row.row["prompt"] for row in result.rows]
    assert [*frame["token_f1"]] == [row.scores["token_f1"] for row in result.rows]
    assert frame["exact_match"].mean() == result.score
    assert len(result.errors.to_pandas()) == len(result.errors) == 0


@pytest.mark.usefixtures("frames")
def test_runs_that_are_listed_are_the_frame_of_evaluations(platform: Platform) -> None:
    platform.evaluations.run("quiz", "echo", ASKED, "exact_match")
    runs = platform.evaluations.runs.list()
    assert runs.to_pandas().equals(platform.evaluations.to_pandas(runs))


@pytest.mark.usefixtures("frames")
def test_a_listing_of_names_or_of_nothing_is_a_frame(platform: Platform) -> None:
    assert [*platform.models.trainable().to_pandas()["value"]] == [*platform.models.trainable()]
    assert platform.training.list().to_pandas().empty
    assert MetricRows().to_pandas().empty


@pytest.mark.usefixtures("frames")
def test_no_member_takes_the_column_of_another(platform: Platform) -> None:
    platform.training.sft("desk/m", ROWS).wait()
    listed = platform.models.checkpoints("desk/m")
    page = listed.page()
    clashing = [attrs.evolve(one, metrics={"step": 9.0, "loss": 1.0, "metrics.step": 7.0}) for one in page]
    frame = type(page)(tuple(clashing), False).to_pandas()
    assert [*frame.index] == [0, 1]
    assert [*frame["metrics.step"]] == [9.0, 9.0]
    assert [*frame["metrics.metrics.step"]] == [7.0, 7.0]
    assert [*frame["loss"]] == [1.0, 1.0]


def test_without_pandas_the_remedy_is_named(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    result = platform.evaluations.run("quiz", "echo", ASKED, "exact_match")
    for one in (platform.training.list(), platform.jobs.list().page(), result.rows, MetricRows()):
        with pytest.raises(MissingExtra, match="pip install pandas"):
            one.to_pandas()


@pytest.mark.slow
def test_pandas_is_loaded_by_no_other_call() -> None:
    program = (
        "import sys\nfrom modelyard import open_platform\n"
        "with open_platform(project='p') as p:\n"
        "    p.jobs.list()._repr_html_()\n    p.jobs.list().to_pandas\n"
        "assert 'pandas' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# ---- files


def cells(path: Path) -> list[dict[str, str]]:
    return [*csv.DictReader(path.read_text(encoding="utf-8").splitlines())]


def test_the_metrics_of_a_job_are_saved_as_what_their_name_says(platform: Platform, tmp_path: Path) -> None:
    rows = platform.training.sft("desk/m", ROWS, batch_size=2).wait().metrics()
    for ending in ("csv", "jsonl", "html"):
        rows.save(tmp_path / f"metrics.{ending}")
    table = cells(tmp_path / "metrics.csv")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [float(one["loss"]) for one in table] == [row.values["loss"] for row in rows] == [x["loss"] for x in lines]
    assert [int(one["step"]) for one in table] == [row.step for row in rows] == [one["step"] for one in lines]
    assert table[0]["created_at"] == rows[0].created_at.isoformat() == lines[0]["created_at"]
    page = (tmp_path / "metrics.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert f"{rows[-1].values['loss']:.4g}" in page
    assert "<svg" in page


def test_a_metric_that_some_steps_lack_is_an_empty_cell(platform: Platform, tmp_path: Path) -> None:
    rows = platform.training.sft("desk/m", ROWS, batch_size=2).wait().metrics()
    some = MetricRows([rows[0], attrs.evolve(rows[1], values={"reward": 0.5})])
    some.save(tmp_path / "some.csv")
    first, second = cells(tmp_path / "some.csv")
    assert (first["reward"], second["loss"]) == ("", "")
    assert float(second["reward"]) == 0.5


@pytest.mark.parametrize("name", ["metrics", "metrics.md", "metrics.CSV.gz"])
def test_a_file_of_another_kind_is_refused_and_not_made(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"\.html, \.jsonl or \.csv"):
        MetricRows().save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_no_steps_are_a_file(tmp_path: Path) -> None:
    for ending in ("csv", "jsonl", "html"):
        MetricRows().save(tmp_path / f"none.{ending}")
    assert (tmp_path / "none.csv").read_text() == "step,created_at\n"
    assert (tmp_path / "none.jsonl").read_text() == ""


def test_a_frame_is_of_any_class(platform: Platform) -> None:
    pytest.importorskip("pandas")
    platform.training.sft("desk/m", ROWS).wait()
    job = platform.training.list().page(1).items[0]
    listings: list[Any] = [
        platform.models.list(),
        platform.catalogue.list(),
        platform.usage.list(),
        platform.jobs.events(job.id),
        platform.annotations.list(),
        platform.keys.list(),
    ]
    assert [len(one.to_pandas()) for one in listings] == [len([*one]) for one in listings]


def test_tensorboard_is_named_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtra, match="pip install tensorboard"):
        MetricRows().to_tensorboard(tmp_path)
