"""The system's clock and random bytes, and ids that sort by time."""

import os
import threading
import time
from binascii import hexlify
from collections.abc import Callable
from datetime import UTC, datetime
from struct import Struct, iter_unpack

from modelyard.lazy import asyncio


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    monotonic = staticmethod(time.monotonic)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(seconds)

    def sleep(self, seconds: float, woken: threading.Event | None = None) -> None:
        if woken is None:
            time.sleep(seconds)
        else:
            woken.wait(seconds)

    async def asleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def unix_seconds(moment: datetime) -> int:
    """Return the whole seconds from the Unix epoch to a moment.

    >>> unix_seconds(datetime(2026, 1, 1, 0, 0, 7, 900_000, tzinfo=UTC))
    1767225607
    """
    since = moment - _EPOCH  # in half the time of `timestamp`
    return since.days * 86_400 + since.seconds


def unix_time(moment: datetime) -> float:
    """Return the seconds from the Unix epoch to a moment.

    >>> unix_time(datetime(2026, 1, 1, 0, 0, 7, 900_000, tzinfo=UTC))
    1767225607.9
    """
    since = moment - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) / 1_000_000


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def backoff(attempt: int, first: float, longest: float) -> float:
    """Return the seconds to wait after the failed attempt of this number (from 0): doubled each time.

    >>> [backoff(attempt, first=0.5, longest=3.0) for attempt in range(4)]
    [0.5, 1.0, 2.0, 3.0]
    """
    return min(first * 2.0 ** min(attempt, 64), longest)


def system_randomness() -> Callable[[int], bytes]:
    """Make a source of the system's random bytes for one process, which reads pieces of eight bytes many at once. A
    system call for each id would cost more than all else about it. A process that was forked must make its own
    source."""
    pieces = iter_unpack("8s", b"")

    def read(size: int) -> bytes:
        nonlocal pieces
        if size != 8:
            return os.urandom(size)
        for piece in pieces:  # one step of an iterator, so that no two threads get the same
            return piece[0]  # type: ignore[no-any-return]
        pieces = more = iter_unpack("8s", os.urandom(8 * PIECES))
        return next(more)[0]  # type: ignore[no-any-return]

    return read


PIECES = 512


def uuid7_ids(
    milliseconds: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    randomness: Callable[[int], bytes] = os.urandom,
) -> Callable[[], str]:
    """Make a source of UUIDv7 strings (RFC 9562) that only grow. Within a millisecond, and when the clock goes back, a
    counter in the 12 bits after the time continues (method 1 of section 6.2)."""
    lock = threading.Lock()
    last = _VERSION

    def make() -> str:
        nonlocal last
        with lock:
            first = milliseconds() << 16 | _VERSION
            if first <= last:
                first = last + (1 if last & _COUNTER < _COUNTER else _NEXT_MILLISECOND)
            last = first
        (tail,) = _TAIL.unpack(randomness(8))
        digits = hexlify(_HALVES.pack(first, tail & _BELOW_VARIANT | _VARIANT))
        return b"-".join(_GROUPS.unpack(digits)).decode()

    return make


_HALVES, _TAIL, _GROUPS = Struct(">QQ"), Struct(">Q"), Struct("8s4s4s4s12s")
_VERSION, _COUNTER = 0x7000, 0x0FFF
_NEXT_MILLISECOND = 0x1_0000 - _COUNTER
"""Added to a counter that is full: 1 more would change the version."""
_VARIANT, _BELOW_VARIANT = 1 << 63, (1 << 62) - 1


def uuid7_from(moment: datetime) -> str:
    text = f"{int(moment.timestamp() * 1000):012x}"
    return f"{text[:8]}-{text[8:]}"
