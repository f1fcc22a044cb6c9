"""The file of an adapter of the tabular model: safetensors with `parameters` (I64, ascending) and `weights` (F64)."""

import sys
from array import array
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from modelyard.engines.tabular.model import Adapter
from modelyard.formats.safetensors import Tensor, read, write_tensors

ADAPTER_FILE = "adapter.safetensors"
"""The name of the file among a checkpoint's files."""


def write_adapter(adapter: Adapter) -> Iterable[bytes]:
    """Return the bytes of the file in chunks; equal adapters give equal bytes."""
    parameters, weights = adapter.parameters()
    return write_tensors({"parameters": _tensor("I64", parameters), "weights": _tensor("F64", weights)})


def read_adapter(file: BinaryIO) -> Adapter:
    """Read the adapter in a file. Raises ValueError if there is none."""
    tensors = read(file)
    return Adapter.from_parameters(_column(tensors, "parameters", "I64"), _column(tensors, "weights", "F64"))


_CODES = {"I64": "q", "F64": "d"}


def _tensor(dtype: str, column: "array[Any]") -> Tensor:
    return Tensor(dtype, (len(column),), _little_endian(column).tobytes())


def _column(tensors: Mapping[str, Tensor], name: str, dtype: str) -> "array[Any]":
    tensor = tensors.get(name)
    if tensor is None or tensor.dtype != dtype or len(tensor.shape) != 1:
        raise ValueError(f"needs a column {name!r} of type {dtype}")
    column = array(_CODES[dtype])
    column.frombytes(bytes(tensor.data))
    return _little_endian(column)


def _little_endian(column: "array[Any]") -> "array[Any]":
    """Convert numbers to the file's byte order, or back."""
    if sys.byteorder == "big":
        column.byteswap()
    return column
