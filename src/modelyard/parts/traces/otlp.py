"""The messages of OpenTelemetry's trace protocol, which strangers send: protobuf or JSON, both read into the JSON form.

A message becomes a mapping with the names of OTLP/JSON: ids are hexadecimal text, bytes base64, numbers of 64 bits
integers. Fields that the protocol does not know are left out, as it demands. The messages and their numbers are from
opentelemetry-proto 1.10, the encoding is protobuf (https://protobuf.dev/programming-guides/encoding).
"""

import base64
import math
import re
import struct
from collections.abc import Mapping
from typing import Any, Never

from modelyard.errors import InvalidInput
from modelyard.formats.json import INT64, MAX_DEPTH, loads

MAX_FIELDS = 2**20
"""How many fields a message may have, with those of the messages in it."""

MAX_STRUCTURE = 2**22
"""Structural characters of a message in JSON."""

Message = dict[str, Any]

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WIRE = {"bool": 0, "int": 0, "fixed64": 1, "double": 1, "fixed32": 5}
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_UNPACK = {"fixed64": struct.Struct("<Q"), "double": struct.Struct("<d"), "fixed32": struct.Struct("<I")}
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_INTEGER = re.compile(r"-?[0-9]{1,20}")

_MESSAGES: Mapping[str, Mapping[int, tuple[str, str]]] = {
    "Request": {1: ("resourceSpans", "ResourceSpans*")},
    "ResourceSpans": {1: ("resource", "Resource"), 2: ("scopeSpans", "ScopeSpans*")},
    "Resource": {1: ("attributes", "KeyValue*")},
    "ScopeSpans": {1: ("scope", "Scope"), 2: ("spans", "Span*")},
    "Scope": {1: ("name", "string"), 2: ("version", "string"), 3: ("attributes", "KeyValue*")},
    "Span": {
        1: ("traceId", "hex"),
        2: ("spanId", "hex"),
        3: ("traceState", "string"),
        4: ("parentSpanId", "hex"),
        5: ("name", "string"),
        6: ("kind", "int"),
        7: ("startTimeUnixNano", "fixed64"),
        8: ("endTimeUnixNano", "fixed64"),
        9: ("attributes", "KeyValue*"),
        11: ("events", "Event*"),
        13: ("links", "Link*"),
        15: ("status", "Status"),
        16: ("flags", "fixed32"),
    },
    "Event": {1: ("timeUnixNano", "fixed64"), 2: ("name", "string"), 3: ("attributes", "KeyValue*")},
    "Link": {
        1: ("traceId", "hex"),
        2: ("spanId", "hex"),
        3: ("traceState", "string"),
        4: ("attributes", "KeyValue*"),
        6: ("flags", "fixed32"),
    },
    "Status": {2: ("message", "string"), 3: ("code", "int")},
    "KeyValue": {1: ("key", "string"), 2: ("value", "AnyValue")},
    "AnyValue": {
        1: ("stringValue", "string"),
        2: ("boolValue", "bool"),
        3: ("intValue", "int"),
        4: ("doubleValue", "double"),
        5: ("arrayValue", "ArrayValue"),
        6: ("kvlistValue", "KeyValueList"),
        7: ("bytesValue", "bytes"),
    },
    "ArrayValue": {1: ("values", "AnyValue*")},
    "KeyValueList": {1: ("values", "KeyValue*")},
}
"""The fields of each message by number: the name, and the type, with `*` where it may come several times."""


def _refuse(why: str, *loc: str | int) -> Never:
    raise InvalidInput.at("body", *loc, msg=why)


# ---- protobuf ------------------------------------------------------------------------------------------------------


def read_protobuf(raw: bytes) -> Message:
    return _ProtobufReader(raw).message("Request", 0, len(raw), {}, MAX_DEPTH)


