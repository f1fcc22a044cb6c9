"""What `lanes.py --newest` installs, on which Python, and what it prints."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
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
def lanes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The module, with pip, tests and Pythons replaced. `installs` is what was asked for, `fails` where pip fails."""
    spec = spec_from_file_location("lanes", Path(__file__).with_name("lanes.py"))
    assert spec is not None
    assert spec.loader is not None
    module: Any = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lanes", module)
    spec.loader.exec_module(module)
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
    monkeypatch.setattr(module, "interpreters", lambda: [("3.13", "new"), ("3.12", "old")])
    monkeypatch.setattr(module, "made", made)
    monkeypatch.setattr(module, "tested", lambda *_: subprocess.CompletedProcess("pytest", *module.says))
    monkeypatch.setattr(subprocess, "check_output", versions)
    return module


@pytest.fixture
def pins(tmp_path: Path) -> Path:
    pins = tmp_path / "lane-some.txt"
    pins.write_text(PINS)
    return pins


def test_what_is_pinned_is_taken_without_its_version_and_the_rest_stays(lanes: Any) -> None:
    group = ["one==1.0", "two[extra,more]==2.0,<3,!=2.5", "--no-deps", "torch==2.0"]
    assert lanes.loosened(group, floors=False) == ["one", "two[extra,more]<3,!=2.5", "--no-deps", "torch==2.0"]
    floors = ["one>=1.0", "two[extra,more]>=2.0,<3,!=2.5", "--no-deps", "torch==2.0"]
    assert lanes.loosened(group, floors=True) == floors


def test_every_line_of_every_lane_is_an_option_or_a_pin(lanes: Any) -> None:
    for pins in Path(__file__).parent.glob("lane-*.txt"):
        for line in (line for group in lanes.groups(pins) for line in group):
            assert line == "--no-deps" or lanes.PIN.fullmatch(line), (pins.name, line)


def test_the_newest_python_comes_first(lanes: Any, pins: Path) -> None:
    found = lanes.newest(pins)
    assert lanes.installs == [("new", ["one>=1.0", "two[extra,more]>=2.0,<3,!=2.5", "--no-deps", "three.x>=3.0"])]
    assert (found.lane, found.python, found.passed, found.cause) == ("some", "3.13", True, "")
    assert found.moved == {"one": ("1.0", "1.5"), "three.x": ("3.0", "4")}
    assert lanes.table([found]).splitlines()[2:] == [
        "| some | one | 1.0 | 1.5 | 3.13 | pass: 7 passed, 1 skipped |  |",
        "| some | three.x | 3.0 | 4 | 3.13 | pass: 7 passed, 1 skipped |  |",
    ]


def test_an_older_python_is_taken_before_an_older_package(lanes: Any, pins: Path) -> None:
    lanes.fails = [("new", True)]
    found = lanes.newest(pins)
    assert (found.python, found.passed) == ("3.12", True)
    assert found.cause == "3.13 from the pins on: ERROR: none for \\| one"
    lanes.fails = [("new", True), ("old", True)]
    found = lanes.newest(pins)
    assert (found.python, lanes.installs[-1][1][0]) == ("3.13", "one")


def test_a_lane_that_nothing_installs_has_failed(lanes: Any, pins: Path) -> None:
    lanes.fails = [(python, floors) for python in ("new", "old") for floors in (True, False)]
    found = lanes.newest(pins)
    assert (found.python, found.passed, found.result, found.cause.count("none for")) == ("", False, "not installed", 4)
    assert "| FAIL: not installed |" in lanes.table([found])


def test_a_failed_test_is_the_cause(lanes: Any, pins: Path) -> None:
    lanes.says = (1, "F.\nFAILED test_a.py::test_b - assert 1 == 2\nFAILED test_a.py::test_c\n2 failed in 1s\n")
    found = lanes.newest(pins)
    assert (found.passed, found.result) == (False, "2 failed")
    assert found.cause == "FAILED test_a.py::test_b - assert 1 == 2"


def test_a_build_keeps_its_lane_on_this_python(lanes: Any, pins: Path) -> None:
    pins.write_text(f"torch==2.0\n\n{PINS}")
    lanes.newest(pins)
    assert [python for python, _ in lanes.installs] == [sys.executable]


def test_environments_of_other_days_are_removed_and_those_of_other_lanes_are_not(lanes: Any, pins: Path) -> None:
    home = lanes.environments() / "newest"
    for name in ("some-0123456789abcdef", "some-old-0123456789abcdef", "npm-0123456789abcdef"):
        (home / name).mkdir(parents=True)
    lanes.newest(pins)
    left = {each.name.rpartition("-")[0]: each.name for each in home.iterdir()}
    assert set(left) == {"some", "some-old", "npm"}
    assert left["some"] != "some-0123456789abcdef"
