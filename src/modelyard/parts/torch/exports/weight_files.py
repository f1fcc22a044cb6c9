"""Safetensors files that are written one tensor at a time, in shards, with their index."""

import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modelyard.parts.torch.exports.stored_weights import DTYPES
from modelyard.parts.torch.exports.written_bytes import WrittenBytes
from modelyard.parts.torch.model_folder import WEIGHTS, WEIGHTS_INDEX, Progress

SHARD = 5 * 10**9
"""Bytes of a file at most, unless one tensor has more: what hubs and tools are used to."""

_WORDS = {dtype: word for word, dtype in DTYPES.items()}
_ALIGNMENT = 8
Forms = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


def write_weights(
    folder: Path,
    forms: Forms,
    tensor: Callable[[str], Tensor],
    shard: int = SHARD,
    progress: Progress | None = None,
) -> None:
    """Write tensors of these types and shapes; each is asked for when its turn comes, once. `progress` is called with
    their bytes that are written, and the total.
    """
    written = WrittenBytes(progress, sum(map(_size, forms.values())))
    shards = list(_shards(forms, shard))
    names = [
        WEIGHTS if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        for number in range(1, len(shards) + 1)
    ]
    for name, members in zip(names, shards, strict=True):
        _write(folder / name, {member: forms[member] for member in members}, tensor, written)
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(_size(form) for form in forms.values())},
            "weight_map": {member: name for name, members in zip(names, shards, strict=True) for member in members},
        }
        (folder / WEIGHTS_INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _size(form: tuple[torch.dtype, tuple[int, ...]]) -> int:
    dtype, shape = form
    return dtype.itemsize * math.prod(shape)


def _shards(forms: Forms, most: int) -> Iterator[list[str]]:
    """Yield the names of each file, the largest numbers first, so that all lie where their size wants them."""
    members: list[str] = []
    size = 0
    for name in sorted(forms, key=lambda name: (-forms[name][0].itemsize, name)):
        if members and size + _size(forms[name]) > most:
            yield members
            members, size = [], 0
        members.append(name)
        size += _size(forms[name])
    yield members


def _write(path: Path, forms: Forms, tensor: Callable[[str], Tensor], written: WrittenBytes) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, form in forms.items():
        begin, end = end, end + _size(form)
        header[name] = {"dtype": _WORDS[form[0]], "shape": form[1], "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, form in forms.items():
            file.write(tensor(name).contiguous().reshape(-1).view(torch.uint8).numpy().data)
            written.add(_size(form))
        file.flush()
        os.fsync(file.fileno())
