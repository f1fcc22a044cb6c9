"""A store and an artifact store that fail as scheduled."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import BinaryIO, TypeVar

from modelyard.parts.doubles.faults.schedule import FaultPlan
from modelyard.protocols import ArtifactStore, DirectUpload, Snapshot, Store, StoredArtifact, Subscription, Tx

T = TypeVar("T")

TRANSACT, READ, PUT, OPEN = "transact", "read", "put", "open"


class FaultyStore:
    def __init__(self, plan: FaultPlan, inner: Store) -> None:
        self._plan, self._inner = plan, inner

    @property
    def blocking(self) -> bool:
        return self._inner.blocking

    @property
    def durability(self) -> str:
        return self._inner.durability

    def transact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        self._plan.raises(TRANSACT)
        return self._inner.transact(step, durable)

    async def atransact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        self._plan.raises(TRANSACT)
        return await self._inner.atransact(step, durable)

    def read(self, query: Callable[[Snapshot], T]) -> T:
        self._plan.raises(READ)
        return self._inner.read(query)

    def subscribe(self, topic: str, wake: Callable[[], None]) -> Subscription:
        return self._inner.subscribe(topic, wake)

    def settings_version(self) -> int | None:
        return self._inner.settings_version()

    def check(self) -> Mapping[str, object]:
        return self._inner.check()

    def sync(self) -> None:
        self._inner.sync()

    def backup(self, path: str) -> None:
        self._inner.backup(path)

    def close(self) -> None:
        self._inner.close()


class FaultyArtifacts:
    def __init__(self, plan: FaultPlan, inner: ArtifactStore) -> None:
        self._plan, self._inner = plan, inner

    def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
        self._plan.raises(PUT)
        return self._inner.put(chunks)

    def scratch(self) -> BinaryIO:
        self._plan.raises(PUT)
        return self._inner.scratch()

    def open(self, name: str, digest: str | None = None) -> BinaryIO:
        self._plan.raises(OPEN)
        return self._inner.open(name, digest)

    def begin(self, size: int) -> DirectUpload | None:
        self._plan.raises(PUT)
        return self._inner.begin(size)

    def finish(self, upload: DirectUpload, digest: str) -> StoredArtifact:
        return self._inner.finish(upload, digest)

    def remove_unfinished(self, seconds: float) -> int:
        return self._inner.remove_unfinished(seconds)

    def remove(self, name: str) -> None:
        self._inner.remove(name)

    def names(self) -> Iterator[str]:
        return self._inner.names()

    def free(self) -> int | None:
        return self._inner.free()

    def check(self) -> None:
        self._inner.check()

    def backup(self, folder: str) -> None:
        self._inner.backup(folder)


_store: type[Store] = FaultyStore
_artifacts: type[ArtifactStore] = FaultyArtifacts
