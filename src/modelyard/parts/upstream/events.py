"""Server-sent events (HTML standard, 9.2.6), read in pieces that are cut anywhere."""

import json
import re

from modelyard.errors import InvalidInput, Problem

_MARK = b"\xef\xbb\xbf"
MAX_EVENT = 2**24
"""The most bytes that an event may have."""


DONE = frozenset({b"[DONE]", b"DONE", b"[done]"})
"""How servers say that nothing more follows."""
_BLANKS = 2**16
_BETWEEN = " \t\r\n,"
_JSON = json.JSONDecoder(strict=False, parse_int=float)
_FIELDS = (b"data", b"event", b"id", b"retry", b"error")
_FIELD = re.compile(rb"(?:[ \t]|\xef\xbb\xbf)*(data|event|id|retry|error)?[ \t]*:", re.IGNORECASE)


def begins_event(line: bytes) -> bool:
    """Return whether a line is one of an event, or a comment. Some servers write spaces around the name of a field,
    or a byte order mark before it."""
    return _FIELD.match(line) is not None


def may_begin_event(begin: bytes) -> bool:
    """Return whether bytes are too few to tell an event from something else: blanks, and a part of a field's name."""
    word = begin.lstrip(b" \t\r\n\xef\xbb\xbf").lower()
    return len(begin) <= _BLANKS and any(field.startswith(word) for field in _FIELDS)


def data_of(line: bytes) -> bytes | None:
    """Return what follows the name of the field in a line of data; None for another line."""
    found = _FIELD.match(line)
    return line[found.end() :].removeprefix(b" ") if found and (found[1] or b"").lower() == b"data" else None


def event_within(event: bytes) -> bytes | None:
    """Return what an event has that was one before: a proxy has wrapped it, or its JSON is written as JSON again."""
    if not event.startswith(b'"'):
        return data_of(event)
    try:
        text = json.loads(event)
    except ValueError:
        return None
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else None


def _failure(said: bytes) -> bytes:
    """Return what a server says of a failure as the format has it. That nothing more follows is none."""
    try:
        found = json.loads(said)
    except (ValueError, RecursionError):
        found = said.decode(errors="replace")
    if isinstance(found, str) and found.strip().encode("utf-8", "replace") in DONE:
        return found.strip().encode()
    return json.dumps({"error": found}).encode()


def _are_objects(raw: bytes) -> bool:
    """Return whether bytes are the JSON of objects, from the first to the last."""
    rest = raw.decode("utf-8", "surrogateescape").strip(_BETWEEN)
    if not rest.startswith("{") or not rest.endswith("}"):
        return False
    try:
        while rest.startswith("{"):
            rest = rest[_JSON.raw_decode(rest)[1] :].lstrip(_BETWEEN)
    except (ValueError, RecursionError):
        return False
    return not rest


class EventReader:
    """Takes bytes and returns the data of every event that they complete. Lines end in LF, CR LF or CR.

    An event whose name is `error`, and a field of that name, as llama.cpp has it, become an error of the format. Lines
    without the name of a field are data, too, if they are whole objects, together or each: servers and proxies write
    errors so.

    >>> reader = EventReader()
    >>> reader.take(b'data: {"a"'), reader.take(b': 1}\\n\\n: still here\\n\\ndata: [DONE]\\n\\n')
    ([], [b'{"a": 1}', b'[DONE]'])
    """

    def __init__(self, most: int = MAX_EVENT) -> None:
        self._most = most
        self._line = bytearray()
        self._data: list[bytes] = []
        self._unnamed: list[bytes] = []
        self._is_failure = False
        self._size = 0
        self._returned = False
        self._start: bytes | None = b""

    def take(self, raw: bytes) -> list[bytes]:
        """Return the events that are complete now. Raises `InvalidInput` for one that is too long.

        Most servers send whole events of one line each, which are found without looking at every line.
        """
        if self._start is not None:
            raw = self._start + raw
            self._start = raw if len(raw) < len(_MARK) and _MARK.startswith(raw) else None
            raw = b"" if self._start is not None else raw.removeprefix(_MARK)
        if not self._size and not self._returned and len(raw) <= self._most and raw.endswith(b"\n\n"):
            parts = raw[:-2].split(b"\n\n")
            events = [part[6:] for part in parts if part[:6] == b"data: "]
            if len(events) == len(parts) and raw.count(b"\n") == 2 * len(parts) and b"\r" not in raw:
                return events
        if self._returned and raw.startswith(b"\n"):
            raw = raw[1:]
        elif not raw:
            return []
        self._returned = raw.endswith(b"\r")
        events = []
        for piece in raw.splitlines(keepends=True):
            line = piece.rstrip(b"\r\n")
            self._grow(len(line))
            self._line += line
            if len(line) < len(piece):
                self._end_line(bytes(self._line), events)
                self._line.clear()
        return events

    def end(self) -> list[bytes]:
        """Return the event that the end of the stream completes: one that no blank line follows."""
        return self.take(b"\n\n") if self._size else []

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._most:
            raise InvalidInput([Problem((), f"has an event of more than {self._most} bytes", "too_long")])

    def _end_line(self, line: bytes, events: list[bytes]) -> None:
        """Take a complete line: part of the data, the end of an event, or something that is ignored."""
        if not line:
            self._take_unnamed()
            if self._data:
                data = b"\n".join(self._data)
                events.append(_failure(data) if self._is_failure else data)
            self._data, self._size, self._is_failure = [], 0, False
        elif (found := _FIELD.match(line)) is not None:
            self._take_unnamed()
            self._take_field((found[1] or b"").lower(), line[found.end() :].removeprefix(b" "))
        elif self._unnamed or line.startswith(b"{"):
            self._unnamed.append(line)

    def _take_unnamed(self) -> None:
        """Take the lines without a name that came one after the other."""
        if self._unnamed:
            whole = b"\n".join(self._unnamed)
            self._data += [whole] if _are_objects(whole) else filter(_are_objects, self._unnamed)
            self._unnamed = []

    def _take_field(self, name: bytes, value: bytes) -> None:
        if name == b"data":
            self._data.append(value)
        elif name == b"error":
            self._data.append(_failure(value))
        elif name == b"event":
            self._is_failure = value.strip() == b"error"
