"""Calls of each method of a store, for tests that have each of them fail."""

import asyncio
import inspect
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from modelyard.domain.record import KEY
from modelyard.errors import RecordNotFound, StoreBusy, StoreError
from modelyard.parts.contracts.store_steps import increment
from modelyard.parts.contracts.store_values import Counter, Item
from modelyard.protocols import Store, Tx

Call = Callable[[Any], Any]


def methods_of(*ports: type) -> set[str]:
    """The public methods that a protocol declares, and not its properties."""
    return {name for port in ports for name, one in vars(port).items() if inspect.isfunction(one) and name[0] != "_"}


def outcome_of(call: Callable[[], Any]) -> BaseException | None:
    try:
        call()
    except BaseException as error:
        return error
    return None


def prepare(store: Store) -> None:
    """Keep what the calls expect, and open what the store keeps open."""
    store.transact(lambda tx: tx.find(Counter, KEY, "c") or tx.add(Counter("c")))
    store.transact(lambda tx: tx.find(Item, KEY, "a", 1) and tx.remove(Item, "a", 1))
    assert store.read(lambda snapshot: [snapshot.get(Counter, "c"), snapshot.time])


def _missing(tx: Any) -> None:
    tx.get(Counter, "c")
    tx.get(Counter, "none")


def _added(tx: Tx) -> int:
    tx.add(Item("a", 1))
    return tx.count(Item, "by_shelf", "a")


def _caught(tx: Tx) -> None:
    """A fault that a step catches fails it anyway."""
    with suppress(StoreBusy, StoreError):
        tx.get(Counter, "c")
    with suppress(RecordNotFound):
        tx.get(Counter, "none")


def _taken(store: Store) -> Any:
    return asyncio.run(store.atransact(increment))


def _together(store: Store) -> Any:
    async def all_of_them() -> list[Any]:
        steps = [increment, _missing, increment, _added]
        return await asyncio.gather(*map(store.atransact, steps), return_exceptions=True)

    for outcome in asyncio.run(all_of_them()):
        if isinstance(outcome, BaseException) and not isinstance(outcome, StoreError):
            raise outcome


def _cancelled(store: Store) -> None:
    async def cancel() -> None:
        tasks = [asyncio.ensure_future(store.atransact(step)) for step in (increment, _added)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        with suppress(asyncio.CancelledError):
            await tasks[0]
        await tasks[1]

    asyncio.run(cancel())


def _backed_up(store: Store) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store.backup(str(Path(folder, "copy.db")))


CALLS: Mapping[str, Sequence[Call]] = {
    "transact": [
        lambda store: store.transact(increment),
        lambda store: store.transact(increment, durable=False),
        lambda store: store.transact(_added),
        lambda store: store.transact(_missing),
        lambda store: store.transact(_caught),
        lambda store: store.transact(lambda tx: tx.time),
    ],
    "atransact": [_taken, _together, _cancelled],
    "read": [
        lambda store: store.read(lambda snapshot: snapshot.get(Counter, "c")),
        lambda store: store.read(lambda snapshot: [snapshot.get(Counter, "c"), snapshot.time]),
        lambda store: store.read(lambda snapshot: snapshot.page(Item, "by_shelf", "a")),
        lambda store: store.read(_missing),
        lambda store: store.read(_caught),
    ],
    "settings_version": [lambda store: store.settings_version()],
    "subscribe": [lambda store: store.subscribe("topic", lambda: None).close()],
    "check": [lambda store: store.check()],
    "sync": [lambda store: (store.transact(increment, durable=False), store.sync())],
    "backup": [_backed_up],
    "close": [lambda store: (store.transact(increment, durable=False), store.close())],
}
