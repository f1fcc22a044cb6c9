"""Pools of threads: an outcome is its caller's, a cancelled caller waits for it, and no tenant takes all."""

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from modelyard.errors import Overloaded, StoreClosed
from modelyard.flow import AsyncDriver
from modelyard.threads import FairPool, Threads, in_new_thread, run_blocking, run_in


def fails() -> None:
    raise LookupError("not there")


def stops() -> None:
    raise StopIteration


@pytest.fixture
def new_driver() -> AsyncDriver[None]:
    return AsyncDriver(iter(()))  # type: ignore[arg-type]


class Gate:
    """A function that waits until it is opened, and counts who has come."""

    def __init__(self) -> None:
        self.entered, self._opened = threading.Semaphore(0), threading.Event()

    def __call__(self) -> None:
        self.entered.release()
        assert self._opened.wait(60)

    def open(self) -> None:
        self._opened.set()

    async def reached(self, count: int) -> None:
        """Wait until so many have come."""
        for _ in range(count):
            while not self.entered.acquire(blocking=False):
                await asyncio.sleep(0)


def driven(pool: FairPool, main: Callable[[], Awaitable[Any]]) -> Any:
    """Run a coroutine, and close the pool after it."""
    try:
        return asyncio.run(main())  # type: ignore[arg-type]
    finally:
        pool.close()


# ---- one call ------------------------------------------------------------------------------------------------------


def test_the_outcome_is_the_functions_own() -> None:
    pool = FairPool("test", 2)

    async def main() -> None:
        threads = pool.of("acme")
        assert await threads.run(threading.get_ident) != threading.get_ident()
        with pytest.raises(LookupError, match="not there"):
            await threads.run(fails)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await threads.run(stops)

    driven(pool, main)


def test_what_never_blocks_needs_no_thread() -> None:
    async def main() -> None:
        assert await run_in(None, threading.get_ident) == threading.get_ident()
        assert await run_blocking(None, threading.get_ident) != threading.get_ident()
        with pytest.raises(LookupError):
            await in_new_thread(fails)

    asyncio.run(main())


@pytest.mark.parametrize("failing", [False, True])
def test_a_task_that_is_cancelled_twice_stops_its_work_and_ends_with_it(failing: bool) -> None:
    gc.freeze()  # the collection below is to look at what this test makes, and not at all that others have made
    pool, gate, reported = FairPool("test", 2), Gate(), threading.Event()
    unheard: list[Any] = []

    def work() -> None:
        gate()
        if failing:
            fails()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
        task = asyncio.create_task(pool.of("acme").run(work, reported.set))
        await gate.reached(1)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert reported.is_set()
        assert not task.done()
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await task

    driven(pool, main)
    gc.collect()
    assert unheard == []


def test_a_call_that_waits_for_its_turn_leaves_its_line_when_its_task_is_cancelled() -> None:
    pool, gate, began = FairPool("test", 2), Gate(), threading.Event()

    async def main() -> None:
        threads = pool.of("acme")
        first = asyncio.create_task(threads.run(gate))
        await gate.reached(1)
        second = asyncio.create_task(threads.run(began.set))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        gate.open()
        await first
        await threads.run(lambda: None)

    driven(pool, main)
    assert not began.is_set()


# ---- many calls of many tenants ------------------------------------------------------------------------------------


def test_a_tenant_may_hold_no_more_threads_than_are_free() -> None:
    pool, gate = FairPool("test", 8), Gate()

    async def main() -> None:
        mine = [asyncio.create_task(pool.of("greedy").run(gate)) for _ in range(100)]
        await gate.reached(4)
        for tenant in ("a", "b", "c"):
            assert await pool.of(tenant).run(lambda: "served") == "served"
        assert not gate.entered.acquire(blocking=False)
        gate.open()
        await asyncio.gather(*mine)

    driven(pool, main)


def test_a_new_tenant_finds_a_thread_next_to_any_number_of_greedy_ones() -> None:
    pool, gate = FairPool("test", 64), Gate()

    async def main() -> None:
        held = [asyncio.create_task(pool.of(f"t{at % 5}").run(gate)) for at in range(500)]
        for _ in range(500):
            await asyncio.sleep(0)
        assert await pool.of("newcomer").run(lambda: "served") == "served"
        gate.open()
        await asyncio.gather(*held)

    driven(pool, main)


def test_the_lines_of_tenants_take_turns() -> None:
    pool, gate, order = FairPool("test", 2), Gate(), list[str]()

    async def main() -> None:
        held = [asyncio.create_task(pool.of("held").run(gate)), asyncio.create_task(pool.of("other").run(gate))]
        await gate.reached(2)
        calls = [
            asyncio.create_task(pool.of(tenant).run(lambda name=tenant: order.append(name)))  # type: ignore[misc]
            for tenant in ("a", "a", "a", "b", "b", "c")
        ]
        await asyncio.sleep(0)
        gate.open()
        await asyncio.gather(*held, *calls)

    driven(pool, main)
    assert sorted(order) == ["a", "a", "a", "b", "b", "c"]
    assert set(order[:3]) == {"a", "b", "c"}


