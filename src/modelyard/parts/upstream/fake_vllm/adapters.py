"""LoRA adapters of a vLLM double: PEFT folders, checked as vLLM checks them."""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import attrs

from modelyard.domain.completion import CompletionRequest, ContentPart, Message, Role

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"


@attrs.frozen
class FakeAdapter:
    name: str
    path: str
    rank: int
    parent: str

    @property
    def mark(self) -> str:
        """The text that goes before the last user message, so that answers show which weights were used.

        It is read from the folder each time, as by a server with its memory for adapters full. Raises `OSError`.
        """
        return mark_of((Path(self.path) / WEIGHTS_FILE).read_bytes())


def mark_of(weights: bytes) -> str:
    """Return the mark of an adapter with these weights: `[`, eight hexadecimal digits of their SHA-256, `]`."""
    return f"[{hashlib.sha256(weights).hexdigest()[:8]}]"


class NoAdapter(Exception):
    """There is no adapter at that path."""


PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The modules of most models that an adapter may change."""


def load_adapter(name: str, path: str, parent: str, max_rank: int, modules: Collection[str]) -> FakeAdapter:
    """Load the adapter in a folder, for a base that has these `modules`.

    Raises `NoAdapter`, and `ValueError` with vLLM's words if it refuses the adapter.
    """
    folder = Path(path)
    if not (folder / CONFIG_FILE).is_file():
        raise NoAdapter(f"Loading lora {name} failed: No adapter found for {path}")
    config = _config((folder / CONFIG_FILE).read_bytes(), max_rank)
    changed = _weights(folder / WEIGHTS_FILE)
    unknown = sorted(module for module in changed if module.rpartition(".")[2] not in modules)
    if unknown:
        raise ValueError(
            f"While loading {path}, expected target modules in {set(modules)} but received {unknown}. "
            "Please verify that the loaded LoRA module is correct"
        )
    return FakeAdapter(name, path, config["r"], parent)


def _config(raw: bytes, max_rank: int) -> Mapping[str, Any]:
    config = json.loads(raw)
    missing = {"r", "lora_alpha", "target_modules"} - config.keys()
    if missing:
        raise ValueError(f"Missing required configuration fields: {missing}")
    refused = []
    unsupported = [module for module in config.get("modules_to_save") or () if module not in ("classifier", "score")]
    if unsupported:
        refused.append(
            'vLLM only supports modules_to_save being either None or ["classifier", "score"] for classification '
            f"models. Unsupported modules_to_save: {unsupported}"
        )
    if config.get("use_dora"):
        refused.append("vLLM does not yet support DoRA.")
    if config["r"] > max_rank:
        refused.append(f"LoRA rank {config['r']} is greater than max_lora_rank {max_rank}.")
    if config.get("bias", "none") != "none":
        refused.append("Adapter bias is not supported.")
    if refused:
        raise ValueError(" ".join(refused))
    return dict(config)


def _weights(file: Path) -> set[str]:
    """Return the modules that a safetensors file changes, after checking that it is complete and holds nothing else."""
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
    return {re.split(r"\.lora_[AB]\.", name)[0].removeprefix("base_model.model.") for name in header}


def marked(request: CompletionRequest, mark: str) -> CompletionRequest:
    """Put the mark before the last message of the user, the last message if there is none, or a prompt that is text."""
    if request.prompt is not None:
        text = request.prompt
        return attrs.evolve(request, prompt=f"{mark} {text}") if isinstance(text, str) else request
    messages = list(request.messages)
    spoken = [at for at, message in enumerate(messages) if message.role is Role.USER] or [len(messages) - 1]
    messages[spoken[-1]] = _with_mark(messages[spoken[-1]], mark)
    return attrs.evolve(request, messages=tuple(messages))


def _with_mark(message: Message, mark: str) -> Message:
    if isinstance(message.content, tuple):
        return attrs.evolve(message, content=(ContentPart("text", f"{mark} "), *message.content))
    return attrs.evolve(message, content=f"{mark} {message.content or ''}")
