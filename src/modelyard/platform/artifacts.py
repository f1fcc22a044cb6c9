"""Artifacts that are written before the record that names them."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import BinaryIO

import attrs

from modelyard.errors import OutcomeUnknown
from modelyard.protocols import ArtifactStore, StoredArtifact

_MAYBE_RECORDED = (OutcomeUnknown, KeyboardInterrupt, SystemExit)
"""What may end a block whose record was stored. The sweep removes the artifact if no record names it."""


@contextmanager
def remove_unless_recorded(artifacts: ArtifactStore, name: str) -> Iterator[None]:
    """Remove an artifact if the block raises because its record was not stored."""
    names = [name]
    with remove_loose(artifacts, names):
        yield
        names.clear()


@contextmanager
def remove_loose(artifacts: ArtifactStore, names: list[str]) -> Iterator[None]:
    """Remove at the end of the block the artifacts that `names` has then: no record names them."""
    try:
        yield
    except _MAYBE_RECORDED:
        names.clear()
        raise
    finally:
        remove_all(artifacts, names)


def remove_all(artifacts: ArtifactStore, names: list[str]) -> None:
    """Remove artifacts, and their names from the list."""
    while names:
        artifacts.remove(names[-1])
        names.pop()


@attrs.frozen
class Spool:
    """Data of calls in progress: temporary files, and artifacts that no record names yet. A caller removes what it put,
    or hands it to a resource that records it. `require_room` raises `StorageFull` if the disk has only the room that
    running jobs need."""

    _artifacts: ArtifactStore
    require_room: Callable[[], None]

    def scratch(self) -> BinaryIO:
        """Open an empty temporary file. Raises `StorageFull`, and so does its `write`."""
        return self._artifacts.scratch()

    def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
        """Write the chunks as they come. Raises `StorageFull`, and what the chunks raise; then nothing is kept."""
        return self._artifacts.put(chunks)

    def remove(self, stored: StoredArtifact) -> None:
        """Remove an artifact that is not needed after all. Idempotent."""
        self._artifacts.remove(stored.name)

    def remove_unless_recorded(self, stored: StoredArtifact) -> AbstractContextManager[None]:
        """Remove an artifact if the block, which is to record it, raises."""
        return remove_unless_recorded(self._artifacts, stored.name)


def artifacts_folder(path: str | os.PathLike[str]) -> str:
    """Return the folder next to the file that is really opened; that of a link, if only it has one."""
    own, of_link = f"{os.path.realpath(path)}-artifacts", f"{os.fspath(path)}-artifacts"
    return of_link if os.path.isdir(of_link) and not os.path.isdir(own) else own
