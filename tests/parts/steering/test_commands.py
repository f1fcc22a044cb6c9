"""Steering on the command line, while a worker of another process may be at it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from modelyard import open_platform
from modelyard.cli import main
from steered_runs import MORE, finish, submitted, whole


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "yard.db")


def say(store: str, *words: str, code: int = 0) -> str:
    found = CliRunner().invoke(main, ["runs", *words, "--store", store])
    assert found.exit_code == code, found.output
    return found.output


def test_a_run_is_steered_by_another_process(store: str, tmp_path: Path) -> None:
    rows = tmp_path / "more.jsonl"
    rows.write_text("".join(f"{json.dumps(row)}\n" for row in MORE))
    with open_platform(store) as platform:
        run = submitted(platform)
    assert say(store, "pause", "quiz") == "pause: done\n"
    said = "limits concurrency 8 -> 2: a worker does it after the rows under way\n"
    assert say(store, "limits", "quiz", "-o", "concurrency=2") == said
    assert say(store, "resume", "quiz") == "resume: done\n"
    assert "rows 12 -> 16" in say(store, "add-rows", "quiz", str(rows))
    with open_platform(store) as platform:
        finish(platform)
        whole(platform, run, 16)
    assert "requeue 1 rows" in say(store, "requeue", "quiz", "--row", "3")
    assert "requeue the failed rows" in say(store, "requeue", "quiz")
    with open_platform(store) as platform:
        finish(platform)
        whole(platform, run, 16)
    found = json.loads(say(store, "steering", "quiz", "--json"))
    assert [one["action"] for one in found] == ["pause", "limits", "resume", "rows", "requeue", "requeue"]
    assert all(one["applied"] and one["by"] for one in found)
    assert "concurrency 8 -> 2" in say(store, "steering", "quiz")
    assert "is not paused" in say(store, "resume", "quiz", code=1)
