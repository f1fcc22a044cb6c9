"""A short campaign of servers and workers killed while episodes run; the long one is run by hand (CONTRIBUTING.md)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.crash, pytest.mark.parts]

KILLS = 6


def test_servers_and_workers_killed_at_random_moments_lose_and_double_no_episode() -> None:
    """In a process of its own, which forks."""
    command = [sys.executable, str(Path(__file__).with_name("episode_campaign.py")), "--kills", str(KILLS)]
    ended = subprocess.run(command, stdout=subprocess.PIPE)
    report = json.loads(ended.stdout)
    assert (ended.returncode, report["for example"]) == (0, [])
    assert sum(report["kills"].values()) == KILLS
    assert min(report[word] for word in ("made", "answered", "rewarded", "queued")) > 0
