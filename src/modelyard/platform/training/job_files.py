"""The files of a training job: its rows, and the checkpoints that it resumes from or starts with."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, Generic, TypeVar

import attrs

from modelyard.errors import ArtifactMissing
from modelyard.platform.runtime import Runtime
from modelyard.protocols import ArtifactStore

T = TypeVar("T")

Files = Mapping[str, Any]


def opener(artifacts: ArtifactStore, files: Files) -> Callable[[str], BinaryIO]:
    """Return a function that opens these files by their names in a record. It raises `ArtifactMissing`."""

    def open_file(name: str) -> BinaryIO:
        if name not in files:
            raise ArtifactMissing(f"there is no file {name!r}")
        return artifacts.open(files[name]["artifact"], files[name]["digest"])

    return open_file


def intact(runtime: Runtime, files: Files) -> Files:
    """Return the saved state, or nothing if a file of it is gone or altered: then the job begins again."""
    try:
        for file in files.values():
            runtime.artifacts.open(file["artifact"], file["digest"]).close()
    except ArtifactMissing:
        return {}
    return files


@attrs.frozen
class TrainingRows(Generic[T]):
    artifacts: ArtifactStore
    name: str
    read: Callable[[BinaryIO], Iterator[T]]
    epochs: int = 1

    def __iter__(self) -> Iterator[T]:
        for _ in range(self.epochs):
            with self.artifacts.open(self.name) as file:
                yield from self.read(file)
