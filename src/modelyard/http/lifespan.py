"""The work while the platform is served: a sync and the upkeep of parts each second, and a worker on request."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from modelyard.platform.periodic import LoggedFaults
from modelyard.platform.platform import Platform
from modelyard.protocols import Clock, Executor
from modelyard.threads import TenantThreads, in_new_thread

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
    sync = _each_second(platform.clock, platform.threads.store.of(""), platform.sync, "the store could not be synced")
    threads, doing = platform.threads.backends.of(UPKEEP), platform.each_second.items()
    upkeep = [_each_second(platform.clock, threads, do, f"the upkeep of {name} failed") for name, do in doing]
    tasks = [asyncio.create_task(one) for one in (sync, *upkeep)]
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


async def _each_second(clock: Clock, threads: TenantThreads, do: Callable[[], None], failed: str) -> None:
    faults, what = LoggedFaults(), f"{failed}; it is tried again"
    while True:
        await clock.asleep(SYNC_SECONDS)
        try:
            await threads.run(do)
            faults.well(what)
        except Exception as fault:  # noqa: BLE001 - it is logged, and the next turn tries again
            faults.found(what, fault)
