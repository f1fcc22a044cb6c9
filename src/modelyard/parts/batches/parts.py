"""The parts of its files that a batch has written: artifacts that its job names. Many small parts are joined."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from modelyard.formats.json_stream import file_chunks
from modelyard.platform.artifacts import remove_all
from modelyard.protocols import ArtifactStore, StoredArtifact

TOGETHER = 16
"""So many parts of one size become one of the next: so there are few, and no line is copied often."""

Parts = Mapping[str, Any]
"""Names, `<kind>/<number of the first line>`, to `{"artifact", "size", "digest", "rows", "level"}`."""


class PartWriter:
    """Adds lines to parts. `loose` are the artifacts that no record names, `replaced` those that none will name."""

    def __init__(self, artifacts: ArtifactStore, loose: list[str]) -> None:
        self._artifacts, self._loose = artifacts, loose
        self.replaced: list[str] = []

    def add(self, parts: Parts, kind: str, first: int, lines: Iterable[bytes]) -> Parts:
        """Return the parts with another one, of these lines, if there are any."""
        rows = 0

        def counted() -> Iterator[bytes]:
            nonlocal rows
            for line in lines:
                rows += 1
                yield line

        stored = self._put(counted())
        if not rows:
            self._artifacts.remove(stored.name)
            self._loose.remove(stored.name)
            return parts
        parts = {**parts, f"{kind}/{first:09d}": _part(stored, rows, 0)}
        while equal := _last_of_one_level(parts, kind):
            parts = self._merged(parts, equal)
        return parts

    def recorded(self) -> None:
        """Note that a record names what was added, and remove what it has replaced."""
        self._loose[:] = self.replaced
        self.replaced = []
        remove_all(self._artifacts, self._loose)

    def _merged(self, parts: Parts, names: Sequence[str]) -> Parts:
        stored = self._put(self._bytes_of(parts, names))
        rest = {name: part for name, part in parts.items() if name not in names}
        rows, level = sum(parts[name]["rows"] for name in names), parts[names[0]]["level"] + 1
        self.replaced += [parts[name]["artifact"] for name in names]
        return {**rest, names[0]: _part(stored, rows, level)}

    def _bytes_of(self, parts: Parts, names: Sequence[str]) -> Iterator[bytes]:
        for name in names:
            with self._artifacts.open(parts[name]["artifact"], parts[name]["digest"]) as file:
                yield from file_chunks(file)

    def _put(self, chunks: Iterable[bytes]) -> StoredArtifact:
        stored = self._artifacts.put(chunks)
        self._loose.append(stored.name)
        return stored


def _part(stored: StoredArtifact, rows: int, level: int) -> Mapping[str, Any]:
    return {
        "artifact": stored.name,
        "size": stored.size,
        "digest": stored.digest,
        "rows": rows,
        "level": level,
    }


def _last_of_one_level(parts: Parts, kind: str) -> Sequence[str]:
    """Return the names of the last parts of a kind, if they are `TOGETHER` of one level; else none."""
    last = sorted(name for name in parts if name.startswith(f"{kind}/"))[-TOGETHER:]
    return last if len(last) == TOGETHER and len({parts[name]["level"] for name in last}) == 1 else ()
