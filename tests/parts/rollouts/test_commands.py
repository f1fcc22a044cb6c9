"""Rollouts on the command line: started, listed, scored, shown and stopped."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from modelyard import open_platform
from modelyard.cli import main
from rolled_out import ALIAS, NAME, trained


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "yard.db")
    with open_platform(path) as platform:
        trained(platform)
    return path


def say(store: str, *words: str, code: int = 0) -> str:
    found = CliRunner().invoke(main, ["rollouts", *words, "--store", store])
    assert found.exit_code == code, found.output
    return found.output


def test_a_rollout_is_started_scored_shown_and_stopped(store: str) -> None:
    made = say(store, "start", NAME, "1", "--canary", "0.5,1", "--margin", "0.3", "--also", "errors=0.1").strip()
    with open_platform(store) as platform:
        answer = platform.chat.complete(model=ALIAS, messages="hello", user="ann", max_tokens=2)
    assert say(store, "score", answer.id, "1").endswith(": thumbs 1\n")
    assert f"{NAME.rpartition('/')[2]}" in say(store, "list")
    shown = say(store, "show", made)
    assert "support:prod, step 0 to 1: canary, 50% of the users have step 1." in shown
    assert "not known yet whether it is worse by more than 0.3" in shown
    found = json.loads(say(store, "show", made, "--json"))
    assert found["rollout"]["limits"] == {"errors": 0.1}
    assert found["standing"]["baseline"]["scores"] + found["standing"]["candidate"]["scores"] == 1
    assert say(store, "stop", made, "--reason", "enough") == "stopped: enough\n"
    assert say(store, "delete", made).strip() == made


def test_what_cannot_be_read_is_told(store: str) -> None:
    assert "must be such as 0.05,0.25,1, and is 'half'" in say(store, "start", NAME, "1", "--canary", "half", code=1)
    assert "'errors' is not like errors=0.05" in say(store, "start", NAME, "1", "--also", "errors", code=2)


def test_a_shadow_is_a_number_of_answers_or_a_time(store: str) -> None:
    made = say(store, "start", NAME, "1", "--shadow", "30m", "--purse", "2").strip()
    found = json.loads(say(store, "show", made, "--json"))
    assert found["rollout"]["shadow"] == {"answers": 1, "share": 0.1, "purse": "2", "lasts": 1800.0}
    say(store, "stop", made)
    made = say(store, "start", NAME, "1", "--shadow", "30").strip()
    found = json.loads(say(store, "show", made, "--json"))
    assert found["rollout"]["shadow"] == {"answers": 30, "share": 0.1, "purse": "1"}
    assert "must be a time such as 30m" in say(store, "start", NAME, "1", "--shadow", "soon", code=1)
