"""The example of local RL learns within its rounds, and saves its plot."""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "reinforce_local.py"


def test_the_example_learns_and_saves_its_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: a fresh one would spend as much time on loading torch again as on learning."""
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(tmp_path / "plot.svg")])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    rewards = [float(reward) for reward in re.findall(r"mean reward ([\d.]+)", capsys.readouterr().out)]
    assert rewards[0] < 0.15
    assert sum(rewards[-5:]) / 5 > 0.6
    assert (tmp_path / "plot.svg").read_text().startswith("<svg")
