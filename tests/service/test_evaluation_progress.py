"""What whoever waits for a run is shown of it: the count, the score and the rate, each once."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from modelyard import open_platform

ROWS = [{"prompt": "yes", "expected": "yes"}] * 3


def test_the_bar_shows_the_count_the_score_and_the_rate_once(capsys: pytest.CaptureFixture[str]) -> None:
    with open_platform() as platform:
        platform.evaluations.run("e", "echo", ROWS, project="p", progress=True)
    last = capsys.readouterr().err.rstrip("\n").split("\r")[-1]
    assert "3/3" in last
    assert "score=1" in last
    assert len(re.findall(r"/s\b|\bs/", last)) == 1


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
        (run,) = platform.evaluations.list(project="p")
        platform.evaluations.resume(run.id, model=model, progress=lambda done, _, numbers: told.append((done, numbers)))
    assert [done for done, _ in told] == [2, 3]
    assert told[0][1]["rows/s"] == 0.0  # two were there before
    assert told[1][1]["rows/s"] > 0
