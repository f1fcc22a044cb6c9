"""The files of an adapter of the tabular model, in safetensors: its weights, and the moments of an optimizer.

An adapter is `parameters` (I64, ascending) and `weights` (F64). Moments are those of the same parameters, `first` and
`second` (F64), and the number of `steps` so far.
"""

import sys
from array import array
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, BinaryIO

import attrs

from modelyard.engines.tabular.model import Adapter, Row, parameter_columns, parameter_rows
from modelyard.formats.safetensors import Tensor, read, write_tensors

ADAPTER_FILE = "adapter.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
"""The names of the files among those of a checkpoint and of a state."""


@attrs.frozen
class Moments:
    """The optimizer's means of derivatives and of their squares, by feature and token, after a number of steps."""

    steps: int = 0
    first: Mapping[int, Row] = MappingProxyType({})
    second: Mapping[int, Row] = MappingProxyType({})


def write_adapter(adapter: Adapter) -> Iterable[bytes]:
    """Return the bytes of the file in chunks; equal adapters give equal bytes."""
    return write_parameters(*adapter.parameters())


def write_parameters(parameters: "array[int]", weights: "array[float]") -> Iterable[bytes]:
    """Write the columns of an adapter as its file."""
    return write_tensors({"parameters": _tensor("I64", parameters), "weights": _tensor("F64", weights)})


def read_adapter(file: BinaryIO) -> Adapter:
    """Read the adapter in a file. Raises ValueError if there is none."""
    tensors = read(file)
    return Adapter.from_parameters(_column(tensors, "parameters", "I64"), _column(tensors, "weights", "F64"))


def write_moments(moments: Moments) -> Iterable[bytes]:
    """Return the bytes of the file in chunks; equal moments give equal bytes."""
    (parameters, first), (_, second) = parameter_columns(moments.first), parameter_columns(moments.second)
    steps = _tensor("I64", array("q", [moments.steps]))
    columns = {"first": _tensor("F64", first), "second": _tensor("F64", second)}
    return write_tensors({"parameters": _tensor("I64", parameters), **columns, "steps": steps})


def read_moments(file: BinaryIO) -> Moments:
    """Read the moments in a file. Raises ValueError if there are none."""
    tensors = read(file)
    parameters, steps = _column(tensors, "parameters", "I64"), _column(tensors, "steps", "I64")
    if len(steps) != 1 or steps[0] < 0:
        raise ValueError("needs one number of steps")
    first, second = (_column(tensors, name, "F64") for name in ("first", "second"))
    return Moments(steps[0], parameter_rows(parameters, first), parameter_rows(parameters, second))


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
