"""Run the unmodified public clients against modelyard, and what needs torch, each in an environment of its own.

    python tests/clients/lanes.py                      every lane
    python tests/clients/lanes.py openai-3 torch       these only
    python tests/clients/lanes.py --list               their names and test modules
    python tests/clients/lanes.py --newest [lane ...]  with the newest versions of all, and a table of what moved

A lane is a file of pins, `lane-<name>.txt`, whose first line names its test modules. Pins after an empty line are
installed when those before it are there. Its environment is cached by the digest of the pins and of the Python version,
in $MODELYARD_ENVS or the user's cache folder. A lane that cannot be installed fails; none is skipped.

A lane whose second line names another as `beside` finds that one's Python in $MODELYARD_<NAME>_PYTHON, for servers
that need what the clients' users do not have. What it names after `with` are options of pytest.

`--newest` installs what a lane pins without the versions; what else a line demands (`openai==2.54.0,<3`) stays. It
takes the newest Python on which nothing is older than its pin, or, if there is none, the newest on which pip finds
anything. These environments are made anew each day.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""For the small models of tests, processes that each compute on every core are twice as slow."""

PATIENCE = ("--timeout", "400")
"""Seconds that a test may take: what computes for ten seconds takes minutes on a machine that others use too."""

LONGEST_FIRST = ("art", "torch", "tinker", "ray", "objects", "browser")
"""So that no long one is left alone at the end."""

ONE_AT_A_TIME = threading.Lock()
"""Two lanes may want the same environment."""

PIN = re.compile(r"(?P<name>[\w.-]+)(?P<extras>\[[^]]*\])?==(?P<version>[^,;\s]+),?(?P<rest>.*)")

BUILDS = ("torch",)
"""Which build of them is installed depends on the machine: they stay at their pins, and their lanes on this Python."""

VERSIONS = (
    "import json, sys; from importlib.metadata import version; print(json.dumps({n: version(n) for n in sys.argv[1:]}))"
)


def environments() -> Path:
    """Where environments are cached."""
    named = os.environ.get("MODELYARD_ENVS")
    return (
        Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "modelyard" / "envs"
    )


def environment(pins: Path) -> Path:
    """The Python of the lane's environment, made now unless it is cached."""
    digest = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()[:16]
    return made(environments() / f"{pins.stem}-{digest}", sys.executable, groups(pins))


def made(home: Path, interpreter: str, installed: list[list[str]]) -> Path:
    """The Python of an environment, made now unless it is there. Raises `CalledProcessError` with what pip says."""
    with ONE_AT_A_TIME:
        if not (home / "complete").exists():
            shutil.rmtree(home, ignore_errors=True)
            subprocess.run([interpreter, "-m", "venv", home], check=True)
            for group in installed:
                pip = [home / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *group]
                done = subprocess.run(pip, check=False, stderr=subprocess.PIPE, text=True)
                sys.stderr.write(done.stderr)
                done.check_returncode()
            (home / "complete").touch()
    return home / "bin" / "python"


def groups(pins: Path) -> list[list[str]]:
    """The pins of a lane, those together that are installed together."""
    paragraphs = pins.read_text().split("\n\n")
    return [[line for line in lines.splitlines() if not line.startswith("#")] for lines in paragraphs]


def named(pins: Path, what: str) -> list[str]:
    """What a lane's line `# what: ...` names."""
    lines = pins.read_text().splitlines()
    return [word for line in lines if line.startswith(f"# {what}:") for word in line.partition(":")[2].split()]


def run(pins: Path) -> bool:
    """Run one lane's tests, and print what they say when they are done. Returns whether they passed."""
    return tested(pins, environment(pins)).returncode == 0


