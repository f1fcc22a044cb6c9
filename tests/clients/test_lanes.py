"""What the lanes install, on which Python, and what is kept and printed of it."""

import asyncio
import platform
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

PINS = """# tests: test_a.py
# with: -W ignore
one==1.0
two[extra,more]==2.0,<3,!=2.5

--no-deps
three.x==3.0
"""


@pytest.fixture
def newest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The module, with pip, tests and Pythons replaced. `installs` is what was asked for, `fails` where pip fails."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    for name in ("lanes", "newest_lanes"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module: Any = import_module("newest_lanes")
    module.installs, module.fails, module.says = [], [], (0, "..\n7 passed, 1 skipped in 3.21s\n")

    def made(home: Path, interpreter: str, installed: list[list[str]]) -> Path:
        asked = (interpreter, [line for group in installed for line in group])
        module.installs.append(asked)
        home.mkdir(parents=True, exist_ok=True)
        if (interpreter, ">=" in asked[1][0]) in module.fails:
            raise subprocess.CalledProcessError(1, "pip", stderr="WARNING: a\nERROR: none for | one\nERROR: more\n")
        return home / "bin" / "python"

    def versions(*_: object, **__: object) -> str:
        return '{"one": "1.5", "two": "2.0", "three.x": "4", "torch": "2.0"}'

    monkeypatch.setenv("MODELYARD_ENVS", str(tmp_path / "envs"))
    monkeypatch.setattr(module.lanes, "pythons", lambda: [((3, 12), "old"), ((3, 13), "new")])
    monkeypatch.setattr(module.lanes, "version_of", {"old": "3.12", "new": "3.13", sys.executable: "3.11"}.get)
    monkeypatch.setattr(module.lanes, "python_for", lambda _: sys.executable)
    monkeypatch.setattr(module.lanes, "made", made)
    monkeypatch.setattr(module.lanes, "tested", lambda *_: subprocess.CompletedProcess("pytest", *module.says))
    monkeypatch.setattr(subprocess, "check_output", versions)
    yield module
    for name in ("lanes", "newest_lanes"):
        sys.modules.pop(name, None)


@pytest.fixture
def pins(tmp_path: Path) -> Path:
    pins = tmp_path / "lane-some.txt"
    pins.write_text(PINS)
    return pins


def test_what_is_pinned_is_taken_without_its_version_and_the_rest_stays(newest: Any) -> None:
    group = ["one==1.0", "two[extra,more]==2.0,<3,!=2.5", "--no-deps", "torch==2.0"]
    assert newest.loosened(group, floors=False) == ["one", "two[extra,more]<3,!=2.5", "--no-deps", "torch==2.0"]
    floors = ["one>=1.0", "two[extra,more]>=2.0,<3,!=2.5", "--no-deps", "torch==2.0"]
    assert newest.loosened(group, floors=True) == floors


def test_every_line_of_every_lane_is_an_option_or_a_pin(newest: Any) -> None:
    for pins in Path(__file__).parent.glob("lane-*.txt"):
        for line in (line for group in newest.lanes.groups(pins) for line in group):
            assert line == "--no-deps" or newest.PIN.fullmatch(line), (pins.name, line)


def test_the_newest_python_comes_first(newest: Any, pins: Path) -> None:
    found = newest.run(pins)
    assert newest.installs == [("new", ["one>=1.0", "two[extra,more]>=2.0,<3,!=2.5", "--no-deps", "three.x>=3.0"])]
    assert (found.lane, found.python, found.passed, found.cause) == ("some", "3.13", True, "")
    assert found.moved == (("one", "1.0", "1.5"), ("three.x", "3.0", "4"))
    assert newest.table([found]).splitlines()[2:] == [
        "| `some` | one | 1.0 | 1.5 | 3.13 | pass: 7 passed, 1 skipped |  |",
        "| `some` | three.x | 3.0 | 4 | 3.13 | pass: 7 passed, 1 skipped |  |",
    ]


