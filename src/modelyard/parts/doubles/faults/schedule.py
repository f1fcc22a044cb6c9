"""The schedule of faults, repeatable by its seed, and a record of faults that occurred."""

import math
import threading
from collections import Counter
from random import Random

import attrs

from modelyard.parts.doubles.faults.kinds import Fault, Happened, Slow, Timeout, check_kind
from modelyard.protocols import Clock


@attrs.define(eq=False)
class Planned:
    """A scheduled fault: from the `at`-th call on so many `times`, or at a `rate`. `after` is the number of tokens, or
    events, of an answer that precede it."""

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
        """Return whether it occurs at this call. `number` replaces the count of calls for numbered operations."""
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
        return self.happened < (1 if self.times == math.inf else self.times)

    def __str__(self) -> str:
        when = f"from call {self.at} on" if self.rate is None else f"at a rate of {self.rate:g}"
        after = f" after {self.after}" if self.after else ""
        often = "" if self.times == math.inf else f" of {self.times:g}"
        return f"{self.operation}, {when}{after}: {self.fault!r} occurred {self.happened}{often} times"


class FaultPlan:
    def __init__(self, seed: int, clock: Clock) -> None:
        self.seed: int = seed
        self.clock: Clock = clock
        self.planned: list[Planned] = []
        self.happened: list[Happened] = []
        self._numbers: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(
        self, operation: str, fault: Fault, at: int | None, times: int | None, rate: float | None, after: int = 0
    ) -> None:
        check_kind(operation, fault)
        if rate is not None and at is not None:
            raise ValueError("give `at` or `rate`, not both")
        if not ((at is None or at >= 1) and (times is None or times >= 1) and after >= 0):
            raise ValueError("`at` and `times` count from 1, `after` from 0")
        if rate is not None and not 0 <= rate <= 1:
            raise ValueError("`rate` is from 0 to 1")
        often = times or (1 if rate is None else math.inf)
        with self._lock:
            draws = Random(f"{self.seed}:{len(self.planned)}")  # noqa: S311 - repeatable, not a secret
            self.planned.append(Planned(operation, fault, at or 1, often, rate, after, draws))

    def struck(self, operation: str, number: int | None = None) -> "Struck | None":
        with self._lock:
            self._numbers[operation] += 1
            here = [one for one in self.planned if one.operation == operation and one.strikes(number)]
            for late in here[1:]:
                late.struck -= 1
            return Struck(self, here[0], number or self._numbers[operation]) if here else None

    def raises(self, operation: str) -> None:
        struck = self.struck(operation)
        if struck is not None:
            raise struck.error()

    def slow(self, operation: str) -> bool:
        with self._lock:
            return any(isinstance(one.fault, Slow | Timeout) for one in self.planned if one.operation == operation)

    def note(self, planned: Planned, number: int) -> None:
        with self._lock:
            planned.happened += 1
            self.happened.append(Happened(planned.operation, number, planned.fault, self.clock.now()))


@attrs.frozen
class Struck:
    plan: FaultPlan
    planned: Planned
    number: int

    @property
    def fault(self) -> Fault:
        return self.planned.fault

    @property
    def seconds(self) -> float:
        return self.fault.seconds if isinstance(self.fault, Slow | Timeout) else 0.0

    @property
    def after(self) -> int:
        return self.planned.after

    def record(self) -> Fault:
        self.plan.note(self.planned, self.number)
        return self.planned.fault

    def error(self) -> Exception:
        error = self.record()
        assert isinstance(error, Exception)
        return error.with_traceback(None)
