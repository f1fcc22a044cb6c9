"""A worker that has ended by itself ends the process of its command, with a line and a status."""

import subprocess
import sys
from pathlib import Path

import pytest

BROKEN = """
import sys, threading
from modelyard import clock
from modelyard.cli import main

wait = clock.SystemClock.wait

def broken(self, event, seconds):
    if threading.current_thread().name == sys.argv[1]:
        raise SystemExit("the clock has stopped")
    return wait(self, event, seconds)

clock.SystemClock.wait = broken
main(sys.argv[2:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("thread", ["modelyard-worker", "modelyard-heartbeat"])
@pytest.mark.parametrize("command", [["work"], ["serve", "--worker", "--port", "0"]])
def test_a_command_does_not_outlive_its_worker(yard_file: Path, command: list[str], thread: str) -> None:
    arguments = [thread, *command, "--store", str(yard_file)]
    ran = subprocess.run(
        [sys.executable, "-c", BROKEN, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 1, ran.stderr
    assert "has ended by itself" in ran.stderr.splitlines()[-1]
