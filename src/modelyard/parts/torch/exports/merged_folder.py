"""A checkpoint merged into its base model, as a folder in the transformers format."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from modelyard.parts.torch.exports.merging import MergedWeights
from modelyard.parts.torch.exports.stored_weights import refused
from modelyard.parts.torch.exports.taken import TakenCheckpoint
from modelyard.parts.torch.exports.weight_files import SHARD, write_weights
from modelyard.parts.torch.model_config import CONFIG
from modelyard.parts.torch.model_folder import MORE_TEMPLATES, TEMPLATE, TOKENIZER, TOKENIZER_CONFIG, Progress

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_OF_TOKENIZER = (TOKENIZER, TOKENIZER_CONFIG, TEMPLATE)


def write_merged(
    taken: TakenCheckpoint,
    folder: Path,
    dtype: str | None = None,
    shard: int = SHARD,
    progress: Progress | None = None,
) -> None:
    """Write the files into an empty folder, the configuration last. A `dtype` replaces that of the base model."""
    weights = MergedWeights(taken, dtype_named(dtype))
    write_weights(folder, weights.tensors, weights.tensor, shard, progress)
    for name in taken.base.digests:
        if not name.endswith((".safetensors", ".safetensors.index.json")) and name != CONFIG:
            _copy(taken, name, folder)
    _write_config(taken, weights, dtype, folder)


def copy_tokenizer(taken: TakenCheckpoint, folder: Path) -> None:
    """Copy the tokenizer with its chat templates."""
    for name in taken.base.digests:
        if name in _OF_TOKENIZER or name.startswith(f"{MORE_TEMPLATES}/"):
            _copy(taken, name, folder)


def dtype_named(name: str | None) -> torch.dtype | None:
    if name is not None and name not in DTYPES:
        raise refused(f"cannot be written as {name!r}; choose {', '.join(DTYPES)}")
    return None if name is None else DTYPES[name]


def _copy(taken: TakenCheckpoint, name: str, folder: Path) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    shutil.copyfile(Path(taken.base.path) / name, folder / name)


def _write_config(taken: TakenCheckpoint, weights: MergedWeights, dtype: str | None, folder: Path) -> None:
    """Write the configuration: the same bytes if nothing of it has changed."""
    text = (Path(taken.base.path) / CONFIG).read_bytes()
    config: dict[str, Any] = json.loads(text)
    changed = dict(config)
    if dtype is not None:
        changed.pop("torch_dtype", None)  # its former name
        changed["dtype"] = dtype
    if weights.unties_head:
        changed["tie_word_embeddings"] = False
    if changed != config:
        text = (json.dumps(changed, indent=2, ensure_ascii=False) + "\n").encode()
    (folder / CONFIG).write_bytes(text)
