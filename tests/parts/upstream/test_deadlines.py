"""One task ends the waits of an event loop that take too long, each at its own time."""

import asyncio
import math
from collections.abc import Awaitable, Callable

from hypothesis import given
from hypothesis import strategies as st

from modelyard.clock import SystemClock
from modelyard.parts.upstream.deadlines import Deadlines


class Steps(SystemClock):
    """A clock that a test moves on its own event loop."""

    def __init__(self) -> None:
        self.time, self.sleepers = 0.0, list[tuple[float, asyncio.Future[None]]]()
        self.monotonic = lambda: self.time  # type: ignore[method-assign]

    async def asleep(self, seconds: float) -> None:
        sleeper = self.time + seconds, asyncio.get_running_loop().create_future()
        self.sleepers.append(sleeper)
        try:
            await sleeper[1]
        finally:
            self.sleepers.remove(sleeper)

    async def advance(self, until: float) -> None:
        """Wake who sleeps, in order, up to a moment."""
        await settle()
        while self.sleepers and min(self.sleepers, key=lambda one: one[0])[0] <= until:
            self.time, woken = min(self.sleepers, key=lambda one: one[0])
            woken.set_result(None)
            await settle()
        self.time = until


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


class Wait:
    """Notes when it expired."""

    def __init__(self, clock: Steps) -> None:
        self.due, self.expired, self._clock = math.inf, list[float](), clock

    def expire(self) -> None:
        self.expired.append(self._clock.time)


def run(main: Callable[[Steps, Deadlines], Awaitable[None]]) -> None:
    """Run a test; what looks after the deadlines ends with the event loop."""
    clock = Steps()

    async def body() -> None:
        await main(clock, Deadlines(clock))

    asyncio.run(body())


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans()), max_size=6))
def test_each_wait_expires_when_it_is_due_unless_it_has_ended(given: list[tuple[int, int, bool]]) -> None:
    """Each begins at a time, is due so long after that, and may have ended before."""

    async def main(clock: Steps, deadlines: Deadlines) -> None:
        expected, waits = [], []
        for begun, seconds, ends in sorted(given):
            await clock.advance(begun)
            wait = Wait(clock)
            waits.append(wait)
            deadlines.begin(wait, begun + seconds)
            if ends:
                deadlines.end(wait)
            expected.append([] if ends else [begun + seconds])
        await clock.advance(100)
        assert [wait.expired for wait in waits] == expected

    run(main)


def test_many_waits_cost_one_task() -> None:
    async def main(clock: Steps, deadlines: Deadlines) -> None:
        for _ in range(20):
            wait = Wait(clock)
            deadlines.begin(wait, 300)
            await settle()
            deadlines.end(wait)
        assert len(asyncio.all_tasks()) == 2
        await clock.advance(400)
        assert len(asyncio.all_tasks()) == 1

    run(main)


def test_one_that_waits_again_is_looked_after_again() -> None:
    async def main(clock: Steps, deadlines: Deadlines) -> None:
        wait = Wait(clock)
        for due in (10, 25):
            deadlines.begin(wait, due)
            await clock.advance(due + 5)
            deadlines.end(wait)
        deadlines.close()
        deadlines.begin(wait, 35)
        await clock.advance(40)
        assert wait.expired == [10, 25, 35]

    run(main)
