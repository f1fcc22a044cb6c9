"""A join of names that does not fit in memory: facts about names, spilled to temporary files by a hash of the name.

All facts of one name lie in one shard, so shards can be looked at one after the other. Few facts stay in memory.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import BinaryIO, Self
from zlib import crc32

import attrs

from modelyard.protocols import ArtifactStore

SHARDS = 64
SPILLED_AT = 20_000
"""How many facts are kept in memory before they are spilled."""

Fact = tuple[str, ...]


@attrs.define
class NameShards:
    """Facts about names. A million names take a sixty-fourth of their memory, and room in scratch files."""

    _artifacts: ArtifactStore
    _pending: dict[int, list[bytes]] = attrs.field(factory=lambda: defaultdict(list))
    _count: int = 0
    _files: dict[int, BinaryIO] = attrs.field(factory=dict)
    _opened: ExitStack = attrs.field(factory=ExitStack)

    def add(self, name: str, *fact: str) -> None:
        """Add a fact about a name. Raises `StorageFull`."""
        shard = crc32(name.encode(errors="surrogatepass")) % SHARDS
        self._pending[shard].append(json.dumps((name, *fact)).encode() + b"\n")
        self._count += 1
        if self._count % SPILLED_AT == 0:
            self._spill()

    def shards(self) -> Iterator[Mapping[str, set[Fact]]]:
        """Yield the facts of all names, a shard at a time. Nothing can be added after it."""
        for shard in range(SHARDS):
            facts: dict[str, set[Fact]] = defaultdict(set)
            for line in self._lines(shard):
                name, *fact = json.loads(line)
                facts[name].add(tuple(fact))
            yield facts

    def _lines(self, shard: int) -> Iterator[bytes]:
        if shard in self._files:
            self._files[shard].seek(0)
            yield from self._files[shard].read().splitlines()  # a scratch file has no buffer to read lines from
        yield from self._pending.pop(shard, ())

    def _spill(self) -> None:
        for shard, lines in self._pending.items():
            if shard not in self._files:
                self._files[shard] = self._opened.enter_context(self._artifacts.scratch())
            self._files[shard].write(b"".join(lines))
        self._pending.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()
