"""Run the unmodified public clients against modelyard, and what needs torch, each in an environment of its own.

    python tests/clients/lanes.py                      every lane that this Python is new enough for
    python tests/clients/lanes.py openai-3 torch       these only
    python tests/clients/lanes.py --whole [lane ...]   with what has the marker `campaign`, too
    python tests/clients/lanes.py --list               their names and test modules
    python tests/clients/lanes.py --newest [lane ...]  with the newest versions of all, on the newest Python that these
                                                       allow; ends with a table of what moved (newest_lanes.py)

A lane is a file of pins, `lane-<name>.txt`, whose first line names its test modules. Pins after an empty line are
installed when those before it are there. Its environment is cached by the digest of the pins and of the Python version,
in $MODELYARD_ENVS or the user's cache folder. A lane that cannot be installed fails; none is skipped.

What each has installed is written to build/locks, of which pip makes the same environment again.

A line `# python: 3.12` names the least Python of a lane, for clients that do not know this one any more.

A lane whose second line names another as `beside` finds that one's Python in $MODELYARD_<NAME>_PYTHON, for servers
that need what the clients' users do not have. What it names after `with` are options of pytest.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import newest_lanes

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LOCKS = ROOT / "build" / "locks"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""For the small models of tests, processes that each compute on every core are twice as slow."""

QUIETLY: Mapping[str, Any] = {"capture_output": True, "text": True, "check": False}

PATIENCE = ("--timeout", "400")
"""Seconds that a test may take: what computes for ten seconds takes minutes on a machine that others use too."""

LONGEST_FIRST = ("art", "torch", "tinker", "ray", "generated", "browser", "lowest", "weave", "inspect", "objects")
"""So that no long one is left alone at the end."""

ONE_AT_A_TIME = threading.Lock()
"""Two lanes may want the same environment."""


def environments() -> Path:
    """Where environments are cached."""
    named = os.environ.get("MODELYARD_ENVS")
    return (
        Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "modelyard" / "envs"
    )


def environment(pins: Path) -> Path:
    """The Python of the lane's environment, made now unless it is cached."""
    python = python_for(pins)
    version = sys.version if python == sys.executable else version_of(python)
    digest = hashlib.sha256(pins.read_bytes() + version.encode()).hexdigest()[:16]
    return made(environments() / f"{pins.stem}-{digest}", python, groups(pins))


def made(home: Path, python: str, packages: Iterable[Sequence[str]]) -> Path:
    """The Python of an environment of groups of packages, each installed when those before it are there; made now
    unless it is cached. Raises `CalledProcessError` with what pip says.
    """
    with ONE_AT_A_TIME:
        if not (home / "complete").exists():
            shutil.rmtree(home, ignore_errors=True)
            subprocess.run([python, "-m", "venv", home], check=True)
            for group in packages:
                pip = [home / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *group]
                done = subprocess.run(pip, check=False, stderr=subprocess.PIPE, text=True)
                sys.stderr.write(done.stderr)
                done.check_returncode()
            (home / "complete").touch()
    return home / "bin" / "python"


def python_for(pins: Path) -> str:
    """This Python, or the oldest other that is new enough for a lane."""
    found = pythons_for(pins)
    if not found:
        raise SystemExit(f"{pins.stem} needs Python {named(pins, 'python')[0]} or newer, on the path or in pyenv")
    return sys.executable if sys.executable in found else found[0]


def fits(pins: Path) -> bool:
    """Whether this Python is new enough for a lane."""
    return sys.version_info >= least_python(pins)


def least_python(pins: Path) -> tuple[int, ...]:
    """The oldest Python that a lane can have."""
    return tuple(int(part) for part in (named(pins, "python") or ["3.11"])[0].split("."))


def pythons_for(pins: Path) -> list[str]:
    """The Pythons that are new enough for a lane, the oldest first."""
    return [python for version, python in pythons() if version >= least_python(pins)]


