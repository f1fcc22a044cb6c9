"""What a conversion of a GGUF file leaves when its process is killed; torch and transformers are not needed."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from modelyard.parts.torch import gguf_file


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    reader = SimpleNamespace(tensors=[], fields={})
    monkeypatch.setattr(gguf_file, "_package", lambda: SimpleNamespace(GGUFReader=lambda _: reader))
    monkeypatch.setattr(gguf_file, "_write", _write)
    return path


def _write(_path: Path, _dtype: str, folder: Path) -> bool:
    (folder / "weights").write_bytes(b"much")
    return True


def test_what_a_killed_conversion_leaves_is_removed_by_the_next(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (child := os.fork()) == 0:
        monkeypatch.setattr(gguf_file, "_write", _killed)
        gguf_file.convert(model)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert len(list(model.parent.iterdir())) == 2
    made = gguf_file.convert(model)
    assert {path.name for path in model.parent.iterdir()} == {"model.gguf", "model"}
    assert {path.name for path in made.folder.iterdir()} == {"weights", "gguf_source.json"}


def _killed(*given: Any) -> bool:
    _write(*given)
    os.kill(os.getpid(), signal.SIGKILL)
    return True


def test_what_a_living_conversion_has_is_left_alone(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = model.with_name("other.gguf")
    other.write_bytes(b"GGUF")

    def meanwhile(path: Path, dtype: str, folder: Path) -> bool:
        if path.name == "model.gguf":
            gguf_file.convert(other)
        return _write(path, dtype, folder)

    monkeypatch.setattr(gguf_file, "_write", meanwhile)
    assert gguf_file.convert(model).folder.is_dir()
    assert {path.name for path in model.parent.iterdir()} == {"model.gguf", "model", "other.gguf", "other"}
