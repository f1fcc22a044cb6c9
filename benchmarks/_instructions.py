"""Instructions that a call of a workload executes, counted by valgrind's cachegrind: neighbours change nothing in them.

One process loads what is needed and forks twice for each workload: a count is that of the fork which makes the calls,
less that of the one which only prepares for them.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

WORKLOADS = Path(__file__).parent / "_workloads.py"
CALLS = 50
CACHEGRIND = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")
_COUNT = re.compile(r"==(\d+)== I\s+refs:\s+([\d,]+)")


def can_count() -> bool:
    """Whether valgrind is installed."""
    return shutil.which("valgrind") is not None


def install() -> None:
    """Install valgrind where it is missing. Raises `SystemExit` where that does not succeed."""
    if can_count():
        return
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "valgrind"]):
        subprocess.run([*as_root, *command], check=False, stdout=subprocess.DEVNULL)
    if not can_count():
        raise SystemExit("instructions cannot be counted: install valgrind (apt-get install valgrind)")


def environment(source: Path) -> dict[str, str]:
    """The environment of a workload that runs the `modelyard` in this folder, without anything else that varies."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(source), "PYTHONHASHSEED": "0"}


def per_call(source: Path, names: Sequence[str]) -> dict[str, int]:
    """Instructions a call of these workloads, with the `modelyard` in a folder. Raises `SystemExit` when one fails."""
    return {
        name: round(cost)
        for name, cost in counted([sys.executable, str(WORKLOADS), str(CALLS), *names], source, CALLS).items()
    }


def counted(command: Sequence[str], source: Path, calls: int) -> dict[str, float]:
    """Instructions a call, of a program that prints lines: a name, and the processes that made no calls and so many."""
    _run(command, source)  # compiles what is imported
    done = _run([*CACHEGRIND, *command], source)
    counts = {pid: int(count.replace(",", "")) for pid, count in _COUNT.findall(done.stderr)}
    forks = [line.split() for line in done.stdout.splitlines()]
    return {name: (counts[called] - counts[prepared]) / calls for name, prepared, called in forks}


def _run(command: Sequence[str], source: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, env=environment(source), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done
