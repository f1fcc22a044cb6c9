"""What whoever waits for a run is shown of it: the count, the score and the rate, each once."""

import re
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.errors import InvalidInput
from modelyard.report.terminal import progress_bar

ROWS = [{"prompt": "yes", "expected": "yes"}] * 3


def test_the_bar_shows_the_count_the_score_and_the_rate_once(capsys: pytest.CaptureFixture[str]) -> None:
    with open_platform() as platform:
        platform.evaluations.run("e", "echo", ROWS, project="p", progress=True)
    last = capsys.readouterr().err.rstrip("\n").split("\r")[-1]
    assert "3/3" in last
    assert "score=1" in last
    assert len(re.findall(r"/s\b|\bs/", last)) == 1


def test_the_bar_says_which_model_is_judged_on_what(capsys: pytest.CaptureFixture[str]) -> None:
    with open_platform() as platform:
        platform.evaluations.run("e", "echo", ROWS, project="p", progress=True)
    assert capsys.readouterr().err.startswith("\recho on e: ")


def test_the_bar_of_many_rows_is_not_drawn_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    with open_platform() as platform:
        platform.evaluations.run("e", "echo", ROWS * 500, project="p", progress=True, concurrency=1)
    assert capsys.readouterr().err.count("\r") < 500


def test_the_rate_of_the_bar_leaves_out_what_was_there_before(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("label") as show:
        show(1_000_000, 1_000_001, {})
    assert "1000000/1000001 [" in (last := capsys.readouterr().err.rstrip("\n").split("\r")[-1])
    assert "?step/s" in last


@pytest.mark.parametrize("wrong", [5, None, "yes"])
def test_what_is_no_progress_is_refused_before_there_is_a_run(wrong: Any) -> None:
    with open_platform() as platform:
        with pytest.raises(InvalidInput, match="progress: must be True for a bar, or a function"):
            platform.evaluations.run("e", "echo", ROWS, project="p", progress=wrong)
        assert list(platform.evaluations.runs.list(project="p")) == []


def test_without_the_bar_installed_there_is_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with open_platform() as platform:
        with pytest.raises(ImportError, match="needs tqdm"):
            platform.evaluations.run("e", "echo", ROWS, project="p", progress=True)
        assert list(platform.evaluations.runs.list(project="p")) == []


def test_a_function_is_told_the_rate_of_the_rows_that_this_call_has_done() -> None:
    told: list[tuple[int, Mapping[str, float]]] = []
    calls = iter(range(10))

    def model(row: Mapping[str, Any]) -> str:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return "yes"

    with open_platform() as platform:
        with pytest.raises(KeyboardInterrupt):
            platform.evaluations.run("e", model, ROWS, project="p", concurrency=1)
        (run,) = platform.evaluations.runs.list(project="p")
        platform.evaluations.resume(run.id, model=model, progress=lambda done, _, numbers: told.append((done, numbers)))
    assert [done for done, _ in told] == [2, 3]
    assert told[0][1]["rows/s"] == 0.0  # two were there before
    assert told[1][1]["rows/s"] > 0