def test_an_older_python_is_taken_before_an_older_package(newest: Any, pins: Path) -> None:
    newest.fails = [("new", True)]
    found = newest.run(pins)
    assert (found.python, found.passed) == ("3.12", True)
    assert found.cause == "3.13 from the pins on: ERROR: none for \\| one"
    newest.fails = [("new", True), ("old", True)]
    found = newest.run(pins)
    assert (found.python, newest.installs[-1][1][0]) == ("3.13", "one")


def test_the_least_python_of_a_lane_is_kept(newest: Any, pins: Path) -> None:
    newest.fails = [("new", True), ("new", False)]
    pins.write_text(f"# python: 3.13\n{PINS}")
    assert not newest.run(pins).passed


def test_a_lane_that_nothing_installs_has_failed(newest: Any, pins: Path) -> None:
    newest.fails = [(python, floors) for python in ("new", "old") for floors in (True, False)]
    found = newest.run(pins)
    assert (found.python, found.passed, found.result, found.cause.count("none for")) == ("", False, "not installed", 4)
    assert "| FAIL: not installed |" in newest.table([found])


def test_a_failed_test_is_the_cause(newest: Any, pins: Path) -> None:
    newest.says = (1, "F.\nFAILED ../tests/test_a.py::test_b - assert 1 == 2\nFAILED test_c\n2 failed in 1s\n")
    found = newest.run(pins)
    assert (found.passed, found.result) == (False, "2 failed")
    assert found.cause == "FAILED test_a.py::test_b - assert 1 == 2"


def test_a_build_keeps_its_lane_on_this_python(newest: Any, pins: Path) -> None:
    pins.write_text(f"torch==2.0\n\n{PINS}")
    newest.run(pins)
    assert [python for python, _ in newest.installs] == [sys.executable]


def test_environments_of_other_days_are_removed_and_those_of_other_lanes_are_not(newest: Any, pins: Path) -> None:
    home = newest.lanes.environments() / "newest"
    for name in ("some-0123456789abcdef", "some-old-0123456789abcdef", "npm-0123456789abcdef"):
        (home / name).mkdir(parents=True)
    newest.run(pins)
    names = {each.name for each in home.iterdir()}
    assert {"some-old-0123456789abcdef", "npm-0123456789abcdef"} <= names
    assert "some-0123456789abcdef" not in names
    assert len(names) == 3


@pytest.mark.slow
def test_what_a_lane_has_installed_is_kept(newest: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(newest.lanes, "LOCKS", tmp_path / "locks")
    newest.lanes.keep_lock("lane-some", Path(sys.executable))
    head, *lines = (tmp_path / "locks" / "lane-some.txt").read_text(encoding="utf-8").splitlines()
    assert head == f"# Python {platform.python_version()}"
    assert f"pytest=={pytest.__version__}" in lines


SHIPPED = ("serve", "upstream", "postgres", "progress", "objects", "otel")
"""The extras that add to a platform, but for those of torch, whose lane takes minutes to install."""


def test_the_lower_bounds_are_the_versions_that_the_lane_of_the_lowest_runs() -> None:
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = (one for name in SHIPPED for one in project["optional-dependencies"][name])
    bounds = dict.fromkeys([*project["dependencies"], *extras])
    assert all(re.fullmatch(r"[\w\[\]-]+>=[\d.]+", one) for one in bounds), "an upper bound needs a reason"
    lowest = (root / "tests" / "clients" / "lane-lowest.txt").read_text(encoding="utf-8")
    pins = [line for line in lowest.partition("\n\n")[0].splitlines() if not line.startswith("#")]
    assert sorted(one.replace(">=", "==") for one in bounds) == sorted(pins)


# ---- connections of clients ------------------------------------------------------------------------------------------


def test_a_connection_ends_with_its_event_loop() -> None:
    """Else it is found by the garbage collector, whose warning fails any test that runs by then (`conftest.py`)."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        async def connect() -> asyncio.BaseTransport:
            loop = asyncio.get_running_loop()
            return (await loop.create_connection(asyncio.Protocol, *listener.getsockname()))[0]

        assert asyncio.run(connect()).get_extra_info("socket").fileno() == -1
