"""The messages of OpenTelemetry's trace protocol, which strangers send: protobuf or JSON, both read into the JSON form.

A message becomes a mapping with the names of OTLP/JSON: ids are hexadecimal text, bytes base64, numbers of 64 bits
integers. Fields that the protocol does not know are left out, as it demands. The messages and their numbers are from
opentelemetry-proto 1.10, the encoding is protobuf (https://protobuf.dev/programming-guides/encoding).

What was sent is not sent again, so what can be read is read: text that is not Unicode with U+FFFD in its place, numbers
in any form, kinds and codes by their names. A span that cannot be read costs itself: it becomes an `Unread`.
"""

import base64
import json
import math
import re
import struct
from collections.abc import Mapping
from typing import Any, Never

import attrs

from modelyard.errors import InvalidInput
from modelyard.formats.json import INT64, MAX_DEPTH, check_size

MAX_FIELDS = 2**20
"""How many fields a message may have, with those of the messages in it."""

MAX_STRUCTURE = 2**22
"""Structural characters of a message in JSON."""

MAX_JSON_DEPTH = 300
"""Levels of brackets of an export in JSON; a span that is nested deeper than `MAX_DEPTH` messages costs itself."""

Message = dict[str, Any]
Place = tuple[str | int, ...]


@attrs.frozen
class Unread:
    """A span that could not be read, or what holds so many spans: where, and why."""

    place: Place
    why: str
    spans: int = 1


class _UnreadableError(Exception):
    """What is wrong with a message, and where."""

    def __init__(self, why: str, place: Place) -> None:
        self.why, self.place = why, place