def tested(pins: Path, python: Path) -> "subprocess.CompletedProcess[str]":
    """Run one lane's tests in an environment, and print what they say when they are done."""
    modules = named(pins, "tests")
    beside = {
        f"MODELYARD_{name.upper()}_PYTHON": environment(HERE / f"lane-{name}.txt") for name in named(pins, "beside")
    }
    with tempfile.TemporaryDirectory() as scratch:
        pytest = [python, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", ROOT, *PATIENCE]
        paths = [str(ROOT / "src"), str(ROOT / "tests" / "shared")]
        done = subprocess.run(
            [*pytest, *named(pins, "with"), *((HERE / module).resolve() for module in modules)],
            cwd=scratch,
            env={**os.environ, **beside, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    print(f"-- {pins.stem}: {' '.join(modules)}\n{done.stdout}", flush=True)
    return done


@dataclass(frozen=True)
class Newest:
    """How a lane does with the newest versions of what it pins."""

    lane: str
    python: str
    """Its version, or empty if nothing could be installed."""
    moved: dict[str, tuple[str, str]]
    """By package, the version that is pinned and the one that was installed."""
    passed: bool
    result: str
    cause: str
    """Of a failure, or of an older Python or version than there is."""


def interpreters() -> list[tuple[str, str]]:
    """The Pythons of this machine that modelyard names as supported, newest first: version and path."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    supported = sorted((int(minor) for minor in re.findall(r":: 3\.(\d+)\b", " ".join(classifiers))), reverse=True)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = []
    for minor in supported:
        candidates = [shutil.which(f"python3.{minor}"), *sorted(map(str, pyenv.glob(f"3.{minor}.*/bin/python")))]
        works = (
            path for path in candidates if path and not subprocess.call([path, "-c", ""], stderr=subprocess.DEVNULL)
        )
        found += [(f"3.{minor}", path) for path in [next(works, None)] if path]
    return found


def loosened(group: list[str], *, floors: bool) -> list[str]:
    """The pins of a group without their versions, or with them as the oldest. What else a line demands stays."""

    def one(line: str) -> str:
        pin = PIN.fullmatch(line)
        if not pin or pin["name"] in BUILDS:
            return line
        least = [f">={pin['version']}"] if floors else []
        return pin["name"] + (pin["extras"] or "") + ",".join([*least, *filter(None, [pin["rest"]])])

    return [one(line) for line in group]


def newest(pins: Path) -> Newest:
    """Run one lane's tests with the newest versions of what it pins."""
    lane = pins.stem.removeprefix("lane-")
    versions = {pin["name"]: pin["version"] for group in groups(pins) for line in group if (pin := PIN.fullmatch(line))}
    here = f"3.{sys.version_info.minor}"
    candidates = [(here, sys.executable)] if set(BUILDS) & set(versions) else interpreters()
    said = []
    for floors, (version, interpreter) in [(floors, python) for floors in (True, False) for python in candidates]:
        wanted = [loosened(group, floors=floors) for group in groups(pins)]
        day = f"{datetime.now(UTC):%Y-%m-%d}"
        digest = hashlib.sha256(json.dumps([wanted, interpreter, day]).encode()).hexdigest()[:16]
        try:
            python = made(environments() / "newest" / f"{lane}-{digest}", interpreter, wanted)
        except subprocess.CalledProcessError as error:
            said.append(f"{version}{' from the pins on' if floors else ''}: {first_error(error.stderr or '')}")
            continue
        for old in python.parent.parent.parent.glob(f"{lane}-{'[0-9a-f]' * len(digest)}"):
            if not old.name.endswith(digest):
                shutil.rmtree(old)
        installed = json.loads(subprocess.check_output([python, "-c", VERSIONS, *versions], text=True))
        moved = {name: (pin, installed[name]) for name, pin in versions.items() if installed[name] != pin}
        done = tested(pins, python)
        passed = done.returncode == 0
        cause = said if passed else [*said, first_error(done.stdout)]
        return Newest(lane, version, moved, passed, summary(done.stdout), "; ".join(cause))
    return Newest(lane, "", {}, passed=False, result="not installed", cause="; ".join(said))


def first_error(text: str) -> str:
    """The first line that says what failed, of pip's or of pytest's: at most 160 characters."""
    lines = [line for line in text.splitlines() if re.match(r"ERROR[: ]|FAILED ", line)]
    return (lines or text.splitlines()[-1:] or ["it says nothing"])[0].replace("|", "\\|")[:160]


def summary(text: str) -> str:
    """How many tests passed, of pytest's last line."""
    last = (text.splitlines() or [""])[-1]
    return re.sub(r" in [\d.]+s.*", "", last).strip("= ")


def table(lanes: list[Newest]) -> str:
    """What moved, a package a row, in Markdown."""
    head = ["lane", "package", "pinned", "newest", "Python", "result", "cause"]
    rows = [
        [
            lane.lane,
            package,
            pinned,
            now,
            lane.python,
            ("pass: " if lane.passed else "FAIL: ") + lane.result,
            lane.cause,
        ]
        for lane in lanes
        for package, (pinned, now) in (lane.moved or {"nothing moved": ("", "")}).items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def arguments(known: Collection[str]) -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lanes", nargs="*", metavar="lane", help=f"one of {', '.join(known)}")
    parser.add_argument("--list", action="store_true", help="print the lanes and their test modules, and run none")
    parser.add_argument(
        "--newest", action="store_true", help="with the newest versions, and print a table of what moved"
    )
    requested = parser.parse_args()
    if unknown := set(requested.lanes).difference(known):
        parser.error(f"there is no lane {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return requested


def main() -> int:
    """Run the named lanes, or all, three at a time: they often wait for servers."""
    known = {pins.stem.removeprefix("lane-"): pins for pins in sorted(HERE.glob("lane-*.txt"))}
    requested = arguments(known)
    if requested.list:
        print("\n".join(f"{name}: {' '.join(named(pins, 'tests'))}" for name, pins in known.items()))
        return 0
    first = [name for name in LONGEST_FIRST if name in known]
    lanes = [known[name] for name in requested.lanes or dict.fromkeys([*first, *known])]
    with ThreadPoolExecutor(3) as pool:
        if requested.newest:
            outcomes = list(pool.map(newest, lanes))
            print(table(outcomes))
            return 0 if all(outcome.passed for outcome in outcomes) else 1
        return 0 if all(list(pool.map(run, lanes))) else 1


if __name__ == "__main__":
    raise SystemExit(main())
