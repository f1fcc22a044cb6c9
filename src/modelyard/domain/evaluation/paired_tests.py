"""Paired tests for real scores: of values that are all 0 or 1, without spread, or in clusters."""

from collections.abc import Sequence

import attrs

from modelyard.domain.evaluation.statistics import (
    Interval,
    Paired,
    describe,
    holm,
    mcnemar,
    paired,
    sample_size,
    student,
    t_tail,
)

_ROUNDING = 1e-9


def shown(found: Paired, p: float | None) -> bool:
    """Return whether a difference is shown: the interval leaves out 0, and p, at the same confidence, agrees."""
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
    """Return whether all differences are the same, but for rounding."""
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
    """Return how many rows would show a mean difference of this size, in four of five cases; None for no difference."""
    numbers = describe(differences)
    if not numbers.mean or numbers.deviation is None:
        return None
    return sample_size(numbers.mean, numbers.deviation, confidence=confidence)


def holm_of_some(ps: Sequence[float | None]) -> list[float | None]:
    """Correct each p for there being several, where there is one (see `statistics.holm`)."""
    corrected = holm({str(at): p for at, p in enumerate(ps) if p is not None})
    return [corrected.get(str(at)) for at in range(len(ps))]
