"""Scheduled faults at every port of one platform, for tests of how they are handled."""

import os
from typing import Any

import attrs

from modelyard.compose import ids_by, open_platform
from modelyard.parts.doubles.faults.backend import COMPLETION, AnyBackend, faulty_backend
from modelyard.parts.doubles.faults.kinds import Cut, Disconnect, Happened, Killed, Malformed, Slow, TakenOver, Timeout
from modelyard.parts.doubles.faults.schedule import FaultPlan
from modelyard.parts.doubles.faults.storage import OPEN, PUT, READ, TRANSACT, FaultyArtifacts, FaultyStore
from modelyard.parts.doubles.faults.transport import CONNECTION, FaultyTransport
from modelyard.parts.doubles.faults.work import STEP, SUBMIT, FaultyExecutor, FaultyTrainer
from modelyard.platform.platform import Platform
from modelyard.protocols import ArtifactStore, Executor, Store, Trainer
from modelyard.testing.clock import ManualClock

__all__ = ["Cut", "Disconnect", "Faults", "Happened", "Killed", "Malformed", "Slow", "TakenOver", "Timeout"]


class Faults:
    """The faults at the ports of one platform, by a schedule. Equal seeds give equal faults.

        faults = Faults()
        with faults.open_platform() as platform:
            faults.completion(RateLimited("too many requests", retry_after=2), at=3)
            ...
        faults.check()

    Each method below that names an operation schedules one fault of it. `at` counts the operations from 1, the next
    one, which is the default. The fault occurs `times` times from then on, by default once. With `rate`, between 0
    and 1, it occurs at random. A fault at a moment in time is scheduled by the clock:
    `faults.clock.at(moment, lambda: faults.transact(StoreBusy("...")))`.
    """

    def __init__(self, seed: int = 0, clock: ManualClock | None = None) -> None:
        self.clock: ManualClock = clock or ManualClock()
        self._plan = FaultPlan(seed, self.clock)
        self._store: Store | None = None

    # ---- scheduling

    def completion(
        self,
        fault: Exception | Slow | Timeout | Disconnect | Cut | Malformed,
        *,
        at: int | None = None,
        times: int | None = None,
        rate: float | None = None,
        after: int = 0,
    ) -> None:
        """Fail a completion of a backend, before its first token or `after` so many of each choice."""
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
        """Fail a request of a client in process: before it is sent, or `after` so many events of its response. A
        response without events counts as one event."""
        self._plan.add(CONNECTION, fault, at, times, rate, after)

    def transact(
        self, error: Exception, *, at: int | None = None, times: int | None = None, rate: float | None = None
    ) -> None:
        self._plan.add(TRANSACT, error, at, times, rate)

    def read(
        self, error: Exception, *, at: int | None = None, times: int | None = None, rate: float | None = None
    ) -> None:
        """Fail a read of the store."""
        self._plan.add(READ, error, at, times, rate)

    def put(
        self, error: Exception, *, at: int | None = None, times: int | None = None, rate: float | None = None
    ) -> None:
        """Fail the storing of an artifact: `StorageFull`."""
        self._plan.add(PUT, error, at, times, rate)

    def open(
        self, error: Exception, *, at: int | None = None, times: int | None = None, rate: float | None = None
    ) -> None:
        """Fail the opening of an artifact: `ArtifactMissing`."""
        self._plan.add(OPEN, error, at, times, rate)

    def step(
        self,
        fault: Exception | Slow | Killed | TakenOver,
        *,
        at: int | None = None,
        times: int | None = None,
        rate: float | None = None,
    ) -> None:
        """Fail a training job when it reaches a step, before that is recorded. `at` is the step's number in its job."""
        self._plan.add(STEP, fault, at, times, rate)

    def submit(
        self,
        fault: Exception | Killed,
        *,
        at: int | None = None,
        times: int | None = None,
        rate: float | None = None,
    ) -> None:
        """Fail the submission of a job to its executor."""
        self._plan.add(SUBMIT, fault, at, times, rate)

    # ---- results

    @property
    def happened(self) -> tuple[Happened, ...]:
        """The faults that occurred, in order."""
        return tuple(self._plan.happened)

    @property
    def unused(self) -> tuple[str, ...]:
        """Descriptions of the faults that did not occur, or less often than scheduled."""
        return tuple(str(planned) for planned in self._plan.planned if planned.lacks)

    def check(self) -> None:
        """Raise AssertionError if a scheduled fault did not occur."""
        assert not self.unused, f"these scheduled faults did not occur: {'; '.join(self.unused)}"

    # ---- wrapping the ports

    def backend(self, inner: AnyBackend) -> AnyBackend:
        return faulty_backend(self._plan, inner)

    def store(self, inner: Store) -> Store:
        self._store = inner
        return FaultyStore(self._plan, inner)

    def artifacts(self, inner: ArtifactStore) -> ArtifactStore:
        return FaultyArtifacts(self._plan, inner)

    def trainer(self, inner: Trainer) -> Trainer:
        """Wrap a trainer. Killing or taking over a job requires that `store` has wrapped the platform's store."""
        return FaultyTrainer(self._plan, inner, self._kept, ids_by(self.clock))

    def executor(self, inner: Executor) -> Executor:
        return FaultyExecutor(self._plan, inner)

    def transport(self, inner: Any) -> Any:
        """Wrap a transport of `httpx` or `httpx2`."""
        return FaultyTransport(self._plan, inner)

    def open_platform(self, path: str | os.PathLike[str] | None = None, **arguments: Any) -> Platform:
        """Call `modelyard.open_platform` with this clock and with every port wrapped, including given ones. Raises
        ValueError for another clock."""
        if arguments.setdefault("clock", self.clock) is not self.clock:
            raise ValueError("pass the clock to Faults(clock=...), so that both use the same")
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
