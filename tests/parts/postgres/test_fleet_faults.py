"""A short campaign of faults over two servers and two workers; long ones are run by hand (CONTRIBUTING.md)."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from postgres_server import PostgresServer
from sampled import in_campaign

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.crash


def campaign(*options: str) -> tuple[int, Any]:
    """Return the status and the report of a campaign in a process of its own, as it is run by hand."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.campaigns.fleet_faults", "--short", *options]
    ended = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    return ended.returncode, json.loads(ended.stdout)


@pytest.mark.parametrize("faults", [4, in_campaign(8)])
@pytest.mark.parametrize("store", ["postgresql", "sqlite"])
def test_a_fleet_under_faults_loses_nothing_that_it_answered(postgres: PostgresServer, store: str, faults: int) -> None:
    status, report = campaign("--faults", str(faults), "--store", store)
    assert (status, report["broken"]) == (0, [])
    assert sum(report["faults"].values()) == faults
    assert report["acknowledged"]["completions"] > 0


def test_a_file_that_is_lost_is_found_out() -> None:
    status, report = campaign("--faults", "2", "--store", "sqlite", "--sabotage", "lose a file")
    assert status == 1
    assert all("is missing" in one or "was acknowledged" in one for one in report["broken"])
