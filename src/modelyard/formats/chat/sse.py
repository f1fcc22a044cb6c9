"""Server-sent events as they come, in pieces cut anywhere (HTML standard, 9.2.6)."""

from modelyard.formats.fields import refused

MAX_EVENT = 2**24
"""Bytes beyond which an event is taken for nonsense."""


class EventReader:
    """Takes bytes and gives the data of every event that they complete. Lines end in LF, CR LF or CR.

    >>> reader = EventReader()
    >>> reader.take(b'data: {"a"'), reader.take(b': 1}\\n\\n: still here\\n\\ndata: [DONE]\\n\\n')
    ([], [b'{"a": 1}', b'[DONE]'])
    """

    def __init__(self, most: int = MAX_EVENT) -> None:
        self._most = most
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._returned = False

    def take(self, raw: bytes) -> list[bytes]:
        """The events that are complete now. Raises `InvalidInput` for one that is too long."""
        if self._returned and raw.startswith(b"\n"):
            raw = raw[1:]
        elif not raw:
            return []
        self._returned = raw.endswith(b"\r")
        events: list[bytes] = []
        for piece in raw.splitlines(keepends=True):
            line = piece.rstrip(b"\r\n")
            self._grow(len(line))
            self._line += line
            if len(line) < len(piece):
                self._hear(bytes(self._line), events)
                self._line.clear()
        return events

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > self._most:
            raise refused(f"has an event of more than {self._most} bytes", "too_long")

    def _hear(self, line: bytes, events: list[bytes]) -> None:
        """A line that is complete: part of the data, the end of an event, or nothing of interest."""
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
            self._data, self._size = [], 0
        elif line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
