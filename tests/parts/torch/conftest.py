"""Tiny models for the tests of what runs on torch; helpers of this folder are imported by their names.

Without torch one test of this folder says so, and nothing else of it is collected.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from warm_python import WarmPython

HERE = Path(__file__).parent

if find_spec("torch") is None:
    collect_ignore = [path.name for path in HERE.glob("test_*.py") if path.name != "test_torch_installed.py"]
else:
    collect_ignore = ["light"]  # what needs no torch is tested without it
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported
    sys.path[:0] = [str(HERE), str(HERE.parents[1] / "crash")]

if TYPE_CHECKING:
    from modelyard.parts.torch.serving.backend import LocalBackend
    from modelyard.parts.torch.tokenizer import ChatTokenizer

WARM = (
    *("modelyard.parts.torch.training.trainer", "modelyard.parts.torch.serving.backend"),
    *("transformers.models.qwen3.modeling_qwen3", "transformers.models.llama.modeling_llama"),
    *("modelyard.cli.working", "modelyard.parts.server.commands", "modelyard.asgi"),
)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """More would only be in each other's way."""
    if find_spec("torch") is not None:
        import torch

        torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _frozen() -> None:
    """What was imported is never garbage: to look at all of torch again and again takes seconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """A Python that has loaded torch, which takes each that is started anew ten seconds of a processor."""
    with WarmPython(*WARM) as python:
        yield python


@pytest.fixture
def _warm_ranks(warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of ranks are forked from it."""
    monkeypatch.setattr("modelyard.parts.torch.training.ranks.sys.executable", warm_python.executable)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folders of tiny models, each made once: `folders("micro", architecture="llama")`."""
    from modelyard.parts.torch.tiny_model import build_tiny_model

    made: dict[Any, Path] = {}

    def folder(size: Any = "micro", **options: Any) -> Path:
        key = (size, *sorted(options.items()))
        if key not in made:
            made[key] = build_tiny_model(tmp_path_factory.mktemp("base") / "model", size, **options)
        return made[key]

    return folder


@pytest.fixture
def packs_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of any size are packed, also those of tiny models."""
    monkeypatch.setattr("modelyard.parts.torch.packed_weights.SMALLEST", 0)


@pytest.fixture(scope="session")
def folder(folders: Callable[..., Path]) -> Path:
    return folders()


@pytest.fixture(scope="session")
def chat(folder: Path) -> "ChatTokenizer":
    from modelyard.parts.torch.tokenizer import ChatTokenizer

    return ChatTokenizer(folder)


@pytest.fixture(scope="session")
def shared_backend(folders: Callable[..., Path]) -> "LocalBackend":
    """A backend that no test changes: micro models of two architectures."""
    from local_models import base_model

    from modelyard.parts.torch.serving.backend import LocalBackend

    return LocalBackend([base_model(folders(), "tiny"), base_model(folders(architecture="llama"), "tiny-llama")])
