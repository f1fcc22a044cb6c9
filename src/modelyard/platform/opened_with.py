"""The values that a platform was opened with, and whether it is open."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from modelyard import process_identity
from modelyard.errors import StoreClosed, UsedAfterFork
from modelyard.part import Part
from modelyard.platform.chat.booked_request import Tracing
from modelyard.platform.runtime import Runtime, Settings
from modelyard.protocols import Clock, Executor, Observer, Randomness
from modelyard.threads import Threads

if TYPE_CHECKING:
    from modelyard.platform.jobs.job_type import JobTypes


class OpenedWith:
    """The settings, the clock and the rest of what a platform runs on."""

    _runtime: Runtime

    @property
    def settings(self) -> Settings:
        return self._runtime.settings

    @property
    def parts(self) -> "Sequence[Part]":
        """The optional parts that it was opened with."""
        return self._runtime.parts

    @property
    def each_second(self) -> Mapping[str, Callable[[], None]]:
        """What its parts do each second while it is served or worked for (`Part.upkeep`), by their names."""
        return self._runtime.upkeep

    @property
    def job_types(self) -> "JobTypes":
        """The kinds of jobs that it knows."""
        types: JobTypes = self._runtime.job_types
        return types

    @property
    def clock(self) -> Clock:
        return self._runtime.clock

    @property
    def randomness(self) -> Randomness:
        return self._runtime.randomness

    @property
    def blocking(self) -> bool:
        """Whether a call may block on its store, so that an event loop must run it in a thread."""
        return self._runtime.store.blocking

    @property
    def threads(self) -> Threads:
        """The threads for an event loop's blocking calls."""
        return self._runtime.threads

    @property
    def observer(self) -> Observer | None:
        return self._runtime.observer

    @property
    def tracing(self) -> Tracing | None:
        """What traces its requests, if `modelyard.otel` does."""
        tracing: Tracing | None = self._runtime.cache.tracing
        return tracing


@attrs.define(eq=False)
class Lifetime:
    """The state that all views of one platform share: whether it is open, in which process, and what it must close."""

    close: Callable[[], None]
    executor: Callable[[int], Executor]
    closed: bool = False
    forks: int = attrs.field(factory=lambda: process_identity.forks, init=False)

    def check(self) -> None:
        if self.closed:
            raise StoreClosed("this platform was closed; open it again with open_platform")
        if process_identity.forks != self.forks:
            raise UsedAfterFork("this platform was opened before a fork; open it again in the child process")
