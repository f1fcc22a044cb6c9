"""A store and an artifact store that fail as scheduled, and are otherwise what they are."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import BinaryIO, TypeVar

from modelyard.protocols import ArtifactStore, Snapshot, Store, StoredArtifact, Tx
from modelyard.testing.faults.schedule import FaultPlan

T = TypeVar("T")

TRANSACT, READ, PUT, OPEN = "transact", "read", "put", "open"


class FaultyStore:
    """A store that refuses transactions and reads as scheduled. What it refuses it has not begun."""

    def __init__(self, plan: FaultPlan, inner: Store) -> None:
        self._plan, self._inner = plan, inner

    @property
    def blocking(self) -> bool:
        """As the store says."""
        return self._inner.blocking

    @property
    def durability(self) -> str:
        """As the store says."""
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

    def check(self) -> Mapping[str, object]:
        """As the store says."""
        return self._inner.check()

    def sync(self) -> None:
        """As the store does."""
        self._inner.sync()

    def backup(self, path: str) -> None:
        """As the store does."""
        self._inner.backup(path)

    def close(self) -> None:
        """Close the store."""
        self._inner.close()


class FaultyArtifacts:
    """An artifact store that refuses to keep or to open as scheduled."""

    def __init__(self, plan: FaultPlan, inner: ArtifactStore) -> None:
        self._plan, self._inner = plan, inner

    def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
        """Keep the bytes, or fail before the first."""
        self._plan.raises(PUT)
        return self._inner.put(chunks)

    def open(self, name: str) -> BinaryIO:
        """Open a file, or fail."""
        self._plan.raises(OPEN)
        return self._inner.open(name)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._inner.remove(name)

    def names(self) -> Iterator[str]:
        """Every name kept."""
        return self._inner.names()

    def free(self) -> int | None:
        """As the artifact store says."""
        return self._inner.free()

    def check(self) -> None:
        """As the artifact store says."""
        self._inner.check()

    def backup(self, folder: str) -> None:
        """As the artifact store does."""
        self._inner.backup(folder)


_store: type[Store] = FaultyStore
_artifacts: type[ArtifactStore] = FaultyArtifacts
