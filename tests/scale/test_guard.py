"""The guard of instructions a completion: it fails on a slow-down, and only reports a gain."""

import importlib
import json
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest

KEPT = {"completion": 1000, "asgi": 2000}


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    return importlib.import_module("benchmarks._guard")


def test_more_than_two_percent_more_instructions_fail_and_name_the_command_that_keeps_them(guard: ModuleType) -> None:
    guard.check({"completion": 1020, "asgi": 2040}, KEPT)
    with pytest.raises(SystemExit, match=r"2% more instructions: asgi.*benchmarks guard --keep"):
        guard.check({"completion": 1020, "asgi": 2041}, KEPT)


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


def test_a_workload_without_a_figure_is_counted_and_passes(
    guard: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    guard.check({"asgi": 2000, "asgi-tools": 3000}, KEPT)
    assert "asgi-tools" in capsys.readouterr().out


def test_a_comparison_prints_what_it_has_measured(
    guard: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = importlib.import_module("benchmarks._compare")

    def measured(sources: object, name: str) -> dict[str, int]:
        if name == "stream":
            raise compared.CannotRun(name)
        if name == "events-sqlite":
            raise KeyboardInterrupt
        return {"B / A": 1}

    monkeypatch.setattr(compared, "WORKLOADS", ["asgi", "stream", "hop", "events-sqlite"])
    monkeypatch.setattr(compared, "source_of", lambda revision: nullcontext(Path(revision)))
    monkeypatch.setattr(compared, "in_turns", measured)
    with pytest.raises(KeyboardInterrupt):
        compared.main("A", "B")
    shown = capsys.readouterr()
    assert set(json.loads(shown.out)["call, CPU us"]) == {"asgi", "hop"}
    assert "left out, as a commit cannot run it: stream" in shown.err
    with pytest.raises(SystemExit, match="cannot run stream"):
        compared.main("A", "B", "asgi", "stream")
    assert set(json.loads(capsys.readouterr().out)["call, CPU us"]) == {"asgi"}


def test_no_counter_is_a_failure(guard: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    instructions = importlib.import_module("benchmarks._instructions")
    commands = []
    monkeypatch.setattr(instructions, "can_count", lambda: False)
    monkeypatch.setattr(instructions.subprocess, "run", lambda command, **options: commands.append(command))
    with pytest.raises(SystemExit, match="apt-get install valgrind"):
        instructions.install()
    assert ["valgrind" in command for command in commands] == [False, True]


@pytest.mark.parametrize("says", ["", "print('ready', flush=True)", "print('ready', flush=True); input()"])
def test_a_commit_whose_process_ends_cannot_run_the_workload(
    guard: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: str
) -> None:
    compared = importlib.import_module("benchmarks._compare")
    script = tmp_path / "ends.py"
    script.write_text(says)
    monkeypatch.setattr(compared, "SCRIPT", script)
    with pytest.raises(compared.CannotRun), compared.worker(tmp_path, "stream") as one:
        one.spend(1)
