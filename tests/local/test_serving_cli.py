"""`modelyard base-models` with a real folder, and how a process of the command line sets torch up."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from modelyard.cli import main


def call(*words: object, status: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == status, (result.output, result.exception)
    return result


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
    assert "no decimal number" in add(store, folder, "--price-prompt", "dear", status=2).output
    assert "config.json: is missing" in add(store, tmp_path, status=1).output
    assert "offered already" in add(store, folder, "--name", "Other", status=1).output
    assert len(listed(store)) == 1
