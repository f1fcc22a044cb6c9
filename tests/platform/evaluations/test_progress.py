"""What a caller that waits for a run is shown of it: the count, the score and the rate, each once."""

import re
import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
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


def test_the_bar_names_the_model_and_the_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    with open_platform() as platform:
        platform.evaluations.run("e", "echo", ROWS, project="p", progress=True)
    assert capsys.readouterr().err.startswith("\recho on e: ")


def test_the_bar_of_many_rows_is_not_drawn_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    with open_platform() as platform:
        platform.evaluations.run("e", "echo", ROWS * 100, project="p", progress=True, concurrency=1)
    assert capsys.readouterr().err.count("\r") < 100


def test_the_rate_of_the_bar_leaves_out_what_was_there_before(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("label") as show:
        show(1_000_000, 1_000_001, {})
    assert "1000000/1000001 [" in (last := capsys.readouterr().err.rstrip("\n").split("\r")[-1])
    assert "?step/s" in last


@pytest.mark.parametrize("wrong", [5, None, "yes"])
def test_what_is_not_progress_is_refused_before_there_is_a_run(wrong: Any) -> None:
    with open_platform() as platform:
        with pytest.raises(InvalidInput, match="progress: must be True for a bar, or a function"):
            platform.evaluations.run("e", "echo", ROWS, project="p", progress=wrong)
        assert list(platform.evaluations.runs.list(project="p")) == []


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_without_tqdm_a_few_lines_are_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with open_platform() as platform:
        platform.evaluations.run("e", "echo", ROWS * 100, project="p", progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 11
    assert lines[-1].startswith(f"echo on e: {len(ROWS) * 100} of {len(ROWS) * 100} rows, score ")
    with progress_bar("label") as show:
        for done in range(100):
            show(done, None, {})
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == [
        "0",
        "1",
        "2",
        "4",
        "8",
        "16",
        "32",
        "64",
    ]


def test_without_tqdm_one_line_of_a_terminal_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress_bar("label", "row") as show:
        show(1, 3, {"score": 0.5})
        show(3, 3, {})
    assert terminal.getvalue() == "\r\x1b[Klabel: 1 of 3 rows, score 0.5\r\x1b[Klabel: 3 of 3 rows, score 0.5\n"


def test_rows_that_were_stored_for_a_run_are_removed_where_it_is_refused(tmp_path: Path) -> None:
    with open_platform(tmp_path / "yard.db") as platform:
        with pytest.raises(InvalidInput, match="progress") as refused:
            platform.evaluations.run("e", "echo", ROWS, project="p", progress=5)  # type: ignore[arg-type]
        assert refused.value.__traceback__ is not None  # the frames, with the specs in them, are still held
        assert not [path for path in (tmp_path / "yard.db-artifacts").rglob("*") if path.is_file()]


def test_a_progress_function_gets_the_rate_of_the_rows_of_this_call() -> None:
    reported: list[tuple[int, Mapping[str, float]]] = []
    calls = iter(range(10))

    def model(row: Mapping[str, Any]) -> str:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return "yes"

    with open_platform() as platform:
        with pytest.raises(KeyboardInterrupt):
            platform.evaluations.run("e", model, ROWS, project="p", concurrency=1)
        (run,) = platform.evaluations.runs.list(project="p")
        platform.evaluations.resume(
            run.id, model=model, progress=lambda done, _, numbers: reported.append((done, numbers))
        )
    assert [done for done, _ in reported] == [2, 3]
    assert reported[0][1]["rows/s"] == 0.0  # two were there before
    assert reported[1][1]["rows/s"] > 0
