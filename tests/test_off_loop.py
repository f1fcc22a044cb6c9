"""Work in the loop's executor: its outcome is its caller's, and a cancelled caller waits for it."""

import asyncio
import gc
import threading
from typing import Any

import pytest

from modelyard.flow import settled


def fails() -> None:
    raise LookupError("not there")


def test_the_outcome_is_the_functions_own() -> None:
    async def main() -> None:
        assert await settled(threading.get_ident) != threading.get_ident()
        with pytest.raises(LookupError, match="not there"):
            await settled(fails)

    asyncio.run(main())


@pytest.mark.parametrize("failing", [False, True])
def test_a_task_that_is_cancelled_twice_tells_its_work_to_stop_and_ends_with_it(
    failing: bool,
) -> None:
    begun, go_on, ended, told = (threading.Event() for _ in range(4))
    unheard: list[Any] = []

    def work() -> None:
        begun.set()
        assert go_on.wait(10)
        ended.set()
        if failing:
            fails()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
        task = asyncio.create_task(settled(work, told.set))
        await asyncio.to_thread(begun.wait, 10)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert told.is_set()
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(main())
    gc.collect()
    assert unheard == []
