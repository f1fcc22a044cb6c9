"""Lanes in the newest releases of what they pin, on the newest Python that allows these, and what moved.

What a lane pins is installed without its version; what else a line demands (`openai==2.54.0,<3`) stays. The newest
Python is taken on which nothing is older than its pin; if there is none, the newest on which pip finds anything. These
environments are made anew each day.
"""

import hashlib
import json
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import lanes

HELD = ("torch",)
"""What keeps its pin, and the lane its Python: another build is gigabytes, and not there for every Python."""

PIN = re.compile(r"(?P<name>[\w.-]+)(?P<extras>\[[^]]*\])?==(?P<version>[^,;\s]+),?(?P<rest>.*)")
VERSIONS = """import importlib.metadata, json, sys
print(json.dumps({name: importlib.metadata.version(name).partition("+")[0] for name in sys.argv[1:]}))
"""
"""Without the name of a build."""

LONGEST_CAUSE = 160


@dataclass(frozen=True)
class Outcome:
    """How a lane does with the newest versions: without a Python nothing could be installed."""

    lane: str
    passed: bool
    result: str
    python: str = ""
    moved: tuple[tuple[str, str, str], ...] = ()
    """Package, the version that is pinned, and the one that was installed."""
    cause: str = ""
    """Of a failure, or of an older Python or version than there is."""


def run_all(pins: list[Path]) -> bool:
    """Run these lanes, three at a time, and print a table. Returns whether all passed."""
    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(run, pins))
    print(table(outcomes))
    return all(outcome.passed for outcome in outcomes)


def run(pins: Path) -> Outcome:
    """Run one lane's tests with the newest versions of what it pins."""
    lane = pins.stem.removeprefix("lane-")
    versions = {
        pin["name"]: pin["version"] for group in lanes.groups(pins) for line in group if (pin := PIN.match(line))
    }
    known = lanes.pythons_for(pins)
    candidates = [lanes.python_for(pins)] if set(HELD) & set(versions) else known[::-1]
    said = []
    for floors, interpreter in [(floors, python) for floors in (True, False) for python in candidates]:
        try:
            python = environment(lane, interpreter, [loosened(group, floors=floors) for group in lanes.groups(pins)])
        except subprocess.CalledProcessError as error:
            where = lanes.version_of(interpreter) + (" from the pins on" if floors else "")
            said.append(f"{where}: {first_error(error.stderr or '')}")
            continue
        now = json.loads(subprocess.check_output([python, "-c", VERSIONS, *versions], text=True))
        moved = tuple((name, pin, now[name]) for name, pin in versions.items() if now[name] != pin)
        done = lanes.tested(pins, python)
        cause = said if done.returncode == 0 else [*said, first_error(done.stdout)]
        version = lanes.version_of(interpreter)
        return Outcome(lane, done.returncode == 0, summary(done.stdout), version, moved, "; ".join(cause))
    return Outcome(lane, passed=False, result="not installed", cause="; ".join(said))


def loosened(group: list[str], *, floors: bool) -> list[str]:
    """Return the pins of a group without their versions, or with these as the oldest."""
    return [_loosened(line, floors) for line in group]


def _loosened(line: str, floors: bool) -> str:
    pin = PIN.match(line)
    if not pin or pin["name"] in HELD:
        return line
    least = [f">={pin['version']}"] if floors else []
    return pin["name"] + (pin["extras"] or "") + ",".join([*least, *filter(None, [pin["rest"]])])


def environment(lane: str, interpreter: str, packages: list[list[str]]) -> Path:
    """Return the Python of a lane's environment of today, made now unless it is cached; those of other days go."""
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    digest = hashlib.sha256(json.dumps([packages, interpreter, day]).encode()).hexdigest()[:16]
    home = lanes.environments() / "newest" / f"{lane}-{digest}"
    python = lanes.made(home, interpreter, packages)
    for other in home.parent.glob(f"{lane}-{'[0-9a-f]' * len(digest)}"):
        if other != home:
            shutil.rmtree(other)
    return python


def first_error(text: str) -> str:
    """Return the first line that says what failed, of pip's or of pytest's."""
    lines = [line for line in text.splitlines() if re.match(r"ERROR[: ]|FAILED ", line)]
    line = (lines or text.splitlines()[-1:] or ["it says nothing"])[0]
    return re.sub(r"\S*/(?=test_)", "", line).replace("|", "\\|")[:LONGEST_CAUSE]


def summary(text: str) -> str:
    """Return how many tests passed, of pytest's last line."""
    last = (text.splitlines() or [""])[-1]
    return re.sub(r" in [\d.]+s.*", "", last).strip("= ")


def table(outcomes: list[Outcome]) -> str:
    """Return what moved, a package a row, in Markdown."""
    head = ["lane", "package", "pinned", "newest", "Python", "result", "cause"]
    rows = [
        [f"`{one.lane}`", *moved, one.python, ("pass: " if one.passed else "FAIL: ") + one.result, one.cause]
        for one in outcomes
        for moved in one.moved or [("nothing moved", "", "")]
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])
