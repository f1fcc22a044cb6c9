"""What may wait, done off the event loop; and what a task must see to its end, however often it is cancelled."""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from modelyard import event_loop

if TYPE_CHECKING:
    from asyncio import Future

T = TypeVar("T")


def _nothing() -> None:
    """Tells nobody."""


async def in_executor(function: Callable[[], T]) -> T:
    """What the function returns, in the loop's executor. A task that is cancelled leaves it behind."""
    return await event_loop.get_running_loop().run_in_executor(None, function)


async def settled(function: Callable[[], T], stop: Callable[[], None] = _nothing) -> T:
    """The same, never left behind: a task that is cancelled meanwhile tells it to `stop`, and waits until it has."""
    work = event_loop.get_running_loop().run_in_executor(None, function)
    cancelled: event_loop.CancelledError | None = None

    def told(error: "event_loop.CancelledError") -> None:
        nonlocal cancelled
        cancelled = error
        stop()

    await outlast(work, told)
    if cancelled is not None:
        work.exception()  # heard, so that the loop does not complain of it
        raise cancelled
    return work.result()


async def outlast(work: "Future[T]", told: Callable[["event_loop.CancelledError"], None]) -> None:
    """Wait until the work is done; `told` hears of each cancellation meanwhile, which is then not raised."""
    while not work.done():
        try:
            await event_loop.wait([work])
        except event_loop.CancelledError as error:
            told(error)
