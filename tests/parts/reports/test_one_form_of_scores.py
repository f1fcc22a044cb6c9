"""A score has one form at every door: of rows that pass or fail per cent, else four digits."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import host
from modelyard.http.message import Request
from modelyard.parts.dashboard.app import Dashboard
from modelyard.platform.evaluations.result import EvaluationResult
from modelyard.report.numbers import score_text

ROWS = [{"prompt": str(number), "expected": str(number if number % 3 else "no")} for number in range(7)]


def third(output: str, row: Any) -> float:
    return 4 / 7


FORMS: Any = {"of bools": ("exact_match", "57.1 %"), "of numbers": ({"third": third}, "0.5714")}


@attrs.frozen
class Scored:
    platform: Platform
    path: Path
    result: EvaluationResult
    form: str

    @property
    def run(self) -> EvaluationRun:
        return self.result.run


@pytest.fixture(params=[*FORMS], scope="module")
def scored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scored]:
    scorer, form = FORMS[request.param]
    path = tmp_path_factory.mktemp("yard") / "yard.db"
    with open_platform(path, project="desk") as platform:
        platform.models.create("bot", base_model="tabular-mini")
        platform.evaluations.run("quiz", "desk/bot", ROWS, scorer)
        yield Scored(platform, path, platform.evaluations.run("quiz", "echo", ROWS, scorer), form)


def page(platform: Platform, path: str) -> str:
    response = Dashboard(platform, reader=host()).handle(
        Request("GET", f"/dashboard/{path}", "", [("host", "127.0.0.1")], iter(()))
    )
    body: Any = response.body
    return (body if isinstance(body, bytes) else b"".join(body)).decode()


def test_python_says_it_so(scored: Scored) -> None:
    report = scored.platform.evaluations.report(scored.run)
    metric = report.metric(scored.run.summary["scorer"])  # type: ignore[index]
    for said in (repr(scored.result), str(report), str(metric), score_text(scored.run)):
        assert scored.form in said
    gate = scored.platform.evaluations.gate(scored.result, {metric.name: 0.25})
    assert scored.form in str(gate)
    assert ("25.0 %" if "%" in scored.form else "0.25 ") in str(gate)


def test_reports_say_it_so(scored: Scored, tmp_path: Path) -> None:
    report = scored.platform.evaluations.report(scored.run)
    for name in ("report.html", "report.md"):
        report.save(tmp_path / name)
        assert scored.form in (tmp_path / name).read_text(encoding="utf-8")
    assert scored.form in report._repr_html_()


def test_the_command_line_says_it_so(scored: Scored) -> None:
    store = ["--store", str(scored.path)]
    told = CliRunner().invoke(main, ["runs", "list", *store, "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)[0]["score"] == scored.result.score
    assert scored.form in CliRunner().invoke(main, ["runs", "list", *store]).stdout
    assert scored.form in CliRunner().invoke(main, ["runs", "show", scored.run.id, *store]).stdout


def test_the_dashboard_says_it_so(scored: Scored) -> None:
    (model,) = scored.platform.models.list()
    trained = "0.0 %" if "%" in scored.form else scored.form
    pages = {"runs": scored.form, f"runs/{scored.run.id}": scored.form, f"models/{model.id}": trained}
    for path, form in {**pages, f"models/{model.id}/0": trained}.items():
        shown = page(scored.platform, path)
        assert f">{form}<" in shown or f" {form} by" in shown, path


def test_a_run_that_was_stored_without_its_kind_is_shown_as_a_number(scored: Scored) -> None:
    summary = {name: value for name, value in (scored.run.summary or {}).items() if name != "kind"}
    assert score_text(attrs.evolve(scored.run, summary=summary)) == "0.5714"
    assert score_text(attrs.evolve(scored.run, summary=None)) == "–"
