"""What draws pages is a part: without it the error names it, and notebooks show values as text."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from modelyard import open_platform, report
from modelyard.asgi import Endpoint, Request
from modelyard.cli import main
from modelyard.errors import MissingPart
from modelyard.http.endpoint import route_table
from modelyard.report.evaluations.comparison import ComparisonReport
from modelyard.report.evaluations.run import RunReport

EXAMPLE = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}


@pytest.fixture(autouse=True)
def without_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modelyard.parts.doors.report", None)
    for name, loaded in [*vars(report).items()]:  # by other tests
        if str(getattr(loaded, "__module__", None)).startswith("modelyard.parts."):
            monkeypatch.delattr(report, name)


@pytest.fixture
def reports(scored_runs: Any) -> Any:
    with open_platform() as platform:
        run = scored_runs.add(platform, scored_runs.questions([True, False]))
        yield platform.evaluations.report(run), platform.evaluations.compare(baseline=run, candidate=run)


DRAWN: list[Callable[[RunReport | ComparisonReport], object]] = [
    lambda report: report.html,
    lambda report: report.markdown,
    lambda report: report.junit,
    lambda report: report._repr_html_(),
]


@pytest.mark.parametrize("draw", DRAWN)
def test_a_report_is_text_and_rows_still(reports: Any, draw: Any) -> None:
    for one in reports:
        with pytest.raises(MissingPart, match="the part reports"):
            draw(one)
        assert "exact" in str(one)
        assert b"".join(one.export("csv")).startswith(b"row_digest,")


@pytest.mark.parametrize("ending", ["html", "md", "xml"])
def test_no_file_is_begun_that_cannot_be_written(reports: Any, tmp_path: Path, ending: str) -> None:
    for one in reports:
        with pytest.raises(MissingPart, match="the part reports"):
            one.save(tmp_path / f"report.{ending}")
    assert [*tmp_path.iterdir()] == []


def test_a_notebook_falls_back_on_text() -> None:
    """It takes `NotImplementedError` as no such form of a value."""
    with open_platform() as platform:
        platform.models.create("polite", project="demo", base_model="tabular-mini")
        job = platform.training.sft("demo/polite", [EXAMPLE])
        job.wait()
        result = platform.evaluations.run("e", "echo", [{"prompt": "a", "expected": "a"}], project="demo")
        for value in (job, job.metrics(), platform.jobs.list(), platform.jobs.list().page(), result):
            with pytest.raises(NotImplementedError, match="the part reports"):
                value._repr_html_()
            assert str(value)
        for plot in (job.plot, lambda: platform.models.plot("demo/polite")):
            with pytest.raises(MissingPart, match="the part reports"):
                plot()


def test_the_page_of_operations_is_not_implemented() -> None:
    with open_platform() as platform:
        route_table.cache_clear()  # another test may have seen the page, which is kept
        found = Endpoint(platform).handle(Request("GET", "/docs", "", [], iter(())))
        assert found.status == 501
        assert b"the part reports" in bytes(found.body)


@pytest.mark.parts
def test_a_command_ends_with_the_error_alone(tmp_path: Path) -> None:
    store = tmp_path / "yard.db"
    with open_platform(store) as platform:
        platform.evaluations.run("quiz", "echo", [{"prompt": "a", "expected": "a"}], project="demo")
    result = CliRunner().invoke(main, ["runs", "report", "quiz", str(tmp_path / "r.html"), "--store", str(store)])
    assert result.exit_code == 1
    assert "the part reports" in result.output
    assert not (tmp_path / "r.html").exists()
