"""A clock that stands still until a test moves it."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

from modelyard.protocols import Clock

_LOOK_AGAIN = 0.001


class ManualClock:
    """Time moves by `advance` alone; `wait` returns when its event is set or time was moved on far enough. Thread-safe.

    clock = ManualClock()
    clock.advance(30)
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start, self._moved, self._jumped = start, 0.0, 0.0
        self._lock = threading.Lock()

    def now(self) -> datetime:
        """The wall clock."""
        return self._start + timedelta(seconds=self._moved + self._jumped)

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._moved

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set, or until the clock has been moved on by so many seconds."""
        until = self._moved + seconds
        while not event.wait(_LOOK_AGAIN):
            if self._moved >= until:
                return event.is_set()
        return True

    async def asleep(self, seconds: float) -> None:
        """Wait until the clock has been moved on by so many seconds."""
        until = self._moved + seconds
        while self._moved < until:
            await asyncio.sleep(_LOOK_AGAIN)

    def advance(self, seconds: float) -> None:
        """Move time on."""
        with self._lock:
            self._moved += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock on or back, as a correction does; monotonic time does not notice."""
        with self._lock:
            self._jumped += seconds


_conforms: type[Clock] = ManualClock
