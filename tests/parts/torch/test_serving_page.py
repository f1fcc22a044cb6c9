"""The pages about local models run as they stand."""

import os
import runpy
import sys
from pathlib import Path

import pytest

from modelyard.testing import build_tiny_model

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "page", ["how-to/serve-a-local-model.md", "how-to/train-a-local-model.md", "reference/training.md"]
)
def test_a_page_about_local_models_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane has no installed modelyard, so its command is made here."""
    command = tmp_path / "bin" / "modelyard"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m modelyard.cli "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    docs = runpy.run_path(str(ROOT / "tests" / "docs" / "test_docs.py"))
    docs["run_page"](ROOT / "docs" / page, tmp_path, monkeypatch)


@pytest.mark.slow
def test_the_page_about_a_real_model_runs_on_a_tiny_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed there needs the pretrained model; that every block runs does not."""
    build_tiny_model(tmp_path / "SmolLM2-135M-Instruct", "mini")
    docs = runpy.run_path(str(ROOT / "tests" / "docs" / "test_docs.py"))
    docs["run_page"](ROOT / "docs" / "how-to" / "fine-tune-a-real-model.md", tmp_path, monkeypatch)
    assert (tmp_path / "dates.gguf").stat().st_size > 0
    assert (tmp_path / "dates-merged" / "model.safetensors").exists()
