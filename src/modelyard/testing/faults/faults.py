"""Faults on schedule, at every port of one platform, for the tests of what has to bear them."""

import os
from typing import Any

import attrs

from modelyard.compose import ids_by, open_platform
from modelyard.platform.platform import Platform
from modelyard.protocols import ArtifactStore, Executor, Store, Trainer
from modelyard.testing.clock import ManualClock
from modelyard.testing.faults.backend import COMPLETION, AnyBackend, faulty_backend
from modelyard.testing.faults.kinds import Cut, Disconnect, Happened, Killed, Malformed, Slow, TakenOver, Timeout
from modelyard.testing.faults.schedule import FaultPlan
from modelyard.testing.faults.storage import OPEN, PUT, READ, TRANSACT, FaultyArtifacts, FaultyStore
from modelyard.testing.faults.transport import CONNECTION, FaultyTransport
from modelyard.testing.faults.work import STEP, SUBMIT, FaultyExecutor, FaultyTrainer

__all__ = ["Cut", "Disconnect", "Faults", "Happened", "Killed", "Malformed", "Slow", "TakenOver", "Timeout"]


class Faults:
    """What goes wrong at the ports of one platform, and when. With the same seed the same goes wrong.

        faults = Faults()
        with faults.open_platform() as platform:
            faults.completion(RateLimited("too many requests", retry_after=2), at=3)
            ...
        faults.check()

    Each method below that names an operation schedules one fault of it: `at` counts from 1, the next time, and is 1
    unless given; it comes `times` times from then on, once unless given. With `rate`, from 0 to 1, each time draws
    whether it comes. What is to come at a moment is scheduled by the clock:
    `faults.clock.at(moment, lambda: faults.transact(StoreBusy("...")))`.
    """

    def __init__(self, seed: int = 0, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self._plan = FaultPlan(seed, self.clock)
        self._store: Store | None = None

    # ---- what goes wrong

    def completion(
        self,
        fault: Exception | Slow | Timeout | Disconnect | Cut | Malformed,
        *,
        at: int | None = None,
        times: int | None = None,
        rate: float | None = None,
        after: int = 0,
    ) -> None:
        """When a backend is asked for a completion, before its first token or `after` so many of each choice."""
        self._plan.add(COMPLETION, fault, at, times, rate, after)

    def connection(
        self,
        fault: Exception | Slow | Timeout | Disconnect,
        *,
        at: int | None = None,
        times: int | None = None,
        rate: float | None = None,
        after: int = 0,
    ) -> None:
        """When a client in process sends a request: before the platform hears of it, or `after` so many events of its
        answer; an answer without events counts as one.
        """
        self._plan.add(CONNECTION, fault, at, times, rate, after)

    def transact(
        self, error: Exception, *, at: int | None = None, times: int | None = None, rate: float | None = None
    ) -> None:
        """When the store is to run a transaction: `StoreBusy`, `StorageFull`."""
        self._plan.add(TRANSACT, error, at, times, rate)

    def read(
        self, error: Exception, *, at: int | None = None, times: int | None = None, rate: float | None = None
    ) -> None:
        """When the store is read."""
        self._plan.add(READ, error, at, times, rate)

    def put(
        self, error: Exception, *, at: int | None = None, times: int | None = None, rate: float | None = None
    ) -> None:
        """When an artifact is to be kept: `StorageFull`."""
        self._plan.add(PUT, error, at, times, rate)

    def open(
        self, error: Exception, *, at: int | None = None, times: int | None = None, rate: float | None = None
    ) -> None:
        """When an artifact is opened: `ArtifactMissing`."""
        self._plan.add(OPEN, error, at, times, rate)

    def step(
        self,
        fault: Exception | Slow | Killed | TakenOver,
        *,
        at: int | None = None,
        times: int | None = None,
        rate: float | None = None,
    ) -> None:
        """When a training job reaches a step, before that is recorded. `at` is the number of the step in its job."""
        self._plan.add(STEP, fault, at, times, rate)

    def submit(
        self,
        fault: Exception | Killed,
        *,
        at: int | None = None,
        times: int | None = None,
        rate: float | None = None,
    ) -> None:
        """When a worker hands a job to its executor."""
        self._plan.add(SUBMIT, fault, at, times, rate)

    # ---- what came of it

    @property
    def happened(self) -> tuple[Happened, ...]:
        """The faults that came, in order."""
        return tuple(self._plan.happened)

    @property
    def unused(self) -> tuple[str, ...]:
        """The faults that did not come, or less often than they were to, in words."""
        return tuple(str(planned) for planned in self._plan.planned if planned.lacks)

    def check(self) -> None:
        """Raise AssertionError when a fault that was scheduled did not come."""
        assert not self.unused, f"these faults were scheduled and did not come: {'; '.join(self.unused)}"

    # ---- where it goes wrong

    def backend(self, inner: AnyBackend) -> AnyBackend:
        """The backend, disturbed; behind a router every backend is."""
        return faulty_backend(self._plan, inner)

    def store(self, inner: Store) -> Store:
        """The store, disturbed."""
        self._store = inner
        return FaultyStore(self._plan, inner)

    def artifacts(self, inner: ArtifactStore) -> ArtifactStore:
        """The artifact store, disturbed."""
        return FaultyArtifacts(self._plan, inner)

    def trainer(self, inner: Trainer) -> Trainer:
        """The trainer, disturbed. A job can be killed or taken over where `store` has wrapped the platform's store."""
        return FaultyTrainer(self._plan, inner, self._kept, ids_by(self.clock))

    def executor(self, inner: Executor) -> Executor:
        """The executor, disturbed."""
        return FaultyExecutor(self._plan, inner)

    def transport(self, inner: Any) -> Any:
        """A transport of `httpx` or `httpx2`, disturbed."""
        return FaultyTransport(self._plan, inner)

    def open_platform(self, path: str | os.PathLike[str] | None = None, **arguments: Any) -> Platform:
        """As `modelyard.open_platform`, on this clock and with every port disturbed, those that are given too.

        Raises ValueError for another clock.
        """
        if arguments.setdefault("clock", self.clock) is not self.clock:
            raise ValueError("give the clock to Faults(clock=...), so that both go by the same")
        opened = open_platform(path, **arguments)
        life, make = opened._life, opened._life.executor
        runtime = attrs.evolve(
            opened._runtime,
            store=self.store(opened._runtime.store),
            artifacts=self.artifacts(opened._runtime.artifacts),
            backend=self.backend(opened._runtime.backend),
            trainers=tuple(self.trainer(trainer) for trainer in opened._runtime.trainers),
        )
        life.executor = lambda threads: self.executor(make(threads))
        return Platform(runtime, opened._principal, life)

    def _kept(self) -> Store:
        if self._store is None:
            raise RuntimeError("to kill or take over a job, wrap the platform's store with `faults.store(...)`")
        return self._store
