"""Until when the connections of an event loop wait for their servers, by the platform's clock.

One task looks after all of them. It sleeps until the first wait is due and through waits that end before, so that a
wait costs neither a task nor a timer.
"""

import asyncio
import math
from typing import Protocol

from modelyard.protocols import Clock


class Expiring(Protocol):
    """A wait until it is `due`, in seconds of the monotonic clock."""

    due: float

    def expire(self) -> None:
        """End what waits with a `TimeoutError`."""
        ...


class Deadlines:
    """Ends the waits of an event loop that take too long."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[Expiring, None] = {}
        self._looks = math.inf
        self._watching: asyncio.Task[None] | None = None

    def begin(self, one: Expiring, due: float) -> None:
        one.due = due
        self._waiting[one] = None
        if due < self._looks or self._watching is None or self._watching.done():
            self.close()
            self._looks = due
            self._watching = asyncio.create_task(self._watch())

    def end(self, one: Expiring) -> None:
        del self._waiting[one]

    def close(self) -> None:
        """Stop the task, until something waits again."""
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        while (first := min((one.due for one in self._waiting), default=math.inf)) < math.inf:
            self._looks = first
            left = first - self._clock.monotonic()
            if left > 0:
                await self._clock.asleep(left)
                continue
            for one in [one for one in self._waiting if one.due <= first]:
                one.due = math.inf
                one.expire()
