"""When faults come: a schedule that is the same for the same seed, and a record of what came of it."""

import math
import threading
from collections import Counter
from random import Random

import attrs

from modelyard.protocols import Clock
from modelyard.testing.faults.kinds import Fault, Happened, Slow, Timeout


@attrs.define(eq=False)
class Planned:
    """A fault that is to come: from the `at`-th time on so many `times`, or at a `rate`.

    `after` is behind how many tokens, or events, of an answer.
    """

    operation: str
    fault: Fault
    at: int
    times: float
    rate: float | None
    after: int
    draws: Random
    seen: int = 0
    struck: int = 0
    happened: int = 0

    def strikes(self, number: int | None) -> bool:
        """Whether it comes this time. `number` counts where an operation has a number of its own."""
        self.seen += 1
        if self.struck >= self.times:
            return False
        if self.rate is None:
            here = (self.seen if number is None else number) >= self.at
        else:
            here = self.draws.random() < self.rate
        self.struck += here
        return here

    @property
    def lacks(self) -> bool:
        """Whether it came less often than it was to."""
        return self.happened < (1 if self.times == math.inf else self.times)

    def __str__(self) -> str:
        when = f"from time {self.at} on" if self.rate is None else f"at a rate of {self.rate:g}"
        behind = f" behind {self.after}" if self.after else ""
        often = "" if self.times == math.inf else f" of {self.times:g}"
        return f"{self.operation}, {when}{behind}: {self.fault!r} came {self.happened}{often} times"


class FaultPlan:
    """What is to go wrong at the ports of one platform, and what did. Thread-safe."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self.seed, self.clock = seed, clock
        self.planned: list[Planned] = []
        self.happened: list[Happened] = []
        self._numbers: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(
        self, operation: str, fault: Fault, at: int | None, times: int | None, rate: float | None, after: int = 0
    ) -> None:
        """Schedule a fault. Raises ValueError for a schedule that means nothing."""
        if rate is not None and at is not None:
            raise ValueError("give `at` or `rate`, not both")
        if not ((at is None or at >= 1) and (times is None or times >= 1) and after >= 0):
            raise ValueError("`at` and `times` count from 1, `after` from 0")
        if rate is not None and not 0 <= rate <= 1:
            raise ValueError("`rate` is from 0 to 1")
        often = times or (1 if rate is None else math.inf)
        with self._lock:
            draws = Random(f"{self.seed}:{len(self.planned)}")  # noqa: S311 - repeatable, no secret
            self.planned.append(Planned(operation, fault, at or 1, often, rate, after, draws))

    def struck(self, operation: str, number: int | None = None) -> "Struck | None":
        """What goes wrong this time, if anything does: of several faults the one that was scheduled first."""
        with self._lock:
            self._numbers[operation] += 1
            here = [one for one in self.planned if one.operation == operation and one.strikes(number)]
            for late in here[1:]:
                late.struck -= 1
            return Struck(self, here[0], number or self._numbers[operation]) if here else None

    def raises(self, operation: str) -> None:
        """Raise what goes wrong this time, if anything does."""
        struck = self.struck(operation)
        if struck is not None:
            raise struck.error()

    def slow(self, operation: str) -> bool:
        """Whether something is planned that takes time."""
        with self._lock:
            return any(isinstance(one.fault, Slow | Timeout) for one in self.planned if one.operation == operation)

    def note(self, planned: Planned, number: int) -> None:
        """It has come."""
        with self._lock:
            planned.happened += 1
            self.happened.append(Happened(planned.operation, number, planned.fault, self.clock.now()))


@attrs.frozen
class Struck:
    """A fault that comes now, at the `number`-th time of its operation."""

    plan: FaultPlan
    planned: Planned
    number: int

    @property
    def fault(self) -> Fault:
        """What goes wrong."""
        return self.planned.fault

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.fault.seconds if isinstance(self.fault, Slow | Timeout) else 0.0

    @property
    def after(self) -> int:
        """Behind how much of an answer it comes."""
        return self.planned.after

    def comes(self) -> Fault:
        """It has come: from now on it is among what happened."""
        self.plan.note(self.planned, self.number)
        return self.planned.fault

    def error(self) -> Exception:
        """The exception that has come."""
        error = self.comes()
        assert isinstance(error, Exception)
        return error.with_traceback(None)