def test_a_line_that_is_too_long_refuses_its_own_tenant_only() -> None:
    pool, gate = FairPool("test", 4, most_waiting=3), Gate()

    async def main() -> None:
        calls = [asyncio.create_task(pool.of("greedy").run(gate)) for _ in range(5)]
        await gate.reached(2)
        with pytest.raises(Overloaded, match="3 calls are waiting") as refused:
            await pool.of("greedy").run(gate)
        assert refused.value.retry_after > 0
        assert await pool.of("modest").run(lambda: "served") == "served"
        gate.open()
        await asyncio.gather(*calls)

    driven(pool, main)


def test_what_ends_work_never_waits_for_work() -> None:
    pool, gate = FairPool("test", 4), Gate()

    async def main() -> None:
        threads = pool.of("greedy")
        calls = [asyncio.create_task(threads.run(gate)) for _ in range(50)]
        await gate.reached(2)
        assert await threads.to_close.run(lambda: "closed") == "closed"
        gate.open()
        await asyncio.gather(*calls)

    driven(pool, main)


# ---- its life ------------------------------------------------------------------------------------------------------


def test_a_pool_starts_threads_when_they_are_needed_and_ends_them_when_it_is_closed() -> None:
    before = set(threading.enumerate())
    threads = Threads()
    assert set(threading.enumerate()) <= before

    async def main() -> None:
        await threads.store.of("acme").run(lambda: None)

    asyncio.run(main())
    (mine,) = (thread for thread in {*threading.enumerate()} - before if thread.name.startswith("modelyard-store"))
    threads.close()
    threads.close()
    mine.join(60)
    assert not mine.is_alive()


def test_closing_fails_what_waits_and_what_comes_later() -> None:
    pool, gate = FairPool("test", 2), Gate()

    async def main() -> None:
        first = asyncio.create_task(pool.of("acme").run(gate))
        await gate.reached(1)
        second = asyncio.create_task(pool.of("acme").run(gate))
        await asyncio.sleep(0)
        pool.close()
        with pytest.raises(StoreClosed):
            await second
        with pytest.raises(StoreClosed):
            await pool.of("acme").run(gate)
        gate.open()
        await first

    driven(pool, main)


def test_a_loop_that_has_ended_gets_no_outcome() -> None:
    pool, gate, ended = FairPool("test", 2), Gate(), threading.Event()

    def work() -> None:
        gate()
        ended.set()

    loop = asyncio.new_event_loop()

    async def begin() -> None:
        pool.of("acme").begin(work)
        await gate.reached(1)

    loop.run_until_complete(begin())
    loop.close()
    gate.open()
    assert ended.wait(60)
    driven(pool, lambda: pool.of("acme").run(lambda: None))


# ---- coroutines that are run until they wait -------------------------------------------------------------------------


def test_work_that_never_waits_is_done_in_place(new_driver: AsyncDriver[None]) -> None:
    async def answer() -> int:
        assert len(asyncio.all_tasks()) == 1
        return 5

    async def failing() -> None:
        raise LookupError

    async def main() -> None:
        assert await new_driver.wait(answer()) == 5
        with pytest.raises(LookupError):
            await new_driver.wait(failing())
        assert new_driver.cancelled is None

    asyncio.run(main())


def test_work_that_waits_gets_all_that_it_waits_for(new_driver: AsyncDriver[None]) -> None:
    async def main() -> None:
        first, second = asyncio.get_running_loop().create_future(), asyncio.get_running_loop().create_future()
        seen: list[object] = []

        async def work() -> str:
            seen.append(await first)
            try:
                await second
            except ValueError as error:
                seen.append(error)
            await asyncio.sleep(0)
            return "done"

        task = asyncio.ensure_future(new_driver.wait(work()))
        await asyncio.sleep(0)
        first.set_result("first")
        second.set_exception(wrong := ValueError())
        assert await task == "done"
        assert seen == ["first", wrong]

    asyncio.run(main())


def test_work_that_must_not_be_abandoned_outlasts_every_cancellation(new_driver: AsyncDriver[None]) -> None:
    async def main() -> None:
        ends = asyncio.get_running_loop().create_future()

        async def work() -> str:
            await asyncio.sleep(0)
            return str(await ends)

        task = asyncio.ensure_future(new_driver.wait(work()))
        for number in range(5):  # one of them comes while it waits for the next turn
            await asyncio.sleep(0)
            task.cancel(number)
        await asyncio.sleep(0)
        assert not task.done()
        assert not ends.cancelled()
        ends.set_result("done")
        assert await task == "done"
        assert isinstance(new_driver.cancelled, asyncio.CancelledError)
        assert new_driver.cancelled.args == (4,)

    asyncio.run(main())
