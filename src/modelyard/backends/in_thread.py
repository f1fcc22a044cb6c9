"""What may wait, done without blocking an event loop, and never left behind."""

from collections.abc import Callable
from typing import TypeVar

from modelyard import event_loop

T = TypeVar("T")


async def in_thread(function: Callable[[], T]) -> T:
    """What the function returns, in the loop's executor.

    It cannot be stopped half way, and must not go on behind its caller's back: a task that is cancelled meanwhile waits
    for its end, however often it is cancelled.
    """
    work = event_loop.get_running_loop().run_in_executor(None, function)
    cancelled: event_loop.CancelledError | None = None
    while not work.done():
        try:
            await event_loop.wait([work])
        except event_loop.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        work.exception()  # heard, so that the loop does not complain of it
        raise cancelled
    return work.result()
