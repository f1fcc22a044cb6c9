"""Lanes without pins: each in the newest releases, on the newest Python that all of them allow, and what moved."""

import json
import subprocess
import tempfile
from pathlib import Path

import lanes

HELD = ("torch",)
"""What keeps its pin, and the lane its Python: another build is gigabytes, and not there for every Python."""


def run_all(pins: list[Path]) -> bool:
    """Run these lanes one after the other, and print a table. Returns whether all passed."""
    rows, passed = [], True
    for one in pins:
        with tempfile.TemporaryDirectory() as scratch:
            python, failures = resolved(one, Path(scratch) / "environment")
            ran = python is not None and lanes.run(one, python)
            passed &= ran
            rows.append(row(one, python, "passes" if ran else failures or "fails"))
    print("| lane | Python | moved | |\n| --- | --- | --- | --- |")
    print("\n".join(rows))
    return passed


def resolved(pins: Path, home: Path) -> tuple[Path | None, str]:
    """Make the environment of a lane on the newest Python on which all of it installs; else also say why not."""
    groups = [[unpinned(line) for line in group if line] for group in lanes.groups(pins)]
    held = any(line.startswith(HELD) for group in groups for line in group)
    known = [lanes.python_for(pins)] if held else lanes.pythons_for(pins)
    failure = ""
    for python in reversed(known):
        try:
            lanes.make(home, python, groups)
        except subprocess.CalledProcessError as error:
            failure = f"does not install: {error}"
        else:
            return home / "bin" / "python", ""
    return None, failure


def unpinned(line: str) -> str:
    """Return a requirement without its version, unless it is held."""
    name = line.partition("==")[0]
    return line if name.partition("[")[0] in HELD else name


def row(pins: Path, python: Path | None, outcome: str) -> str:
    """Return the line of a lane in the table."""
    name = pins.stem.removeprefix("lane-")
    if python is None:
        return f"| `{name}` | | | {outcome} |"
    listed = subprocess.run([python, "-m", "pip", "list", "--format", "json"], **lanes.QUIETLY)
    now = {one["name"].lower().replace("_", "-"): one["version"] for one in json.loads(listed.stdout)}
    moved = [
        f"{package} {before} to {now[key]}"
        for line in (line for group in lanes.groups(pins) for line in group if "==" in line)
        for package, _, before in [line.partition("==")]
        if (key := package.partition("[")[0].lower().replace("_", "-")) in now and now[key] != before
    ]
    return f"| `{name}` | {lanes.version_of(str(python))} | {', '.join(moved) or 'nothing'} | {outcome} |"
