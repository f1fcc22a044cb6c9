"""The example of local RL learns within its rounds, and saves its plot."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "reinforce_local.py"


def test_the_example_learns_and_saves_its_plot(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, EXAMPLE, "plot.svg"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rewards = [float(reward) for reward in re.findall(r"mean reward ([\d.]+)", done.stdout)]
    assert rewards[0] < 0.15
    assert sum(rewards[-5:]) / 5 > 0.6
    assert (tmp_path / "plot.svg").read_text().startswith("<svg")
