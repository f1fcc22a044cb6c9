"""Local copies of artifacts. Names are never used twice and bytes never change, so a copy is right or not there.

Several processes of one user may share a folder: the process that adds a copy counts the bytes and drops the copies
that were used least recently. A file that is open stays readable, because its descriptor outlives its name.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import BinaryIO

from modelyard.artifacts.folder import FolderArtifacts
from modelyard.artifacts.naming import NAME, altered
from modelyard.errors import ArtifactMissing, StoreError

_KEPT = 0.9
"""The share of the room that is kept when copies are dropped, so that not every new copy looks through the folder."""


class LocalCache:
    """Copies in the folder `path`, of at most `room` bytes together, plus those that are being added."""

    def __init__(self, path: str, room: int) -> None:
        self._folder = FolderArtifacts(path)
        self._path, self.room = path, room
        self._used, self._lock = self._bytes(), threading.Lock()

    def scratch(self) -> BinaryIO:
        """Open an empty temporary file without a name. Raises `StorageFull`."""
        return self._folder.scratch()

    def open(self, name: str, digest: str | None) -> BinaryIO | None:
        """Open a copy, or return None. A copy that differs from `digest` is dropped."""
        try:
            file = self._folder.open(name, digest)
        except ArtifactMissing:
            self.drop(name)
            return None
        with suppress(OSError):
            os.utime(os.path.join(self._path, name))
        return file

    def add(self, name: str, fetch: Callable[[], Iterator[bytes]], digest: str | None) -> BinaryIO:
        """Copy what `fetch` yields, and open the copy. Raises `StorageFull`, and `ArtifactMissing` if the bytes are
        others.

        While another caller copies the same, this one gets a file without a name.
        """
        try:
            found = self._folder.put_as(name, fetch(), synced=False)
            file = self._folder.open(name)
        except (FileExistsError, ArtifactMissing):
            file, found = self._unnamed(fetch())
        if digest not in (None, found):
            file.close()
            self.drop(name)
            raise altered(name)
        with suppress(
            OSError, StoreError
        ):  # the copy is open: what room the others take is counted by the next process
            self._count(os.fstat(file.fileno()).st_size)
        return file

    def drop(self, name: str) -> None:
        self._folder.remove(name)

    def _unnamed(self, chunks: Iterator[bytes]) -> tuple[BinaryIO, str]:
        file, digest = self._folder.scratch(), hashlib.sha256()
        try:
            for chunk in chunks:
                file.write(chunk)
                digest.update(chunk)
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file, digest.hexdigest()

    def _count(self, size: int) -> None:
        with self._lock:
            self._used += size
            if self._used > self.room:
                self._used = self._drop_oldest(int(self.room * _KEPT))

    def _drop_oldest(self, room: int) -> int:
        """Drop copies, the least recently used first, until `room` is enough. Returns the bytes of those that stay."""
        copies = sorted(self._copies(), reverse=True)
        used = 0
        for _, size, name in copies:
            used += size
            if used > room:
                self.drop(name)
                used -= size
        return used

    def _bytes(self) -> int:
        return sum(size for _, size, _ in self._copies())

    def _copies(self) -> Iterator[tuple[float, int, str]]:
        with os.scandir(self._path) as found:
            for one in found:
                with suppress(FileNotFoundError):
                    if NAME.fullmatch(one.name):
                        yield one.stat().st_mtime, one.stat().st_size, one.name
