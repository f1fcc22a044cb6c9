"""The work while the platform is served: the store is synced each second, and a worker runs if requested."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from modelyard.errors import StoreError
from modelyard.lazy import log
from modelyard.platform.platform import Platform
from modelyard.protocols import Executor
from modelyard.threads import in_new_thread

SYNC_SECONDS = 1.0


@asynccontextmanager
async def served(
    platform: Platform, worker: bool, executor: Executor | None, load: Callable[[], None] | None = None
) -> AsyncIterator[None]:
    working = platform.worker(executor=executor) if worker else None
    if working is not None:
        await in_new_thread(working.__enter__)
    syncing = asyncio.create_task(_sync_each_second(platform))
    loading = None if load is None else asyncio.create_task(in_new_thread(load))
    try:
        yield
    finally:
        if loading is not None:
            await loading
        syncing.cancel()
        with suppress(asyncio.CancelledError):
            await syncing
        if working is not None:
            await in_new_thread(lambda: working.__exit__(None, None, None))
        await in_new_thread(platform.sync)


async def _sync_each_second(platform: Platform) -> None:
    while True:
        await platform.clock.asleep(SYNC_SECONDS)
        try:
            await platform.threads.store.of("").run(platform.sync)
        except StoreError:
            log.exception("the store could not be synced; it is tried again")
