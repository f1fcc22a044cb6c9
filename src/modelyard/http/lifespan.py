"""The work while the platform is served: a sync of the store and the upkeep of parts each second, and a worker if one
is requested.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from modelyard.errors import StoreError
from modelyard.lazy import log
from modelyard.platform.platform import Platform
from modelyard.protocols import Executor
from modelyard.threads import in_new_thread

SYNC_SECONDS = 1.0

UPKEEP = "upkeep of parts"
"""On whose account parts work in the threads of backends."""


@asynccontextmanager
async def served(
    platform: Platform, worker: bool, executor: Executor | None, load: Callable[[], None] | None = None
) -> AsyncIterator[None]:
    working = platform.worker(executor=executor) if worker else None
    if working is not None:
        await in_new_thread(working.__enter__)
    repeated = [_sync_each_second(platform), *(_keep_up_each_second(platform, do) for do in platform.upkeep)]
    tasks = [asyncio.create_task(one) for one in repeated]
    loading = None if load is None else asyncio.create_task(in_new_thread(load))
    try:
        yield
    finally:
        if loading is not None:
            await loading
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if working is not None:
            await in_new_thread(lambda: working.__exit__(None, None, None))
        await in_new_thread(platform.sync)


async def _keep_up_each_second(platform: Platform, do: Callable[[], None]) -> None:
    while True:
        await platform.clock.asleep(SYNC_SECONDS)
        try:
            await platform.threads.backends.of(UPKEEP).run(do)
        except Exception:  # noqa: BLE001 - it is logged, and the next turn tries again
            log.exception("the upkeep of a part failed; it is tried again")


async def _sync_each_second(platform: Platform) -> None:
    while True:
        await platform.clock.asleep(SYNC_SECONDS)
        try:
            await platform.threads.store.of("").run(platform.sync)
        except StoreError:
            log.exception("the store could not be synced; it is tried again")
