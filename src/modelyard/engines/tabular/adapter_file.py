"""An adapter of the tabular model as one safetensors file: `parameters` (I64, ascending) and their `weights` (F64)."""

import sys
from array import array
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from modelyard.engines.tabular.model import Adapter
from modelyard.formats.safetensors import Tensor, read, write_tensors

ADAPTER_FILE = "adapter.safetensors"
"""The name of the file among a checkpoint's files."""


def write_adapter(adapter: Adapter) -> Iterable[bytes]:
    """The bytes of the file; equal adapters give equal bytes."""
    parameters, weights = adapter.parameters()
    return write_tensors({"parameters": _tensor("I64", parameters), "weights": _tensor("F64", weights)})


def read_adapter(file: BinaryIO) -> Adapter:
    """The adapter in a file. Raises ValueError when it holds none."""
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
    """The same numbers in the file's byte order, or back."""
    if sys.byteorder == "big":
        column.byteswap()
    return column
