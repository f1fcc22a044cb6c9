"""The application's own sleeps on a manual clock: they take no real time, and the clock goes on to their end."""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from modelyard.testing.clock import ManualClock

_OURS = frozenset({"modelyard", *sys.stdlib_module_names})
"""What sleeps for real: a library that waits for a process, and the platform, which knows its clock."""


@contextmanager
def sleeping_on(clock: ManualClock) -> Iterator[None]:
    """Let `time.sleep` and `asyncio.sleep` move `clock` while the block runs, also where a module has imported them by
    name, and for libraries outside the standard one. A sleep of 0 stays what it is."""
    replaced: dict[Any, Any] = {
        time.sleep: _sleep(time.sleep, clock),
        asyncio.sleep: _asleep(asyncio.sleep, clock),
    }
    places = [*_places(replaced)]
    for names, name, real in places:
        names[name] = replaced[real]
    try:
        yield
    finally:
        for names, name, real in places:
            names[name] = real


def _places(replaced: dict[Any, Any]) -> Iterator[tuple[dict[str, Any], str, Any]]:
    for name, module in [*sys.modules.items()]:
        if name in ("time", "asyncio") or name.partition(".")[0] not in _OURS:
            names = getattr(module, "__dict__", {})
            for key, value in [*names.items()]:
                if any(value is real for real in replaced):
                    yield names, key, value


def _sleep(real: Callable[[float], None], clock: ManualClock) -> Callable[[float], None]:
    def sleep(seconds: float, /) -> None:
        if seconds > 0 and not _is_ours(sys._getframe(1)):
            clock.skip(seconds)
        else:
            real(seconds)

    return sleep


def _asleep(real: Callable[..., Coroutine[Any, Any, Any]], clock: ManualClock) -> Callable[..., Any]:
    async def skipped(seconds: float, result: Any) -> Any:
        await clock.askip(seconds)
        return result

    def sleep(delay: float, result: Any = None) -> Any:
        virtual = delay > 0 and not _is_ours(sys._getframe(1))
        return skipped(delay, result) if virtual else real(delay, result)

    return sleep


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _OURS
