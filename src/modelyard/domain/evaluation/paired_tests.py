"""Pairs of values judged with care: for what is all 0 or 1, what does not spread, and what goes together."""

import math
from collections.abc import Sequence

import attrs

from modelyard.domain.evaluation.statistics import (
    Interval,
    Numbers,
    Paired,
    describe,
    holm,
    mcnemar,
    paired,
    rate_interval,
    sample_size,
    t_quantile,
    t_tail,
)

_ROUNDING = 1e-9


def student(numbers: Numbers, groups: int, confidence: float) -> Interval | None:
    """Student's interval of a mean whose standard error rests on so many rows or clusters; None without an error."""
    if numbers.mean is None or numbers.error is None:
        return None
    spread = t_quantile((1 + confidence) / 2, groups - 1) * numbers.error
    return Interval(numbers.mean - spread, numbers.mean + spread, confidence)


def clustered_rate(numbers: Numbers, trials: int, groups: int, confidence: float) -> Interval | None:
    """Wilson's interval of a rate whose values go together: as the trials of a row do, or the rows of a cluster.

    It takes as many independent values as have this standard error, one a trial at most, and Student's t in the place
    of the normal one, for so many rows or clusters (Korn and Graubard 1998). Where all values are the same there are as
    many as rows or clusters. None for fewer than two of these.
    """
    if numbers.mean is None or numbers.error is None:
        return None
    varied = numbers.mean * (1 - numbers.mean)
    if varied == 0:
        return rate_interval(numbers.mean, groups, confidence)
    plain_error = math.sqrt(varied / (numbers.count - 1))
    count = min(numbers.count * (plain_error / numbers.error) ** 2, trials) if numbers.error else trials
    return rate_interval(numbers.mean, count, confidence, t_quantile((1 + confidence) / 2, groups - 1))


def shown(found: Paired, p: float | None) -> bool:
    """Whether a difference is shown: the interval leaves out 0, and p, at the same confidence, agrees."""
    interval = found.interval
    return interval is not None and 0 not in interval and p is not None and p <= 1 - interval.confidence


def paired_values(pairs: Sequence[tuple[float, float]], clusters: Sequence[str], confidence: float) -> Paired:
    """Compare pairs (of A, of B) as `statistics.paired` does, but with

    * McNemar's test also for numbers that are all 0 or 1, and as a sign test where all differences are the same, but
      for rounding, which leaves the t-test without a spread to judge by;
    * the clustered standard error where there are clusters.
    """
    found = paired(pairs, confidence)
    if clusters:
        return _clustered(found, pairs, clusters, confidence)
    if pairs and (_same(found) or all(value in (0.0, 1.0) for pair in pairs for value in pair)):
        return attrs.evolve(found, p=mcnemar(found.wins, found.losses))
    return found


def _same(found: Paired) -> bool:
    """Whether all differences are the same, as far as floats can tell."""
    interval, difference = found.interval, found.difference
    return interval is not None and interval.high - interval.low <= _ROUNDING * abs(difference or 0.0)


def _clustered(
    found: Paired, pairs: Sequence[tuple[float, float]], clusters: Sequence[str], confidence: float
) -> Paired:
    numbers, groups = describe([b - a for a, b in pairs], clusters), len(set(clusters))
    interval: Interval | None = student(numbers, groups, confidence)
    if numbers.mean is None or not numbers.error:
        return attrs.evolve(found, interval=interval, p=None)
    return attrs.evolve(found, interval=interval, p=2 * t_tail(abs(numbers.mean) / numbers.error, groups - 1))


def rows_needed(differences: Sequence[float], confidence: float) -> int | None:
    """How many rows would show a mean difference of this size, in four of five cases; None where there is none."""
    numbers = describe(differences)
    if not numbers.mean or numbers.deviation is None:
        return None
    return sample_size(numbers.mean, numbers.deviation, confidence=confidence)


def holm_of_some(ps: Sequence[float | None]) -> list[float | None]:
    """Each p corrected for there being several, where there is one (see `statistics.holm`)."""
    corrected = holm({str(at): p for at, p in enumerate(ps) if p is not None})
    return [corrected.get(str(at)) for at in range(len(ps))]


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