_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WIRE = {"bool": 0, "int": 0, "kind": 0, "code": 0, "fixed64": 1, "double": 1, "fixed32": 5}
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_UNPACK = {"fixed64": struct.Struct("<Q"), "double": struct.Struct("<d"), "fixed32": struct.Struct("<I")}
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_NAMES = {
    "kind": ("SPAN_KIND_", ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")),
    "code": ("STATUS_CODE_", ("UNSET", "OK", "ERROR")),
}
_APART = frozenset({"ResourceSpans*", "ScopeSpans*", "Span*"})
"""What is read one by one, so that one that cannot be read costs itself."""

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
        6: ("kind", "kind"),
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
    "Status": {2: ("message", "string"), 3: ("code", "code")},
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


def _refuse(why: str, place: Place) -> Never:
    raise _UnreadableError(why, place)


def _whole(read: Any) -> Message:
    """Return the export that `read` reads. Raises `InvalidInput` if it is not one."""
    try:
        found: Message = read()
    except _UnreadableError as wrong:
        raise InvalidInput.at("body", *wrong.place, msg=wrong.why) from None
    return found


# ---- protobuf ------------------------------------------------------------------------------------------------------


def read_protobuf(raw: bytes) -> Message:
    return _whole(lambda: _ProtobufReader(raw).message("Request", 0, len(raw), {}, MAX_DEPTH, ()))


class _ProtobufReader:
    def __init__(self, raw: bytes) -> None:
        self._raw, self._left = raw, MAX_FIELDS

    def message(self, kind: str, at: int, end: int, into: Message, depth: int, place: Place) -> Message:
        """Read the fields from `at` to `end` into a message, which has the earlier fields already."""
        if not depth:
            _refuse(f"is nested deeper than {MAX_DEPTH} levels", place)
        fields = _MESSAGES[kind]
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise InvalidInput.at("body", msg=f"has more than {MAX_FIELDS} fields; export fewer spans at once")
            tag, at = self._varint(at, end, place)
            number, wire = tag >> 3, tag & 7
            if wire == _VARINT:
                value, begin = self._varint(at, end, place)
                after = begin
            elif wire == _LENGTH:
                size, begin = self._varint(at, end, place)
                value, after = 0, begin + size
            elif wire in _FIXED:
                value, begin, after = 0, at, at + _FIXED[wire]
            else:
                _refuse("is not a protobuf message of this protocol", place)
            if after > end or not 0 < number < 2**29:
                _refuse("is not a whole protobuf message", place)
            name, type_ = fields.get(number, ("", ""))
            if name and wire == _WIRE.get(type_, _LENGTH):
                self._put(into, kind, name, type_, value, begin, after, depth, place)
            at = after
        return into

    def _put(
        self,
        into: Message,
        kind: str,
        name: str,
        type_: str,
        value: int,
        begin: int,
        end: int,
        depth: int,
        place: Place,
    ) -> None:
        if kind == "AnyValue" and name not in into:
            into.clear()
        if type_.endswith("*"):
            into.setdefault(name, []).append(self._item(into, name, type_, begin, end, depth - 1, place))
        elif type_ in _MESSAGES:
            self.message(type_, begin, end, into.setdefault(name, {}), depth - 1, place)
        elif type_ == "bool":
            into[name] = value != 0
        elif _WIRE.get(type_) == _VARINT:
            into[name] = value - 2**64 if value >= 2**63 else value
        elif type_ in _UNPACK:
            (number,) = _UNPACK[type_].unpack_from(self._raw, begin)
            into[name] = number if math.isfinite(number) else _named(number)
        else:
            into[name] = _text(self._raw[begin:end], type_)

    def _item(
        self, into: Message, name: str, type_: str, begin: int, end: int, depth: int, place: Place
    ) -> Message | Unread:
        if type_ not in _APART:
            return self.message(type_[:-1], begin, end, {}, depth, place)
        here = (*place, name, len(into[name]))
        try:
            return self.message(type_[:-1], begin, end, {}, depth, here)
        except _UnreadableError as wrong:
            return Unread(wrong.place, wrong.why)

    def _varint(self, at: int, end: int, place: Place) -> tuple[int, int]:
        value = shift = 0
        while at < end and shift < 70:
            byte = self._raw[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return value & (2**64 - 1), at
        _refuse("is not a whole protobuf message", place)


def _text(data: bytes, type_: str) -> str:
    if type_ == "hex":
        return data.hex()
    return base64.b64encode(data).decode() if type_ == "bytes" else data.decode(errors="replace")


def _named(number: float) -> str:
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


# ---- JSON ----------------------------------------------------------------------------------------------------------


def read_json(raw: bytes) -> Message:
    check_size(raw, at=("body",), max_depth=MAX_JSON_DEPTH, max_structure=MAX_STRUCTURE)
    value = _parsed(raw)
    return _whole(lambda: _message("Request", value, MAX_DEPTH, ()))


def _parsed(raw: bytes) -> object:
    """Parse JSON of which nothing should be lost: what is not UTF-8, and half of a surrogate pair, become U+FFFD, NaN
    and infinities their names, and integers beyond 64 bits floats. Of a key that occurs twice the last one counts.
    """
    whole = _ESCAPE.sub(lambda escape: b"\\ufffd" if escape[1] else escape[0], raw) if b"\\" in raw else raw
    try:
        return _LENIENT.decode(whole.decode(errors="replace").removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        says = f"is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    except (RecursionError, MemoryError):
        says = "is too large to be parsed"
    raise InvalidInput.at("body", msg=says, type="json_invalid")


def _float(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else _named(value)


def _int(text: str) -> float | str:
    return int(text) if len(text) <= 20 and int(text) in INT64 else _float(text)


_LENIENT = json.JSONDecoder(strict=False, parse_constant=str, parse_float=_float, parse_int=_int)
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def _message(kind: str, value: object, depth: int, place: Place) -> Message:
    if not isinstance(value, dict):
        _refuse("must be an object", place)
    if not depth:
        _refuse(f"is nested deeper than {MAX_DEPTH} levels", place)
    found: Message = {}
    for name, type_ in _MESSAGES[kind].values():
        given, here = value.get(name), (*place, name)
        if given is None:
            continue
        if type_.endswith("*"):
            if not isinstance(given, list):
                _refuse("must be a list", here)
            read = _apart if type_ in _APART else _message
            found[name] = [read(type_[:-1], item, depth - 1, (*here, at)) for at, item in enumerate(given)]
        elif type_ in _MESSAGES:
            found[name] = _message(type_, given, depth - 1, here)
        elif kind == "AnyValue":
            found[name] = _value(type_, given, here)
        elif (scalar := _scalar(type_, given, here)) is not None:
            found[name] = scalar
    return found


def _apart(kind: str, value: object, depth: int, place: Place) -> Message | Unread:
    try:
        return _message(kind, value, depth, place)
    except _UnreadableError as wrong:
        return Unread(wrong.place, wrong.why, max(1, _spans_of(value)))


def _spans_of(value: object) -> int:
    """Count the spans of what cannot be read."""
    if not isinstance(value, dict):
        return 0
    spans, scopes = value.get("spans"), value.get("scopeSpans")
    if isinstance(scopes, list):
        return sum(map(_spans_of, scopes))
    return len(spans) if isinstance(spans, list) else 0


def _scalar(type_: str, given: object, place: Place) -> object:
    """Return a member of a message; None for one that is not needed and cannot be read."""
    if isinstance(given, dict | list):
        _refuse("must be one value", place)
    if type_ in _NAMES:
        prefix, names = _NAMES[type_]
        short = str(given).upper().removeprefix(prefix)
        return names.index(short) if short in names else _integer(given)
    if type_ in ("hex", "string"):
        return str(given).lower() if type_ == "hex" else str(given)
    number = _integer(given)
    if number is None and type_ == "fixed64":
        _refuse("must be an integer of 64 bits", place)
    return number


def _integer(given: object) -> int | None:
    """Return an integer of 64 bits in any form: 1, "1", 1.0, 1e3 and "1e3"; None for anything else."""
    if isinstance(given, str):
        try:
            given = int(given) if len(given) <= 20 else float(given)
        except ValueError:
            try:
                given = float(given)
            except ValueError:
                return None
    if type(given) is float and given.is_integer():
        given = int(given)
    return given if type(given) is int and given in INT64 else None


def _value(type_: str, given: object, place: Place) -> object:
    """Return the value of an attribute, as it was sent if that is not of the type that it was sent as."""
    if isinstance(given, dict | list):
        _refuse("must be one value", place)
    whole = _integer(given) if type_ == "int" else None
    if whole is not None:
        return whole
    return _number(given) if type_ in ("int", "double") else given


def _number(given: object) -> object:
    """Return a number beyond 64 bits as a float, and anything else as it is."""
    try:
        number = float(given) if isinstance(given, str) else given
    except ValueError:
        return given
    return number if not isinstance(number, float) or math.isfinite(number) else given


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
