"""Artifacts that are written before the record that names them."""

from collections.abc import Iterator
from contextlib import contextmanager

from modelyard.protocols import ArtifactStore, StoredArtifact


@contextmanager
def remove_unless_recorded(artifacts: ArtifactStore, stored: StoredArtifact) -> Iterator[None]:
    """Remove an artifact again when the record that was to name it could not be stored."""
    try:
        yield
    except BaseException:
        artifacts.remove(stored.name)
        raise
