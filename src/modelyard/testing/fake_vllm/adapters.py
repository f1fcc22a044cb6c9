"""LoRA adapters of a vLLM double: PEFT folders, checked as vLLM checks them."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"


@attrs.frozen
class FakeAdapter:
    """An adapter that is loaded: its name, the folder it was loaded from, its rank, and the model that it adapts."""

    name: str
    path: str
    rank: int
    parent: str

    @property
    def mark(self) -> str:
        """The text that goes before the last user message, so that answers show which weights were used.

        It is read from the folder each time, as by a server whose memory for adapters is full. Raises `OSError`.
        """
        return mark_of((Path(self.path) / WEIGHTS_FILE).read_bytes())


def mark_of(weights: bytes) -> str:
    """Return the mark of an adapter with these weights: `[`, eight hexadecimal digits of their SHA-256, `]`."""
    return f"[{hashlib.sha256(weights).hexdigest()[:8]}]"


class NoAdapter(Exception):
    """There is no adapter at that path."""


def load_adapter(name: str, path: str, parent: str, max_rank: int) -> FakeAdapter:
    """Load the adapter in a folder. Raises `NoAdapter`, and `ValueError` with vLLM's words for one that it refuses."""
    folder = Path(path)
    if not (folder / CONFIG_FILE).is_file():
        raise NoAdapter(f"Loading lora {name} failed: No adapter found for {path}")
    config = _config((folder / CONFIG_FILE).read_bytes())
    _check_weights(folder / WEIGHTS_FILE)
    if config["r"] > max_rank:
        raise ValueError(f"LoRA rank {config['r']} is greater than max_lora_rank {max_rank}.")
    return FakeAdapter(name, path, config["r"], parent)


def _config(raw: bytes) -> Mapping[str, Any]:
    config = json.loads(raw)
    missing = {"r", "lora_alpha", "target_modules"} - config.keys()
    if missing:
        raise ValueError(f"Missing required configuration fields: {missing}")
    refused = []
    if config.get("modules_to_save"):
        refused.append("vLLM only supports modules_to_save being None.")
    if config.get("use_dora"):
        refused.append("vLLM does not yet support DoRA.")
    if config.get("bias", "none") != "none":
        refused.append("Adapter bias is not supported.")
    if refused:
        raise ValueError(" ".join(refused))
    return dict(config)


def _check_weights(file: Path) -> None:
    """Check that a safetensors file is complete and has nothing but the two halves of low-rank matrices."""
    if not file.is_file():
        raise ValueError(f"{file.parent} doesn't contain tensors")
    raw = file.read_bytes()
    try:
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        header.pop("__metadata__", None)
        end = max(tensor["data_offsets"][1] for tensor in header.values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"Error while deserializing header: {type(error).__name__}") from None
    if len(raw) != 8 + length + end:
        raise ValueError("Error while deserializing header: incomplete metadata, file not fully covered")
    strange = sorted(name for name in header if ".lora_A." not in name and ".lora_B." not in name)
    if strange:
        raise ValueError(f"{strange[0]} is unsupported LoRA weight")
