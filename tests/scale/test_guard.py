"""The guard of instructions a completion: it fails on a slow-down, and only reports a gain."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

KEPT = {"completion": 1000, "asgi": 2000}


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    return importlib.import_module("benchmarks._guard")


def test_more_than_five_percent_more_instructions_fail_and_name_the_command_that_keeps_them(guard: ModuleType) -> None:
    guard.check({"completion": 1050, "asgi": 2100}, KEPT)
    with pytest.raises(SystemExit, match=r"5% more instructions: asgi.*benchmarks guard --keep"):
        guard.check({"completion": 1050, "asgi": 2101}, KEPT)


def test_fewer_instructions_pass_and_the_figure_may_be_lowered(
    guard: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    guard.check({"completion": 940, "asgi": 2000}, KEPT)
    assert "lower the figure with `python -m benchmarks guard --keep`" in capsys.readouterr().out


def test_an_interpreter_without_a_figure_counts_the_commit_that_kept_the_others(
    guard: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = []
    monkeypatch.setattr(guard, "interpreter", lambda: "another")
    monkeypatch.setattr(guard, "counted", lambda revision: requested.append(revision) or KEPT)
    monkeypatch.setattr(guard, "git", lambda *arguments: b"1234abcd\n")
    assert guard.reference() == KEPT
    assert requested == ["1234abcd"]


def test_no_counter_is_a_failure(guard: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    instructions = importlib.import_module("benchmarks._instructions")
    commands = []
    monkeypatch.setattr(instructions, "can_count", lambda: False)
    monkeypatch.setattr(instructions.subprocess, "run", lambda command, **options: commands.append(command))
    with pytest.raises(SystemExit, match="apt-get install valgrind"):
        instructions.install()
    assert ["valgrind" in command for command in commands] == [False, True]
