"""Whether requests can be served, told at once: from the last look at the store and at the artifacts. Each look has a
thread of its own, as what does not answer may keep it for long."""

from collections.abc import Callable
from threading import Lock, Thread

import attrs

from modelyard.clock import SystemClock
from modelyard.errors import ArtifactsUnavailable
from modelyard.platform.periodic import LoggedFaults
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Clock

FRESH = 1.0
"""Seconds after which the store is looked at again when somebody asks; the artifacts after ten times as many."""

PATIENCE = 0.5
"""Seconds that an answer waits for a look."""

ANSWER = 10.0
"""Seconds that the artifacts may take to answer who asks for the reason."""

VALID = 5.0
"""Seconds for which the last look counts while another one takes long."""


@attrs.frozen
class Readiness:
    """Whether requests can be served, for which the store alone counts, and whether the artifacts can be reached."""

    ready: bool
    artifacts: bool


@attrs.define(eq=False)
class Look:
    """The last look at one thing, and the thread that makes the next one."""

    name: str
    fresh: float
    logged: LoggedFaults = attrs.field(factory=LoggedFaults)
    good: bool = False
    fault: Exception | None = None
    at: float = float("-inf")
    thread: Thread | None = None
    lock: Lock = attrs.field(factory=Lock)

    def is_well(self, check: Callable[[], object], clock: Clock, patience: float = PATIENCE) -> bool:
        """Return whether the last look found nothing wrong, after a look if that is too old."""
        with self.lock:
            if self.thread is None and clock.monotonic() - self.at >= self.fresh:
                self.thread = Thread(target=self._look, args=(check, clock), name="modelyard-look", daemon=True)
                try:
                    self.thread.start()
                except RuntimeError:  # the process has no room for another thread; the next one that asks tries again
                    self.thread = None
            looking = self.thread
        if looking is not None:
            looking.join(patience)
        return self.good and clock.monotonic() - self.at < self.fresh + VALID

    def _look(self, check: Callable[[], object], clock: Clock) -> None:
        good = False
        try:
            check()
            good = True
            self.logged.well(f"the {self.name} cannot be used")
        except Exception as fault:  # noqa: BLE001 - any fault here means that it is away
            self.fault = fault
            self.logged.found(f"the {self.name} cannot be used", fault)
        finally:
            self.good, self.at, self.thread = good, clock.monotonic(), None


@attrs.define(eq=False)
class Looks:
    logged: LoggedFaults = attrs.field(factory=LoggedFaults)
    store: Look = attrs.field(default=attrs.Factory(lambda self: Look("store", FRESH, self.logged), True))
    artifacts: Look = attrs.field(default=attrs.Factory(lambda self: Look("artifacts", 10 * FRESH, self.logged), True))
    leaving: bool = False


def readiness(runtime: Runtime) -> Readiness:
    looks, artifacts = runtime.cache.slot(Looks), artifacts_reached(runtime)
    store = looks.store.is_well(runtime.store.check, runtime.clock)
    return Readiness(store and not looks.leaving, artifacts)


def require_artifacts(runtime: Runtime) -> None:
    """Look at the artifacts now. Raises `StoreError`: `ArtifactsUnavailable` if they do not answer in time."""
    look = Look("artifacts", FRESH, runtime.cache.slot(Looks).logged)
    if not look.is_well(runtime.artifacts.check, SystemClock(), ANSWER):
        raise look.fault or ArtifactsUnavailable(
            f"the artifacts have not answered in {ANSWER:g} seconds; check their store"
        )


def artifacts_reached(runtime: Runtime) -> bool:
    return runtime.cache.slot(Looks).artifacts.is_well(runtime.artifacts.check, runtime.clock)
