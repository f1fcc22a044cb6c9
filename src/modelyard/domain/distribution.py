"""How numbers spread, in a few round bars."""

import math
from collections.abc import Sequence

import attrs

BARS = 20
_LEAST = 1e-300


@attrs.frozen
class Distribution:
    """Counts of numbers in bars of equal width. A bar lies around its centre, a multiple of `step`, so that numbers
    which are round, such as 0 and 1, stand in the middle of theirs.

    `first` is the number of the first bar: its centre is `first * step`.
    """

    first: int
    step: float
    counts: tuple[int, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> "Distribution | None":
        """About `BARS` bars, or one where all numbers are equal; None without numbers."""
        if not values:
            return None
        low, high = min(values), max(values)
        step = round_step(max((high - low) / BARS, _LEAST)) if high > low else abs(low) or 1.0
        first = round(low / step)
        counts = [0] * (round(high / step) - first + 1)
        for value in values:
            counts[round(value / step) - first] += 1
        return cls(first, step, tuple(counts))

    @property
    def centres(self) -> tuple[float, ...]:
        """The middle of each bar."""
        return tuple((self.first + at) * self.step for at in range(len(self.counts)))


def round_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
