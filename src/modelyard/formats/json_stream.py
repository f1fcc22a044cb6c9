"""A large JSON text read piece by piece: only what is taken as a whole is held as a whole.

A `JsonReader` walks down objects and lists as its caller iterates over them, and parses, under the guard of
`json_text.loads`, only the values that the caller takes. It holds the value that is being taken and one chunk.

    reader = JsonReader(file_chunks(file))
    for name in reader.members():
        if name == "rows":
            for place in reader.elements("rows"):
                use(reader.take("rows", place))
        else:
            rest[name] = reader.take(name)
    reader.end()
"""

import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from modelyard.errors import InvalidInput
from modelyard.formats.json import MAX_DEPTH, MAX_STRUCTURE, loads

CHUNK = 2**18

MAX_VALUE = 2**24
"""Bytes of a value that is taken as a whole: while it is parsed, nobody else runs."""

_SIGNIFICANT = re.compile(rb"[^ \t\n\r]")
# A string, or what the end of the buffer leaves of it; lists of scalars and objects of those are stepped over whole.
# Python before 3.11.5 goes on at the wrong place where a pass of a possessive group fails after its first character, so
# none of these passes does: a list in an object may stay open, and then the object does not end.
_STRING = rb'"(?:[^"\\]++|\\.?+)*+(?:"|\Z)'
_PLAIN = rb'[^"\[\]{}]++|' + _STRING
_OPEN_LIST = rb'\[[^"\[\]{}]*+'
_FLAT_LIST = _OPEN_LIST + rb"\]"
_FLAT_OBJECT = rb"\{(?:" + _PLAIN + rb"|" + _OPEN_LIST + rb"\]?+)*+\}"
_AT_ONCE = 100
"""Values that one match skips: it remembers each of them until it ends."""
_TO_BRACKET = re.compile(
    rb"(?:%b){0,%d}([\[\]{}]|)" % (b"|".join((_PLAIN, _FLAT_LIST, _FLAT_OBJECT)), _AT_ONCE), re.DOTALL
)
_WHOLE_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_SCALAR = re.compile(rb"[^ \t\n\r,\]}]++(?!\Z)")
_OPENING = frozenset((b"[", b"{"))


def file_chunks(file: BinaryIO, size: int = CHUNK) -> Iterator[bytes]:
    return iter(lambda: file.read(size), b"")


class JsonReader:
    """Reads one JSON text from chunks of bytes. Every fault is an `InvalidInput` at the place that the caller named.
    While a caller iterates over `members` or `elements`, it reads each value, by `take` or by iterating in turn, before
    the next."""

    def __init__(self, chunks: Iterable[bytes], *, at: tuple[str | int, ...] = ()) -> None:
        self._chunks = iter(chunks)
        self._at = at
        self._buffer = b""
        self._position = self._before = 0

    @property
    def offset(self) -> int:
        """How many bytes of the text were taken."""
        return self._before + self._position

    def members(self, *place: str | int) -> Iterator[str]:
        """Yield the names of the members of an object. A name that comes twice is refused."""
        self._begin(b"{", "must be an object", "dict_type", place)
        names: set[str] = set()
        more = not self._skip(b"}")
        while more:
            name = self._name(place)
            if name in names:
                raise self._invalid(place, "has an object with the same key twice")
            names.add(name)
            yield name
            more = self._goes_on(b"}", place)

    def elements(self, *place: str | int) -> Iterator[int]:
        self._begin(b"[", "must be a list", "list_type", place)
        number = 0
        more = not self._skip(b"]")
        while more:
            yield number
            number += 1
            more = self._goes_on(b"]", place)

    def take(self, *place: str | int) -> object:
        return loads(self._raw(place), at=(*self._at, *place))

    def is_null(self) -> bool:
        return self._peek() == b"n"

    def end(self) -> None:
        if self._peek():
            raise self._invalid((), "is not valid JSON: something follows after its end")

    # ---- structure

    def _begin(self, bracket: bytes, msg: str, type_: str, place: tuple[str | int, ...]) -> None:
        if self._peek() != bracket:
            self.take(*place)
            raise InvalidInput.at(*self._at, *place, msg=msg, type=type_)
        self._position += 1

    def _name(self, place: tuple[str | int, ...]) -> str:
        if self._peek() != b'"':
            raise self._invalid(place, "is not valid JSON: the name of a member is missing")
        name = loads(self._raw(place), at=(*self._at, *place))
        if not self._skip(b":"):
            raise self._invalid(place, "is not valid JSON: ':' is missing after the name of a member")
        return str(name)

    def _goes_on(self, closing: bytes, place: tuple[str | int, ...]) -> bool:
        if self._skip(b","):
            return True
        if self._skip(closing):
            return False
        raise self._invalid(place, f"is not valid JSON: ',' or '{closing.decode()}' is missing")

    def _skip(self, character: bytes) -> bool:
        if self._peek() != character:
            return False
        self._position += 1
        return True

    def _peek(self) -> bytes:
        while True:
            found = _SIGNIFICANT.search(self._buffer, self._position)
            if found:
                self._position = found.start()
                return found[0]
            self._position = len(self._buffer)
            if not self._read_on():
                return b""

    # ---- values

    def _raw(self, place: tuple[str | int, ...]) -> bytes:
        first = self._peek()
        if first in _OPENING:
            end = self._end_of_container(place)
        else:
            end = self._end_of(_WHOLE_STRING if first == b'"' else _SCALAR)
        raw = self._buffer[self._position : end]
        self._position = end
        return raw

    def _end_of(self, pattern: re.Pattern[bytes]) -> int:
        while (found := pattern.match(self._buffer, self._position)) is None:
            if self._stuck() or not self._read_on():
                break
        return found.end() if found else len(self._buffer)

    def _stuck(self) -> bool:
        return self._buffer[self._position : self._position + 1] in (b",", b"]", b"}")

    def _end_of_container(self, place: tuple[str | int, ...]) -> int:
        depth, brackets, position = 1, 1, self._position + 1
        while True:
            for found in _TO_BRACKET.finditer(self._buffer, position):
                bracket = found[1]
                if not bracket and found.end() == len(self._buffer):  # perhaps in the middle of a string
                    break
                position = found.end()
                if not bracket:
                    continue
                brackets += 1
                depth += 1 if bracket in _OPENING else -1
                if depth == 0:
                    return position
                if depth > MAX_DEPTH or brackets > MAX_STRUCTURE:
                    raise self._invalid(place, "is nested too deep or holds too many objects and lists")
            scanned = position - self._position
            if not self._read_on():
                raise self._invalid(place, "is not valid JSON: the text ends too early")
            position = self._position + scanned

    def _read_on(self) -> bool:
        """Read at least as much again as is waiting, so that no byte is looked at more than a few times."""
        parts = [self._buffer[self._position :]]
        waiting, size = len(parts[0]), 0
        if waiting > MAX_VALUE:
            raise self._invalid((), f"has a value of more than {MAX_VALUE} bytes; send smaller pieces")
        for chunk in self._chunks:
            parts.append(chunk)
            size += len(chunk)
            if size > waiting:
                break
        self._before += self._position
        self._buffer, self._position = b"".join(parts), 0
        return size > 0

    def _invalid(self, place: tuple[str | int, ...], msg: str) -> InvalidInput:
        return InvalidInput.at(*self._at, *place, msg=msg, type="json_invalid")
