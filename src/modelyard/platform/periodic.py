"""A thread that repeats an action."""

import threading
from collections.abc import Callable
from typing import Self

from modelyard.errors import ModelyardError, StoreClosed
from modelyard.lazy import log
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Clock

UPKEEP_SECONDS = 1.0
"""How often each part does its upkeep."""


class LoggedFaults:
    """Logs a fault that comes again and again once, until all is well again; one of modelyard's own in one line."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def found(self, what: str, fault: BaseException) -> None:
        said, own = f"{type(fault).__name__}: {fault}", isinstance(fault, ModelyardError)
        if self._last.get(what) != said:
            self._last[what] = said
            (log.warning if own else log.error)("%s: %s", what, fault, exc_info=None if own else fault)

    def well(self, what: str) -> None:
        self._last.pop(what, None)


class Periodic:
    """Calls `action` every so many seconds while it is entered, whatever that raises. It is entered once. `seconds` may
    be a function, which is asked before each wait. It ends by itself when the platform is closed, or the clock fails:
    then it calls `ended`."""

    def __init__(
        self,
        clock: Clock,
        seconds: float | Callable[[], float],
        action: Callable[[], None],
        name: str,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock, self._action, self._on_end, self._faults = clock, action, ended, LoggedFaults()
        self._seconds: Callable[[], float] = seconds if callable(seconds) else lambda: seconds
        self._ended, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def stop(self, within: float | None = None) -> None:
        """End after the current call; wait for that so many seconds at most. Idempotent. The action may call it, and
        does not wait for itself."""
        self._ended.set()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(within)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._clock.wait(self._wake, self._seconds())
                self._wake.clear()
                if not self._ended.is_set() and not self._act():
                    return self._on_end()
        except BaseException:  # noqa: BLE001 - it is logged, and whoever needs this thread hears of it
            log.exception("%s has ended", self._thread.name)
            self._on_end()

    def _act(self) -> bool:
        """Return whether there is a next turn."""
        failed = f"{self._thread.name} failed; it tries again"
        try:
            self._action()
            self._faults.well(failed)
        except StoreClosed:
            log.warning("%s ends: its platform was closed", self._thread.name)
            return False
        except BaseException as fault:  # noqa: BLE001 - it is logged, and the next turn tries again
            self._faults.found(failed, fault)
        return True


def upkeep_threads(runtime: Runtime) -> list[Periodic]:
    """Make the threads in which the parts do their upkeep."""
    named = runtime.upkeep.items()
    return [Periodic(runtime.clock, UPKEEP_SECONDS, do, f"modelyard-upkeep-{name}") for name, do in named]
