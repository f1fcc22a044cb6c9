"""Artifacts in memory, for tests and for platforms that need not outlive their process."""

import hashlib
import io
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from modelyard.artifacts.naming import check_digest, missing, new_name
from modelyard.errors import StoreError
from modelyard.protocols import ArtifactStore, DirectUpload, Randomness, StoredArtifact


class MemoryArtifacts:
    """Keeps artifacts as bytes; they are gone with the object.

    >>> artifacts = MemoryArtifacts()
    >>> artifacts.open(artifacts.put([b"two ", b"chunks"]).name).read()
    b'two chunks'
    """

    def __init__(self, randomness: Randomness = os.urandom) -> None:
        self._randomness, self._count = randomness, itertools.count()
        self._kept: dict[str, bytes] = {}

    def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
        data = b"".join(chunks)
        name = new_name(self._randomness, next(self._count))
        self._kept[name] = data
        return StoredArtifact(name, len(data), hashlib.sha256(data).hexdigest())

    def open(self, name: str, digest: str | None = None) -> BinaryIO:
        data = self._kept.get(name)
        if data is None:
            raise missing(name)
        return check_digest(io.BytesIO(data), name, digest)

    def scratch(self) -> BinaryIO:
        return io.BytesIO()

    def remove(self, name: str) -> None:
        self._kept.pop(name, None)

    def begin(self, size: int) -> None:
        """Return None: memory has no addresses."""

    def finish(self, upload: DirectUpload, digest: str) -> StoredArtifact:
        raise missing(upload.name)

    def remove_unfinished(self, seconds: float) -> int:
        """Return 0: nothing is left of what was not finished."""
        return 0

    def names(self) -> Iterator[str]:
        return iter(list(self._kept))

    def free(self) -> None:
        """Return None: the limit is not known."""

    def check(self) -> None:
        """Do nothing: memory is always available."""

    def backup(self, folder: str) -> None:
        """Refuse: there are no files to copy. Raises `StoreError`."""
        raise StoreError(f"artifacts in memory cannot be backed up to {folder!r}; open the platform on a file instead")


_: type[ArtifactStore] = MemoryArtifacts