@cache
def pythons() -> list[tuple[tuple[int, ...], str]]:
    """The Pythons on the path and those of pyenv from 3.11 on, by their versions."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    names = [shutil.which(f"python3.{minor}") for minor in range(11, 20)]
    known = {sys.executable, *filter(None, names), *map(str, kept.glob("3.*/bin/python"))}
    found = [(tuple(map(int, version.split("."))), path) for path in known if (version := version_of(path))]
    return sorted(one for one in found if one[0] >= (3, 11))


def version_of(python: str) -> str:
    """The version of an interpreter, such as 3.12.1; "" for one that does not run or is not released."""
    said = subprocess.run([python, "-c", "import platform; print(platform.python_version())"], **QUIETLY)
    version = said.stdout.strip()
    return version if said.returncode == 0 and version.replace(".", "").isdigit() else ""


def groups(pins: Path) -> list[list[str]]:
    """The pins of a lane, those together that are installed together."""
    paragraphs = pins.read_text().split("\n\n")
    return [[line for line in lines.splitlines() if not line.startswith("#")] for lines in paragraphs]


def named(pins: Path, what: str) -> list[str]:
    """What a lane's line `# what: ...` names."""
    lines = pins.read_text().splitlines()
    return [word for line in lines if line.startswith(f"# {what}:") for word in line.partition(":")[2].split()]


def run(pins: Path, *options: str) -> bool:
    """Run one lane's tests, and print what they say when they are done. Returns whether they passed."""
    python = environment(pins)
    keep_lock(pins.stem, python)
    return tested(pins, python, *options).returncode == 0


def keep_lock(name: str, python: Path) -> None:
    """Copy what an environment has installed to `build/locks`, so that a run can be repeated with the same."""
    LOCKS.mkdir(parents=True, exist_ok=True)
    kept = LOCKS / f"{name}.txt"
    listed = environments() / python.parents[1].name / "lock.txt"  # which takes a second to find out
    if listed.exists():
        shutil.copyfile(listed, kept)
        return
    freeze = [python, "-m", "pip", "freeze", "--disable-pip-version-check"]
    installed = subprocess.run(freeze, check=True, capture_output=True, text=True).stdout
    kept.write_text(f"# Python {version_of(str(python))}\n{installed}", encoding="utf-8")
    if listed.parent.exists():
        shutil.copyfile(kept, listed)


def tested(pins: Path, python: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run one lane's tests in an environment, and print what they say when they are done."""
    modules = named(pins, "tests")
    beside = {
        f"MODELYARD_{name.upper()}_PYTHON": environment(HERE / f"lane-{name}.txt") for name in named(pins, "beside")
    }
    with tempfile.TemporaryDirectory() as scratch:
        pytest = [python, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", ROOT, *PATIENCE]
        paths = [str(ROOT / "src"), str(ROOT / "tests" / "shared")]
        done = subprocess.run(
            [*pytest, *named(pins, "with"), *options, *((HERE / module).resolve() for module in modules)],
            cwd=scratch,
            env={**os.environ, **beside, **ONE_THREAD, "COLUMNS": "240", "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    print(f"-- {pins.stem}: {' '.join(modules)}\n{done.stdout}", flush=True)
    return done


def arguments(known: Collection[str]) -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lanes", nargs="*", metavar="lane", help=f"one of {', '.join(known)}")
    parser.add_argument("--newest", action="store_true", help="resolve without pins, and print what moved")
    parser.add_argument("--whole", action="store_true", help="also try what has the marker `campaign`")
    parser.add_argument("--list", action="store_true", help="print the lanes and their test modules, and run none")
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
    usual = [name for name in dict.fromkeys([*LONGEST_FIRST, *known]) if name in known and fits(known[name])]
    lanes = [known[name] for name in requested.lanes or (known if requested.newest else usual)]
    if left_out := [] if requested.lanes or requested.newest else sorted(known.keys() - set(usual)):
        print(f"-- left out, as they need a newer Python than this; run them by name: {', '.join(left_out)}")
    if requested.newest:
        return 0 if newest_lanes.run_all(lanes) else 1
    with ThreadPoolExecutor(3) as pool:
        options = ["--whole"] if requested.whole else []
        return 0 if all(list(pool.map(lambda pins: run(pins, *options), lanes))) else 1


if __name__ == "__main__":
    raise SystemExit(main())
