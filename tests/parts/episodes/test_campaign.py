"""A short campaign of scripted episodes, and that it finds what is done wrongly; the long one is run by hand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sampled import sampled

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
SABOTAGES = (
    "continue any",
    "lose a turn",
    "mix the log-probabilities",
    "train twice",
    "train words of tools",
    "trust the length",
)


def campaign(*options: str) -> tuple[int, str]:
    """Return the status and the report of a campaign in a process of its own, as it is run by hand."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.campaigns.episodes", "--episodes", "24", *options]
    ended = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    return ended.returncode, ended.stdout.decode()


def test_what_is_trained_is_what_was_sampled() -> None:
    status, report = campaign()
    assert (status, "'tokens that differ': 0, 'trained, and not sampled': 0" in report) == (0, True)


@pytest.mark.parametrize("sabotage", sampled(SABOTAGES, 3))
def test_what_is_done_wrongly_is_found(sabotage: str) -> None:
    status, report = campaign("--sabotage", sabotage)
    assert (status, "tokens differ" in report) == (1, True)
