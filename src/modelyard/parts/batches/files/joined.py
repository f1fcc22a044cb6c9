"""The bytes of a stored file, as one file that can be read: part after part, none of them in memory as a whole."""

import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, cast

from modelyard.protocols import ArtifactStore

BUFFER = 2**18


class JoinedParts(io.RawIOBase):
    """Reads parts one after the other; each is opened, and compared with its digest, when the one before it ends."""

    def __init__(self, parts: Iterator[Callable[[], BinaryIO]]) -> None:
        self._parts = parts
        self._part: BinaryIO | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer, and return how many bytes; 0 at the end. Raises `ArtifactMissing`."""
        while True:
            if self._part is None:
                opened = next(self._parts, None)
                if opened is None:
                    return 0
                self._part = opened()
            found = self._part.read(len(buffer))
            if found:
                buffer[: len(found)] = found
                return len(found)
            self._part.close()
            self._part = None

    def close(self) -> None:
        if self._part is not None:
            self._part.close()
            self._part = None
        super().close()


def open_joined(artifacts: ArtifactStore, parts: Mapping[str, Any]) -> BinaryIO:
    """Open the parts of a stored file as one, in the order of their names. Reading raises `ArtifactMissing`."""
    files = [parts[name] for name in sorted(parts)]
    opened = (lambda file=file: artifacts.open(file["artifact"], file["digest"]) for file in files)
    return cast(BinaryIO, io.BufferedReader(JoinedParts(opened), BUFFER))
