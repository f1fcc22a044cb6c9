"""The page about local models runs as it stands."""

import os
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_page_about_local_models_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lane has no installed modelyard, so its command is made here."""
    command = tmp_path / "bin" / "modelyard"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m modelyard.cli "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    docs = runpy.run_path(str(ROOT / "tests" / "docs" / "test_docs.py"))
    docs["test_the_code_of_a_page_runs"](ROOT / "docs" / "how-to" / "serve-a-local-model.md", tmp_path, monkeypatch)
