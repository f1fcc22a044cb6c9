"""Sorted entries in chunks: adding and removing one takes the same time among few and among millions."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from operator import itemgetter
from typing import Any

Position = tuple[Any, ...]
Entry = tuple[Position, Any]
"""A position, which no other entry has, and what is there."""

_position: Callable[[Entry], Position] = itemgetter(0)

_LONGEST = 1024
"""Entries of a chunk: moving the rest of one takes less time than finding the place in it."""


def _last_position(chunk: list[Entry]) -> Position:
    return chunk[-1][0]


class SortedEntries:
    """Entries by their positions. No chunk is empty, and each one follows the one before."""

    __slots__ = ("_chunks", "_last", "_size")

    def __init__(self, entry: Entry) -> None:
        self._last = [entry]
        self._chunks = [self._last]
        self._size = 1

    def __len__(self) -> int:
        return self._size

    def add(self, entry: Entry) -> None:
        """Add an entry. Most arrive in the order of their positions, so that appending is enough."""
        self._size += 1
        last = self._last
        if last[-1] < entry:
            if len(last) < _LONGEST:
                last.append(entry)
            else:
                self._last = [entry]
                self._chunks.append(self._last)
            return
        at = self._chunk_at(entry[0])
        chunk = self._chunks[at]
        insort(chunk, entry, key=_position)
        if len(chunk) > _LONGEST:
            self._chunks[at : at + 1] = [chunk[: _LONGEST // 2], chunk[_LONGEST // 2 :]]
            self._last = self._chunks[-1]

    def remove(self, position: Position) -> None:
        """Remove the entry at a position. The last one of all stays, for the owner to drop with this object."""
        self._size -= 1
        if not self._size:
            return
        at = self._chunk_at(position)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, position, key=_position)]
        if not chunk:
            del self._chunks[at]
            self._last = self._chunks[-1]

    def after(self, cursor: Position | None, limit: int) -> list[Any]:
        """Return what is at up to `limit` positions after the cursor, or from the first one on."""
        chunks, found = self._chunks, list[Any]()
        at = 0 if cursor is None else bisect_right(chunks, cursor, key=_last_position)
        while at < len(chunks) and len(found) < limit:
            chunk = chunks[at]
            start = 0 if cursor is None or found else bisect_right(chunk, cursor, key=_position)
            found += [there for _, there in chunk[start : start + limit - len(found)]]
            at += 1
        return found

    def before(self, cursor: Position | None, limit: int) -> list[Any]:
        """Return what is at up to `limit` positions before the cursor, or from the last one on, the greatest first."""
        chunks, found = self._chunks, list[Any]()
        at = len(chunks) - 1
        if cursor is not None:
            at = min(at, bisect_left(chunks, cursor, key=_last_position))
        while at >= 0 and len(found) < limit:
            chunk = chunks[at]
            end = len(chunk) if cursor is None or found else bisect_left(chunk, cursor, key=_position)
            found += [there for _, there in reversed(chunk[max(0, end - limit + len(found)) : end])]
            at -= 1
        return found

    def _chunk_at(self, position: Position) -> int:
        return bisect_left(self._chunks, position, key=_last_position)
