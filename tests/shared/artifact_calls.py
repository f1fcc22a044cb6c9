"""Calls of each method of an artifact store, for tests that have each of them fail."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from modelyard.protocols import ArtifactStore, DirectUpload, StoredArtifact

Call = Callable[[ArtifactStore, StoredArtifact, Path], Any]


def _read(artifacts: ArtifactStore, kept: StoredArtifact, digest: str | None) -> None:
    with artifacts.open(kept.name, digest) as file:
        assert file.read() == b"kept"


def _scratch(artifacts: ArtifactStore) -> None:
    with artifacts.scratch() as file:
        file.write(b"a")
        file.seek(0)
        file.read()


def _left(artifacts: ArtifactStore, folder: Path) -> None:
    (folder / "yard").mkdir(exist_ok=True)
    (folder / "yard" / f"{'0' * 32}.part").write_bytes(b"left by a writer that died")
    artifacts.remove_unfinished(-1e9)


CALLS: Mapping[str, Sequence[Call]] = {
    "put": [lambda artifacts, kept, folder: artifacts.put([b"a", b"b"])],
    "open": [
        lambda artifacts, kept, folder: _read(artifacts, kept, None),
        lambda artifacts, kept, folder: _read(artifacts, kept, kept.digest),
    ],
    "scratch": [lambda artifacts, kept, folder: _scratch(artifacts)],
    "begin": [lambda artifacts, kept, folder: artifacts.begin(1)],
    "finish": [
        lambda artifacts, kept, folder: artifacts.finish(
            DirectUpload("0" * 32, "1", 1, 1, ("http://a",), {}), kept.digest
        )
    ],
    "remove": [lambda artifacts, kept, folder: artifacts.remove(kept.name)],
    "remove_unfinished": [lambda artifacts, kept, folder: _left(artifacts, folder)],
    "names": [lambda artifacts, kept, folder: [*artifacts.names()]],
    "free": [lambda artifacts, kept, folder: artifacts.free()],
    "check": [lambda artifacts, kept, folder: artifacts.check()],
    "backup": [lambda artifacts, kept, folder: artifacts.backup(str(folder / os.urandom(4).hex() / "copy"))],
}
