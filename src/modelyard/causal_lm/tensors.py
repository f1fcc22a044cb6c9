"""Named tensors in files: safetensors, nothing else."""

from collections.abc import Mapping
from typing import BinaryIO

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor


def read_tensors(file: BinaryIO) -> Mapping[str, Tensor]:
    """All tensors of a file, on the CPU. Raises ValueError when it is no sound safetensors file."""
    try:
        return load(file.read())
    except SafetensorError as fault:
        raise ValueError(f"no safetensors file: {fault}") from None


def tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The bytes of a file; equal tensors under equal names give equal bytes."""
    return save({name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)})
