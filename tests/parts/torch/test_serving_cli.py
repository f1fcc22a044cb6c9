"""`modelyard base-models` with a real folder, and how a process of the command line sets torch up."""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from modelyard.cli import main, working
from modelyard.executors.subprocess import SubprocessExecutor
from modelyard.parts.server import commands
from modelyard.parts.torch import engine
from modelyard.parts.torch import records as base_model


def call(*words: object, status: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == status, (result.output, result.exception)
    return result


def not_run(server: Any) -> None:
    server.started = True


def listed(store: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(call("base-models", "list", "--store", store, "--json").stdout)
    return found


def add(store: Path, folder: Path, *words: object, status: int = 0) -> Result:
    return call("base-models", "add", "--store", store, folder, "--id", "tiny", *words, status=status)


def test_a_base_model_is_added_with_its_prices_and_listed(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "yard.db"
    add(store, folder, "--name", "Tiny", "--price-prompt", "0.0000005", "--price-completion", "1e-6")
    (row,) = listed(store)
    assert (row["id"], row["name"], row["tuning"], row["path"]) == ("tiny", "Tiny", "lora", str(folder))
    assert "Qwen3ForCausalLM" in call("base-models", "list", "--store", store).stdout


def test_a_base_model_can_be_trained_in_full(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "yard.db"
    add(store, folder, "--full")
    assert listed(store)[0]["tuning"] == "full"


def test_what_is_wrong_is_one_line_and_adds_nothing(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "yard.db"
    add(store, folder)
    assert "not a decimal number" in add(store, folder, "--price-prompt", "dear", status=2).output
    assert "config.json: is missing" in add(store, tmp_path, status=1).output
    assert "already offered" in add(store, folder, "--name", "Other", status=1).output
    assert len(listed(store)) == 1


@pytest.mark.parametrize(("small", "given", "threads"), [(10**7, None, "1"), (10**3, None, None), (10**7, "3", "3")])
def test_a_served_small_model_gets_one_thread_unless_the_environment_says_otherwise(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small: int,
    given: str | None,
    threads: str | None,
) -> None:
    monkeypatch.setattr(base_model, "SMALL", small)
    monkeypatch.setattr("uvicorn.Server.run", not_run)
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, given or "")
        if given is None:
            monkeypatch.delenv(name)
    store = tmp_path / "yard.db"
    call("serve", "--store", store)
    assert os.environ.get("OMP_NUM_THREADS") == given
    add(store, folder)
    call("serve", "--store", store)
    assert os.environ.get("OMP_NUM_THREADS") == threads
    assert os.environ["OMP_WAIT_POLICY"] == (given or "PASSIVE")
    assert os.environ["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize("here", [True, False])
def test_jobs_in_processes_of_their_own_find_torch_loaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    made: list[SubprocessExecutor] = []
    monkeypatch.setattr("uvicorn.Server.run", not_run)
    monkeypatch.setattr(commands, "asgi_app", lambda *_, executor, **__: made.append(executor))
    if not here:
        monkeypatch.delattr(os, "pidfd_open")
    store = tmp_path / "yard.db"
    add(store, folder)
    call("serve", "--store", store, "--isolate")
    slow = (*engine.SLOW_TO_IMPORT, *working.SLOW_TO_IMPORT)
    assert made[0]._preload == slow
    assert made[0]._fork is here
    assert all(find_spec(module) for module in slow)
