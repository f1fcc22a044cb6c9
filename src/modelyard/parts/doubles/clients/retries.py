"""The pauses between a client's retries: they pass on the platform's manual clock, and take no real time. A client that
retries sleeps by itself, and a test would have to wait for that. On a `ManualClock` the pause moves the clock; a
platform with a real clock is asked again at once."""

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast

from modelyard.platform.platform import Platform
from modelyard.testing.clock import ManualClock

T = TypeVar("T")

PAUSE = "_sleep_for_retry"
"""The method with which the clients of `WITH_PAUSE` sleep. It is private, and the same in the versions that are
tested."""

WITH_PAUSE = ("openai", "anthropic")
"""The packages of the clients that were made by one generator, and so sleep alike."""


class RetryPauses:
    def __init__(self, platform: Platform) -> None:
        self._clock = platform.clock if isinstance(platform.clock, ManualClock) else None

    def sleep(self, seconds: float) -> None:
        if self._clock is not None:
            self._clock.skip(seconds)

    async def asleep(self, seconds: float) -> None:
        if self._clock is not None:
            await self._clock.askip(seconds)


def pause_before_retry(client: Any, *, retries_taken: int, max_retries: int, options: Any, response: Any) -> float:
    headers = None if response is None else response.headers
    seconds: float = client._calculate_retry_timeout(max_retries - retries_taken, options, headers)
    return seconds


def without_sleep(client: T, platform: Platform) -> T:
    """Return the `openai` client, which from now on retries in no real time, as do copies made by its `with_options`.
    It stays an instance of its own class."""
    pauses, changed = RetryPauses(platform), cast(Any, client)
    copy: Callable[..., T] = changed.copy

    def pause(**retry: Any) -> None:
        pauses.sleep(pause_before_retry(client, **retry))

    async def apause(**retry: Any) -> None:
        await pauses.asleep(pause_before_retry(client, **retry))

    def copied(**options: Any) -> T:
        return without_sleep(copy(**options), platform)

    setattr(changed, PAUSE, apause if iscoroutinefunction(getattr(changed, PAUSE)) else pause)
    changed.copy = changed.with_options = copied
    return client
