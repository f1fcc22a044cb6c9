"""An adapter folder as peft saves it, read and checked against the base model that it is for."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from modelyard.errors import BackendError, InvalidInput
from modelyard.formats.safetensors import read_shapes
from modelyard.parts.torch.exports.stored_weights import Layout
from modelyard.parts.torch.lora import CONFIG_FILE, PREFIX, WEIGHTS_FILE, LoraShape
from modelyard.parts.torch.model_folder import MAX_JSON
from modelyard.parts.torch.records import BaseModel

_FLOATS = {"F32", "F16", "BF16"}


def read_config(folder: Path) -> Mapping[str, Any]:
    """Return the configuration of an adapter in a folder. Raises `InvalidInput`."""
    path = folder / CONFIG_FILE
    if not path.is_file() or not (folder / WEIGHTS_FILE).is_file():
        raise InvalidInput.at(
            "path",
            msg=f"{folder} has no {CONFIG_FILE if not path.is_file() else WEIGHTS_FILE}: give a folder that peft saved",
        )
    if path.stat().st_size > MAX_JSON:
        raise InvalidInput.at("path", CONFIG_FILE, msg=f"is larger than {MAX_JSON} bytes")
    try:
        found: Any = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as wrong:
        raise InvalidInput.at("path", CONFIG_FILE, msg=f"is not JSON ({wrong})") from None
    if not isinstance(found, dict):
        raise InvalidInput.at("path", CONFIG_FILE, msg="must be an object")
    return found


def checked_shape(folder: Path, config: Mapping[str, Any], base: BaseModel) -> LoraShape:
    """Return the shape of an adapter that fits a base model, with the layers that it has weights for."""
    try:
        shape = LoraShape.from_config((folder / CONFIG_FILE).read_bytes())
    except BackendError as wrong:
        raise InvalidInput.at("path", CONFIG_FILE, msg=str(wrong)) from None
    try:
        with (folder / WEIGHTS_FILE).open("rb") as file:
            found = dict(read_shapes(file))
    except ValueError as wrong:
        raise InvalidInput.at("path", WEIGHTS_FILE, msg=str(wrong)) from None
    layers = sorted({name.removeprefix(PREFIX).rpartition(".lora_")[0] for name in found})
    wanted = Layout(Path(base.path)).adapter_shapes(layers, shape.rank)
    for name in sorted(found.keys() | wanted.keys()):
        if name not in wanted or name not in found or found[name][1] != wanted[name] or found[name][0] not in _FLOATS:
            raise InvalidInput.at(
                "path", WEIGHTS_FILE, msg=f"does not fit {base.id} at {name}: it is of another base model"
            )
    return attrs.evolve(shape, targets=tuple(sorted({layer.rpartition(".")[2] for layer in layers})))