class _ProtobufReader:
    def __init__(self, raw: bytes) -> None:
        self._raw, self._left = raw, MAX_FIELDS

    def message(self, kind: str, at: int, end: int, into: Message, depth: int) -> Message:
        """Read the fields from `at` to `end` into a message, which has the earlier fields already."""
        if not depth:
            _refuse(f"is nested deeper than {MAX_DEPTH} levels")
        fields = _MESSAGES[kind]
        while at < end:
            self._left -= 1
            if self._left < 0:
                _refuse(f"has more than {MAX_FIELDS} fields; export fewer spans at once")
            tag, at = self._varint(at, end)
            number, wire = tag >> 3, tag & 7
            if wire == _VARINT:
                value, begin = self._varint(at, end)
                after = begin
            elif wire == _LENGTH:
                size, begin = self._varint(at, end)
                value, after = 0, begin + size
            elif wire in _FIXED:
                value, begin, after = 0, at, at + _FIXED[wire]
            else:
                _refuse("is not a protobuf message of this protocol")
            if after > end or not 0 < number < 2**29:
                _refuse("is not a whole protobuf message")
            name, type_ = fields.get(number, ("", ""))
            if name and wire == _WIRE.get(type_, _LENGTH):
                self._put(into, kind, name, type_, value, begin, after, depth)
            at = after
        return into

    def _put(
        self, into: Message, kind: str, name: str, type_: str, value: int, begin: int, end: int, depth: int
    ) -> None:
        if kind == "AnyValue" and name not in into:
            into.clear()
        if type_.endswith("*"):
            into.setdefault(name, []).append(self.message(type_[:-1], begin, end, {}, depth - 1))
        elif type_ in _MESSAGES:
            self.message(type_, begin, end, into.setdefault(name, {}), depth - 1)
        elif type_ == "bool":
            into[name] = value != 0
        elif type_ == "int":
            into[name] = value - 2**64 if value >= 2**63 else value
        elif type_ in _UNPACK:
            (number,) = _UNPACK[type_].unpack_from(self._raw, begin)
            into[name] = number if math.isfinite(number) else _named(number)
        else:
            into[name] = _text(self._raw[begin:end], type_)

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end and shift < 70:
            byte = self._raw[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return value & (2**64 - 1), at
        _refuse("is not a whole protobuf message")


def _text(data: bytes, type_: str) -> str:
    if type_ == "hex":
        return data.hex()
    if type_ == "bytes":
        return base64.b64encode(data).decode()
    try:
        return data.decode()
    except UnicodeDecodeError:
        _refuse("has a text that is not UTF-8")


def _named(number: float) -> str:
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


# ---- JSON ----------------------------------------------------------------------------------------------------------


def read_json(raw: bytes) -> Message:
    return _message("Request", loads(raw, at=("body",), max_structure=MAX_STRUCTURE), ())


def _message(kind: str, value: object, loc: tuple[str | int, ...]) -> Message:
    if not isinstance(value, dict):
        _refuse("must be an object", *loc)
    found: Message = {}
    for name, type_ in _MESSAGES[kind].values():
        given, place = value.get(name), (*loc, name)
        if given is None:
            continue
        if type_.endswith("*"):
            if not isinstance(given, list):
                _refuse("must be a list", *place)
            found[name] = [_message(type_[:-1], item, (*place, at)) for at, item in enumerate(given)]
        elif type_ in _MESSAGES:
            found[name] = _message(type_, given, place)
        else:
            found[name] = _scalar(type_, given, place)
    return found


def _scalar(type_: str, given: object, loc: tuple[str | int, ...]) -> object:
    if type_ in ("int", "fixed64", "fixed32"):
        if isinstance(given, str) and _INTEGER.fullmatch(given):
            given = int(given)
        if type(given) is not int or given not in INT64:
            _refuse("must be an integer of 64 bits", *loc)
    elif type_ == "double":
        if given not in _NOT_FINITE and (isinstance(given, bool) or not isinstance(given, int | float)):
            _refuse("must be a number", *loc)
    elif not isinstance(given, bool if type_ == "bool" else str):
        _refuse(f"must be {'true or false' if type_ == 'bool' else 'a text'}", *loc)
    return given.lower() if type_ == "hex" and isinstance(given, str) else given


# ---- values and answers --------------------------------------------------------------------------------------------


def plain(value: Mapping[str, Any]) -> Any:
    """Return the JSON data that a value of an attribute stands for: null for none.

    >>> plain({"arrayValue": {"values": [{"intValue": 1}, {}]}})
    [1, None]
    """
    for name, found in value.items():
        if name == "arrayValue":
            return [plain(item) for item in found.get("values", ())]
        return attributes_of(found, "values") if name == "kvlistValue" else found
    return None


def attributes_of(message: Mapping[str, Any], name: str = "attributes") -> dict[str, Any]:
    return {pair.get("key", ""): plain(pair.get("value", {})) for pair in message.get(name, ())}


def numbered(number: int, text: str) -> bytes:
    """Write the protobuf message of an integer that is not negative and a text, in the fields 1 and 2.

    `google.rpc.Status` is such a message, and so is the report of rejected spans.
    """
    said = text.encode()
    return b"\x08" + _written(number) + within(2, said)


def within(field: int, message: bytes) -> bytes:
    """Write a field, up to 15, which holds a message or a text."""
    return bytes([field << 3 | _LENGTH]) + _written(len(message)) + message


def _written(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])
