"""Steps that wait for a group commit: what came of each, and how its caller is woken."""

import asyncio
import threading
import time
from collections.abc import Callable
from operator import attrgetter
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from modelyard.protocols import Tx

T = TypeVar("T")


class PendingStep(Generic[T]):
    """A step and its result; settled once everything that it saw is committed."""

    settled: bool = False
    value: T | None = None
    error: BaseException | None = None

    def __init__(self, step: Callable[[Tx], T], durable: bool) -> None:
        self.step = step
        self.durable = durable
        self.since: float = time.monotonic()

    def fail(self, error: Exception) -> None:
        """Settle the call with an error that is not the step's own."""
        self.error = error
        self.settled = True

    def outcome(self) -> T:
        """Return the step's result, or raise what it raised."""
        if self.error is None:
            return self.value  # type: ignore[return-value]  # set together with the error None
        try:
            raise self.error
        finally:
            self.error = None  # the traceback holds this frame


is_settled = attrgetter("settled")


class ThreadCall(PendingStep[T]):
    """A call whose thread waits for it, and the one that it wakes when it leaves.

    A signal may interrupt the main thread anywhere, so that none depends on it: it wakes no other.
    """

    next: "ThreadCall[Any] | None" = None
    left: bool = False

    def __init__(self, step: Callable[[Tx], T], durable: bool) -> None:
        super().__init__(step, durable)
        self._bell: SimpleQueue[None] = SimpleQueue()
        self.wait = self._bell.get
        self.wakes_next: bool = threading.get_ident() != threading.main_thread().ident

    def wake(self) -> None:
        """Let the thread look again whether the call is settled, or leads."""
        self._bell.put(None)

    def wake_after(self, call: "ThreadCall[Any] | None") -> None:
        """Wake this call when the other leaves; now if there is none, or it saw that it is settled and has left."""
        if call is None:
            self.wake()
            return
        call.next = self
        if call.left:
            call.leave()

    def leave(self) -> None:
        """Wake the next. The thread that leaves calls this, and the leader where it left too early to know the next.

        Both may wake the same one, which does no harm.
        """
        self.left = True
        if (following := self.next) is not None:
            self.next = None
            following.wake()


class TaskCall(PendingStep[T]):
    """A call that a task of `loop` awaits; `done` is made where it has to wait for longer than a turn."""

    done: "asyncio.Future[None] | None" = None

    def __init__(self, step: Callable[[Tx], T], durable: bool, loop: asyncio.AbstractEventLoop) -> None:
        self.step, self.durable, self.loop, self.since = step, durable, loop, time.monotonic()


def interrupts_leader(error: BaseException) -> bool:
    """Return whether this ends the leading thread rather than the step: only the main thread receives signals."""
    return not isinstance(error, Exception) and threading.current_thread() is threading.main_thread()
