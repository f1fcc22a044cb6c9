"""The public command line `llm`, unmodified and in a process of its own, is trained as its page says.

Its process is forked from one that has imported it, which takes a tenth of the time.
"""

import runpy
from pathlib import Path

import pytest

from warm_python import WarmPython

pytest.importorskip("llm", reason="it has a lane of its own: tests/clients/lanes.py llm")

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(900)
def test_its_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "LLM_USER_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    docs = runpy.run_path(str(ROOT / "tests" / "docs" / "test_docs.py"))
    with WarmPython("llm.cli", "openai.resources.chat") as python:
        command = python.commands / "llm"
        command.write_text(f'#!/bin/sh\nexec "{python.executable}" -m llm "$@"\n')
        command.chmod(0o755)
        docs["run_page"](ROOT / "docs" / "how-to" / "train-a-command-line.md", tmp_path, monkeypatch, python.commands)
    assert (tmp_path / "reward.svg").stat().st_size > 0
