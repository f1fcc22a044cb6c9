"""Waiting for notifications of the store: of the events of a job, and of jobs that are ready."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import attrs

from modelyard.domain.job import Job
from modelyard.lazy import log
from modelyard.protocols import Clock, Store, Subscription


class JobWaiter:
    """Sleeps until a topic is notified, such as that of a job, but at most so long. It is closed at the end."""

    def __init__(self, clock: Clock, store: Store, poll: float) -> None:
        self._clock, self._store, self._poll = clock, store, poll
        self._woken = threading.Event()
        self._hurry: Callable[[], object] | None = None
        self._topic = ""
        self._subscription: Subscription | None = None

    def watch(self, topic: str) -> None:
        if topic != self._topic:
            self.close()
            self._topic, self._subscription = topic, self._store.subscribe(topic, self._wake)
            self._woken.set()  # something may have happened before

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds, self._woken)
        self._woken.clear()

    async def asleep(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as patience:
                self._hurry = partial(loop.call_soon_threadsafe, _end, patience, loop)
                if not self._woken.is_set():
                    await self._clock.asleep(seconds)
        except TimeoutError:
            pass
        finally:
            self._hurry = None
            self._woken.clear()

    def outage(self, fault: object) -> "JobPause":
        log.warning("waiting for the store; the job is looked at again in %g s: %s", self._poll, fault)
        return JobPause(self._poll, self)

    def close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()

    def _wake(self) -> None:
        self._woken.set()
        if (hurry := self._hurry) is not None:
            try:
                hurry()
            except RuntimeError:  # its loop was closed
                return


@attrs.frozen
class JobPause:
    seconds: float
    waiter: JobWaiter
    job: Job | None = None

    def sleep(self) -> None:
        if self.seconds:
            self.waiter.sleep(self.seconds)

    async def asleep(self) -> None:
        if self.seconds:
            await self.waiter.asleep(self.seconds)


def _end(patience: asyncio.Timeout, loop: asyncio.AbstractEventLoop) -> None:
    try:
        patience.reschedule(loop.time())
    except RuntimeError:  # it has ended
        return
