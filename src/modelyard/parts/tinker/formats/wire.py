"""Protobuf's wire format, as far as Tinker's messages need it (https://protobuf.dev/programming-guides/encoding)."""

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Never

from modelyard.errors import InvalidInput

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_DOUBLE = struct.Struct("<d")
_FIXED = {FIXED64: 8, FIXED32: 4}

Loc = tuple[str | int, ...]
"""The place of a message in its request."""

Known = Mapping[int, tuple[int, ...]]
"""The fields of a message by their numbers, each with its wire types."""

_TYPES = {VARINT: "an integer", FIXED64: "a number of 64 bits", LENGTH: "bytes", FIXED32: "a number of 32 bits"}


def refuse(why: str, *loc: str | int) -> Never:
    raise InvalidInput.at("body", *loc, msg=why)


def fields_of(raw: memoryview, known: Known, *loc: str | int, exactly: bool = True) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each field, in their order: an integer, a float of 64 bits, or bytes.

    Raises `InvalidInput` for a field that is not known, or of another type; if not `exactly`, it is left out.
    """
    at, end = 0, len(raw)
    while at < end:
        tag, at = _read_varint(raw, at, end, loc)
        number, wire = tag >> 3, tag & 7
        if not 0 < number < 2**29:
            refuse("is not a protobuf message", *loc)
        value: Any
        if wire == VARINT:
            value, at = _read_varint(raw, at, end, loc)
        else:
            size, at = _read_varint(raw, at, end, loc) if wire == LENGTH else (_FIXED.get(wire, -1), at)
            value, at = raw[at : at + size], at + size
            if size < 0 or at > end:
                refuse("is not a whole protobuf message", *loc)
        if wire in known.get(number, ()):
            yield number, _DOUBLE.unpack(value)[0] if wire == FIXED64 else value
        elif exactly:
            takes = " or ".join(_TYPES[one] for one in known.get(number, ()))
            refuse(f"field {number} is {_TYPES[wire]}, not {takes}" if takes else f"field {number} is not known", *loc)


def _read_varint(raw: memoryview, at: int, end: int, loc: Loc) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = raw[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value & (2**64 - 1), at
    refuse("is not a whole protobuf message", *loc)


def text_of(value: memoryview, *loc: str | int) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        refuse("has a text that is not UTF-8", *loc)


def numbers_in(typecode: str, value: memoryview, *loc: str | int) -> Sequence[Any]:
    """Return the numbers that bytes hold, in little-endian order: `i` of 32 bits, `q` of 64, `f` floats of 32 bits."""
    found = array(typecode)
    if len(value) % found.itemsize:
        refuse(f"are not whole numbers of {8 * found.itemsize} bits", *loc)
    found.frombytes(value)
    return _little_endian(found)


def packed(typecode: str, values: Iterable[Any]) -> bytes:
    return _little_endian(array(typecode, values)).tobytes()


def _little_endian(numbers: "array[Any]") -> "array[Any]":
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


# ---- written -----------------------------------------------------------------------------------------------------


def varint(number: int, value: int) -> bytes:
    """Write a field that holds an integer; nothing for 0, which is the value of an absent field."""
    return b"" if value == 0 else _varint_bytes(number << 3) + _varint_bytes(value & (2**64 - 1))


def within(number: int, message: bytes | str) -> bytes:
    """Write a field that holds bytes, a text or a message."""
    raw = message.encode() if isinstance(message, str) else message
    return b"".join((_varint_bytes(number << 3 | LENGTH), _varint_bytes(len(raw)), raw))


def named_numbers(number: int, values: Mapping[str, float]) -> bytes:
    double = bytes([2 << 3 | FIXED64])
    return b"".join(within(number, within(1, name) + double + _DOUBLE.pack(value)) for name, value in values.items())


def _varint_bytes(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)
