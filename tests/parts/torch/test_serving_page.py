"""The pages about local models run as they stand."""

import runpy
from pathlib import Path

import pytest

from modelyard.testing import build_tiny_model
from warm_python import WarmPython

ROOT = Path(__file__).parents[3]


@pytest.mark.usefixtures("_warm_ranks")
@pytest.mark.parametrize(
    "page", ["how-to/serve-a-local-model.md", "how-to/train-a-local-model.md", "reference/training.md"]
)
def test_a_page_about_local_models_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_python: WarmPython
) -> None:
    docs = runpy.run_path(str(ROOT / "tests" / "docs" / "test_docs.py"))
    docs["run_page"](ROOT / "docs" / page, tmp_path, monkeypatch, warm_python.commands)


@pytest.mark.slow
def test_the_page_about_a_real_model_runs_on_a_tiny_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed there needs the pretrained model; that every block runs does not."""
    build_tiny_model(tmp_path / "SmolLM2-135M-Instruct", "mini")
    docs = runpy.run_path(str(ROOT / "tests" / "docs" / "test_docs.py"))
    docs["run_page"](ROOT / "docs" / "how-to" / "fine-tune-a-real-model.md", tmp_path, monkeypatch)
    assert (tmp_path / "dates.gguf").stat().st_size > 0
    assert (tmp_path / "dates-merged" / "model.safetensors").exists()
