"""A store that runs every step twice, to find steps that are not pure functions of their transaction."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from modelyard.protocols import Snapshot, Store, Subscription, Tx

T = TypeVar("T")


class _Undone(Exception):
    """Ends a step whose writes are to be undone."""


class RunTwiceStore:
    """Passes everything to `store`, but runs each step twice: the first time its writes and its result are dropped.

    Any store may repeat a step, after an error or a lost race, so a service must behave in the same way on this one.

        platform_store = RunTwiceStore(MemoryStore(RECORDS))
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def blocking(self) -> bool:
        return self._store.blocking

    @property
    def durability(self) -> str:
        return self._store.durability

    def transact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        """Run `step` twice; the second time counts."""
        with suppress(Exception):
            self._store.transact(_undoing(step), durable)
        return self._store.transact(step, durable)

    async def atransact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        """Run `step` twice, for a task."""
        with suppress(Exception):
            await self._store.atransact(_undoing(step), durable)
        return await self._store.atransact(step, durable)

    def read(self, query: Callable[[Snapshot], T]) -> T:
        """Run `query` once: it changes nothing."""
        return self._store.read(query)

    def subscribe(self, topic: str, wake: Callable[[], None]) -> Subscription:
        return self._store.subscribe(topic, wake)

    def settings_version(self) -> int | None:
        return self._store.settings_version()

    def check(self) -> Mapping[str, object]:
        return self._store.check()

    def sync(self) -> None:
        self._store.sync()

    def backup(self, path: str) -> None:
        self._store.backup(path)

    def close(self) -> None:
        self._store.close()


def _undoing(step: Callable[[Tx], object]) -> Callable[[Tx], None]:
    def undone(tx: Tx) -> None:
        step(tx)
        raise _Undone

    return undone


_conforms: type[Store] = RunTwiceStore
