"""The time-out of a client: how long it waits for an answer, and for each piece of it, on the platform's clock."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from modelyard.protocols import Clock
from modelyard.testing.clock import ManualClock, TimeUp


@attrs.frozen
class ReadLimit:
    """A limit of so many seconds; None of either stands for none. `timed_out` makes what the client's library raises.
    On a real clock the client measures by itself."""

    clock: ManualClock | None
    seconds: float | None
    timed_out: Callable[[str], Exception]

    @classmethod
    def on(cls, clock: Clock, seconds: Any, timed_out: Callable[[str], Exception]) -> "ReadLimit":
        limit = float(seconds) if isinstance(seconds, int | float) else None
        return cls(clock if isinstance(clock, ManualClock) else None, limit, timed_out)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        if self.clock is None or self.seconds is None:
            yield
            return
        try:
            with self.clock.limited(self.seconds):
                yield
        except TimeUp:
            raise self.timed_out(f"no answer within {self.seconds:g} seconds") from None


def limit_of_httpx(library: Any, clock: Clock, request: Any) -> ReadLimit:
    """Return the limit that a request of httpx or httpx2 brings along."""
    seconds = request.extensions.get("timeout", {}).get("read")
    return ReadLimit.on(clock, seconds, lambda words: library.ReadTimeout(words, request=request))


NO_LIMIT = ReadLimit(None, None, TimeoutError)
