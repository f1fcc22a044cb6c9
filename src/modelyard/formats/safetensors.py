"""The safetensors format: named tensors as plain bytes after a JSON header. Nothing in such a file can run. A file is
the header's length (8 bytes, little-endian), the header, padded with spaces, and the tensors, little-endian, without
gaps, in the order of their offsets."""

import math
import os
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import attrs

from modelyard.errors import InvalidInput
from modelyard.formats.json import dumps
from modelyard.formats.json_stream import CHUNK, JsonReader

MAX_HEADER = 100_000_000
_ALIGNMENT = 8
_METADATA = "__metadata__"

_ITEM_SIZES: Mapping[str, int] = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}


@attrs.frozen
class Tensor:
    """Numbers of one type, in the format's own words (F32, BF16, I64, U8, ...), in a shape. `data` are their bytes,
    little-endian, the last dimension running fastest. Raises ValueError unless it all agrees."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes = attrs.field(repr=False)

    def __attrs_post_init__(self) -> None:
        if self.dtype not in _ITEM_SIZES or len(self.data) != _size(self.dtype, self.shape):
            raise ValueError(f"{len(self.data)} bytes are not a {self.dtype} tensor of shape {self.shape}")


def _size(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * _ITEM_SIZES[dtype]


def write_tensors(tensors: Mapping[str, Tensor]) -> Iterator[bytes]:
    """Yield the bytes of a file; equal tensors in the same order give equal bytes. Raises ValueError for a name that
    the format uses for something else."""
    if _METADATA in tensors:
        raise ValueError(f"no tensor can have the name {_METADATA}")
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": (begin, end)}
    text = dumps(header)
    text += b" " * (-len(text) % _ALIGNMENT)
    yield len(text).to_bytes(8, "little") + text
    for tensor in tensors.values():
        yield tensor.data


def read(file: BinaryIO) -> Mapping[str, Tensor]:
    """Return the tensors of a seekable file. Raises ValueError, before any is read, unless it is whole and sound."""
    entries = _listed(file)
    return {name: Tensor(dtype, shape, file.read(_size(dtype, shape))) for name, (dtype, shape, _) in entries.items()}


def read_shapes(file: BinaryIO) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    """Return the type and the shape of each tensor of a seekable file, without reading data. Raises ValueError."""
    return {name: (dtype, shape) for name, (dtype, shape, _) in _listed(file).items()}


def _listed(file: BinaryIO) -> "Mapping[str, Entry]":
    start = file.tell()
    size = file.seek(0, os.SEEK_END) - start
    file.seek(start)
    return _entries(file, _header_length(file, size), size)


def _header_length(file: BinaryIO, size: int) -> int:
    prefix = file.read(8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > min(MAX_HEADER, size - 8):
        raise ValueError(f"not a safetensors file: {size} bytes cannot hold a header of {length} (limit {MAX_HEADER})")
    return length


Entry = tuple[str, tuple[int, ...], int]


def _entries(file: BinaryIO, length: int, size: int) -> Mapping[str, Entry]:
    """Read the header an entry at a time: of what is large in it, at most one chunk is in memory."""
    reader, found = JsonReader(_chunks(file, length)), dict[str, Entry]()
    try:
        for name in reader.members():
            listed = reader.take(name)
            if name != _METADATA:
                found[name] = _entry(name, listed)
        reader.end()
    except InvalidInput as wrong:
        raise ValueError(f"not a safetensors file: its header {wrong}") from None
    entries = dict(sorted(found.items(), key=lambda item: item[1][2]))
    _check_offsets(entries, size - 8 - length)
    return entries


def _chunks(file: BinaryIO, length: int) -> Iterator[bytes]:
    for start in range(0, length, CHUNK):
        yield file.read(min(CHUNK, length - start))


def _entry(name: str, listed: Any) -> Entry:
    try:
        dtype, shape, (begin, end) = listed["dtype"], tuple(listed["shape"]), listed["data_offsets"]
        sound = dtype in _ITEM_SIZES and all(type(one) is int and one >= 0 for one in (*shape, begin, end))
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound or end - begin != _size(dtype, shape):
        raise ValueError(f"the header's entry {name[:100]!r} is not a tensor of a known type with fitting offsets")
    return dtype, shape, begin


def _check_offsets(entries: Mapping[str, Entry], size: int) -> None:
    """Raise unless the tensors fill the file exactly: without gaps, overlaps, or anything after them."""
    place = 0
    for name, (dtype, shape, begin) in entries.items():
        if begin != place:
            raise ValueError(f"the data of {name[:100]!r} begin at {begin}, not at {place} where those before end")
        place += _size(dtype, shape)
    if place != size:
        raise ValueError(f"the header describes {place} bytes of data, but there are {size}")
