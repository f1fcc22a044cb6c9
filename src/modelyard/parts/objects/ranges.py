"""A file of an object store of which only what is read is fetched."""

import io
import os
from collections.abc import Callable
from typing import Any, BinaryIO, cast

READ_AHEAD = 4 * 2**20
"""Bytes that are fetched at once, at least: a request takes longer than a megabyte."""


class RangedFile(io.RawIOBase):
    """Bytes that `fetch(start, length)` returns. It raises `ArtifactMissing` if they are gone meanwhile."""

    def __init__(self, size: int, fetch: Callable[[int, int], bytes]) -> None:
        self._size, self._fetch, self._place = size, fetch, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place, which may lie after the end. Raises ValueError for a place before the start."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"there is nothing {-base - offset} bytes before the start")
        self._place = base + offset
        return self._place

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._place)
        if length <= 0:
            return 0
        buffer[:length] = memoryview(self._fetch(self._place, length))
        self._place += length
        return length

    def readall(self) -> bytes:
        rest = bytearray(max(0, self._size - self._place))
        done = 0
        while done < len(rest):
            done += self.readinto(memoryview(rest)[done : done + READ_AHEAD])
        return bytes(rest)


def ranged(size: int, fetch: Callable[[int, int], bytes]) -> BinaryIO:
    """Open a buffered, seekable file of `size` bytes that are fetched as they are read."""
    return cast(BinaryIO, io.BufferedReader(RangedFile(size, fetch), READ_AHEAD))
