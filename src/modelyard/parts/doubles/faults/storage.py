"""A store and an artifact store that fail as scheduled."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import BinaryIO, TypeVar

from modelyard.parts.doubles.faults.schedule import FaultPlan
from modelyard.protocols import ArtifactStore, DirectUpload, Snapshot, Store, StoredArtifact, Subscription, Tx

T = TypeVar("T")

TRANSACT, READ, PUT, OPEN = "transact", "read", "put", "open"


class FaultyStore:
    """A store that refuses transactions and reads as scheduled. A refused step has not begun."""

    def __init__(self, plan: FaultPlan, inner: Store) -> None:
        self._plan, self._inner = plan, inner

    @property
    def blocking(self) -> bool:
        """The value of the wrapped store."""
        return self._inner.blocking

    @property
    def durability(self) -> str:
        """The value of the wrapped store."""
        return self._inner.durability

    def transact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        """Run a step, or fail."""
        self._plan.raises(TRANSACT)
        return self._inner.transact(step, durable)

    async def atransact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        """Run a step, or fail."""
        self._plan.raises(TRANSACT)
        return await self._inner.atransact(step, durable)

    def read(self, query: Callable[[Snapshot], T]) -> T:
        """Run a query, or fail."""
        self._plan.raises(READ)
        return self._inner.read(query)

    def subscribe(self, topic: str, wake: Callable[[], None]) -> Subscription:
        """Subscribe to notices of the inner store."""
        return self._inner.subscribe(topic, wake)

    def settings_version(self) -> int | None:
        """Return what the wrapped store does."""
        return self._inner.settings_version()

    def check(self) -> Mapping[str, object]:
        """Check the wrapped store."""
        return self._inner.check()

    def sync(self) -> None:
        """Sync the wrapped store."""
        self._inner.sync()

    def backup(self, path: str) -> None:
        """Back up the wrapped store."""
        self._inner.backup(path)

    def close(self) -> None:
        """Close the store."""
        self._inner.close()


class FaultyArtifacts:
    """An artifact store that refuses to store or to open as scheduled."""

    def __init__(self, plan: FaultPlan, inner: ArtifactStore) -> None:
        self._plan, self._inner = plan, inner

    def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
        """Store the bytes, or fail before the first."""
        self._plan.raises(PUT)
        return self._inner.put(chunks)

    def scratch(self) -> BinaryIO:
        """Open a temporary file, or fail as if it were put."""
        self._plan.raises(PUT)
        return self._inner.scratch()

    def open(self, name: str, digest: str | None = None) -> BinaryIO:
        """Open a file, or fail."""
        self._plan.raises(OPEN)
        return self._inner.open(name, digest)

    def begin(self, size: int) -> DirectUpload | None:
        """Begin an upload, or fail as if it were put."""
        self._plan.raises(PUT)
        return self._inner.begin(size)

    def finish(self, upload: DirectUpload, digest: str) -> StoredArtifact:
        """Finish an upload."""
        return self._inner.finish(upload, digest)

    def remove_unfinished(self, seconds: float) -> int:
        """Remove what uploads left."""
        return self._inner.remove_unfinished(seconds)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._inner.remove(name)

    def names(self) -> Iterator[str]:
        """Return every stored name."""
        return self._inner.names()

    def free(self) -> int | None:
        """Return the free space of the wrapped store."""
        return self._inner.free()

    def check(self) -> None:
        """Check the wrapped store."""
        self._inner.check()

    def backup(self, folder: str) -> None:
        """Back up the wrapped store."""
        self._inner.backup(folder)


_store: type[Store] = FaultyStore
_artifacts: type[ArtifactStore] = FaultyArtifacts
