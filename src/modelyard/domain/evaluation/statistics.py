"""The statistics of an evaluation: a list of scores in numbers, and whether two lists really differ. Pure functions
over plain numbers. Fewer than two values have no spread: a result that needs one is None then, not 0."""

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from operator import sub, truediv
from statistics import NormalDist

import attrs

CONFIDENCE = 0.95


@attrs.frozen
class Interval:
    """From `low` to `high`, both included, with a `confidence` between 0 and 1."""

    low: float
    high: float
    confidence: float = CONFIDENCE

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


# ---- one list ----------------------------------------------------------------------------------------------------


def wilson(passed: int, count: int, confidence: float = CONFIDENCE) -> Interval | None:
    """Return Wilson's score interval of a rate (Wilson 1927); None when nothing was counted."""
    return rate_interval(passed / count, count, confidence) if count else None


def rate_interval(rate: float, count: float, confidence: float = CONFIDENCE, quantile: float | None = None) -> Interval:
    """Return Wilson's interval of a rate that is as certain as `count` independent values of 0 or 1. `quantile`
    replaces the normal one."""
    z = NormalDist().inv_cdf((1 + confidence) / 2) if quantile is None else quantile
    square = z * z / count
    middle = rate + square / 2
    spread = z * math.sqrt((rate * (1 - rate) + square / 4) / count)
    low = 0.0 if rate == 0 else max(0.0, (middle - spread) / (1 + square))
    high = 1.0 if rate == 1 else min(1.0, (middle + spread) / (1 + square))
    return Interval(low, high, confidence)


ROUNDING = 1e-12


@attrs.frozen
class Numbers:
    """The summary of a list of numbers. `deviation` is the sample's (n - 1), `error` the standard error of the mean."""

    count: int
    mean: float | None = None
    deviation: float | None = None
    error: float | None = None
    minimum: float | None = None
    median: float | None = None
    maximum: float | None = None


def describe(values: Sequence[float], clusters: Sequence[Hashable] = ()) -> Numbers:
    """Describe a list of finite numbers. `clusters`, one per value, makes the standard error a clustered one."""
    if not values:
        return Numbers(0)
    mean, deviation = spread(values)
    if clusters:
        error = clustered_error(values, clusters)
    else:
        error = None if deviation is None else deviation / math.sqrt(len(values))
    return Numbers(len(values), mean, deviation, error, min(values), statistics.median(values), max(values))


def spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the sample's deviation; 0 and None without values, None for the deviation of one."""
    if not values:
        return 0.0, None
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    squares = map(pow, map(sub, values, repeat(mean)), repeat(2))
    return mean, math.sqrt(math.fsum(squares) / (len(values) - 1))


def clustered_error(values: Sequence[float], clusters: Sequence[Hashable]) -> float | None:
    """Return the standard error of the mean of clustered values, such as questions on one text. The residuals are
    summed within each cluster (Liang and Zeger 1986), with the correction G / (G - 1) for G clusters; None for fewer
    than two clusters."""
    mean = math.fsum(values) / len(values)
    residuals: dict[Hashable, float] = {}
    for value, cluster in zip(values, clusters, strict=True):
        residuals[cluster] = residuals.get(cluster, 0.0) + value - mean
    groups = len(residuals)
    if groups < 2:
        return None
    return math.sqrt(groups / (groups - 1) * math.fsum(sum_ * sum_ for sum_ in residuals.values())) / len(values)


def quantile(values: Sequence[float], share: float) -> float | None:
    if not values:
        return None
    ranked = sorted(values)
    place = share * (len(ranked) - 1)
    at = math.floor(place)
    following = ranked[min(at + 1, len(ranked) - 1)]
    return ranked[at] + (following - ranked[at]) * (place - at)


# ---- correlated values -----------------------------------------------------------------------------------------


def is_constant(numbers: Numbers) -> bool:
    """Whether the values are the same but for rounding, so that their spread says nothing of others."""
    return numbers.error is not None and numbers.error <= ROUNDING * abs(numbers.mean or 0.0)


def constant_mean(value: float, groups: int, confidence: float, least: float, most: float) -> Interval | None:
    """Return an interval of the mean of so many values that are all the same. Of others at most the share differs that
    Wilson's interval gives for none of so many (the rule of three: Hanley and Lippman-Hand 1983), and each by as much
    as the bounds allow. None for fewer than two values, or without room between the bounds."""
    if groups < 2 or not most > least:
        return None
    width, place = most - least, (value - least) / (most - least)
    low = place * rate_interval(1.0, groups, confidence).low
    high = place + (1 - place) * rate_interval(0.0, groups, confidence).high
    return Interval(least + low * width, least + high * width, confidence)


def student(numbers: Numbers, groups: int, confidence: float) -> Interval | None:
    """Return Student's interval of a mean; None for values that are all the same, of which no bounds are known."""
    if numbers.mean is None or numbers.error is None or is_constant(numbers):
        return None
    spread = t_quantile((1 + confidence) / 2, groups - 1) * numbers.error
    return Interval(numbers.mean - spread, numbers.mean + spread, confidence)


def clustered_rate(numbers: Numbers, trials: float, groups: int, confidence: float) -> Interval | None:
    """Return Wilson's interval of a rate of correlated values: the trials of a row, or the rows of a cluster. It counts
    as many independent values as have this standard error, at most one a trial, and takes Student's t for so many rows
    or clusters instead of the normal quantile (Korn and Graubard 1998). If all values are equal, the rows or clusters
    are counted. None for fewer than two rows or clusters."""
    if numbers.mean is None or numbers.error is None:
        return None
    varied = numbers.mean * (1 - numbers.mean)
    if varied <= 0:
        return rate_interval(numbers.mean, groups, confidence)
    plain_error = math.sqrt(varied / (numbers.count - 1))
    count = min(numbers.count * (plain_error / numbers.error) ** 2, trials) if numbers.error else trials
    return rate_interval(numbers.mean, count, confidence, t_quantile((1 + confidence) / 2, groups - 1))


def bounded_mean(
    numbers: Numbers, groups: int, confidence: float, least: float = 0.0, most: float = 1.0
) -> Interval | None:
    """Return an interval of the mean of numbers between two bounds, which stays there: the one of a rate that has their
    standard error. Skewed scores, such as many that are perfect, it covers far more often than Student's does."""
    if numbers.mean is None or numbers.error is None:
        return None
    if is_constant(numbers):
        return constant_mean(numbers.mean, groups, confidence, least, most)
    width = most - least
    scaled = attrs.evolve(numbers, mean=(numbers.mean - least) / width, error=numbers.error / width)
    found = clustered_rate(scaled, math.inf, groups, confidence)
    return found and Interval(least + found.low * width, least + found.high * width, confidence)


# ---- distributions -------------------------------------------------------------------------------------------

BARS = 20
_LEAST = 1e-300


@attrs.frozen
class Distribution:
    """Counts of numbers in bars of equal width. A bar is centred on a multiple of `step`, so that round numbers, such
    as 0 and 1, are in the middle of theirs. `first` is the number of the first bar: its centre is `first * step`."""

    first: int
    step: float
    counts: tuple[int, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> "Distribution | None":
        """Count numbers in about `BARS` bars, or in one if all are equal; None without numbers."""
        if not values:
            return None
        low, high = min(values), max(values)
        step = round_step(max((high - low) / BARS, _LEAST)) if high > low else max(abs(low), _LEAST) if low else 1.0
        first, last = round(low / step), round(high / step)
        counts = Counter(map(round, map(truediv, values, repeat(step))))
        return cls(first, step, tuple(counts[at] for at in range(first, last + 1)))

    @property
    def centres(self) -> tuple[float, ...]:
        """The middle of each bar."""
        return tuple((self.first + at) * self.step for at in range(len(self.counts)))


def round_step(least: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


# ---- two lists, paired -------------------------------------------------------------------------------------------


@attrs.frozen
class Paired:
    """How the values of B differ from those of A, pair by pair: `difference` is the mean of B - A. `p` is two-sided: of
    the exact McNemar test for bools, of the paired t-test for numbers. A win is a pair in which B is the larger."""

    count: int
    wins: int
    ties: int
    losses: int
    difference: float | None = None
    interval: Interval | None = None
    p: float | None = None


def paired(pairs: Sequence[tuple[float, float]], confidence: float = CONFIDENCE) -> Paired:
    """Compare pairs (of A, of B). The interval is `difference_interval`; None for fewer than two pairs, as is `p` for
    numbers."""
    differences = [b - a for a, b in pairs]
    wins, losses = sum(map((0.0).__lt__, differences)), sum(map((0.0).__gt__, differences))
    counts = (len(pairs), wins, len(pairs) - wins - losses, losses)
    if not differences:
        return Paired(*counts)
    mean, deviation = spread(differences)
    if all(type(value) is bool for pair in pairs for value in pair):
        p: float | None = mcnemar(wins, losses)
    else:
        p = t_test(mean, deviation, len(differences))
    error = None if deviation is None else deviation / math.sqrt(len(differences))
    numbers = Numbers(len(differences), mean, deviation, error)
    return Paired(*counts, mean, difference_interval(pairs, numbers, len(differences), confidence), p)


def difference_interval(
    pairs: Sequence[tuple[float, float]], numbers: Numbers, groups: int, confidence: float
) -> Interval | None:
    """Return the interval of the mean difference of pairs, of which so many `groups` are independent: if all values lie
    between 0 and 1, the one of a mean between -1 and 1, else Student's, or where all differ by as much, the one between
    the differences of values seen. `numbers` describe the differences."""
    if all(0 <= value <= 1 for pair in pairs for value in pair):
        return bounded_mean(numbers, groups, confidence, -1.0, 1.0)
    if numbers.mean is not None and is_constant(numbers):
        seen = [value for pair in pairs for value in pair]
        width = max(seen) - min(seen)
        return constant_mean(numbers.mean, groups, confidence, -width, width)
    return student(numbers, groups, confidence)


def mcnemar(wins: int, losses: int) -> float:
    """Return the exact two-sided p of McNemar's test on discordant pairs: how unlikely a fair coin splits them so."""
    tosses, fewer = wins + losses, min(wins, losses)
    if wins == losses:
        return 1.0
    # In logarithms, because 2 ** tosses leaves the range of a float for more than a thousand pairs.
    logs = [_log_binomial(tosses, heads) - tosses * math.log(2) for heads in range(fewer + 1)]
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def t_test(mean: float, deviation: float | None, count: int) -> float | None:
    if deviation is None:
        return None
    if deviation == 0:
        return 1.0 if mean == 0 else 0.0
    return 2 * t_tail(abs(mean) / deviation * math.sqrt(count), count - 1)


def holm(ps: Mapping[str, float]) -> dict[str, float]:
    adjusted: dict[str, float] = {}
    highest = 0.0
    for rank, name in enumerate(sorted(ps, key=lambda name: ps[name])):
        highest = max(highest, min(1.0, ps[name] * (len(ps) - rank)))
        adjusted[name] = highest
    return adjusted


def sample_size(difference: float, deviation: float, power: float = 0.8, confidence: float = CONFIDENCE) -> int:
    """Return how many pairs show a mean difference of this size, if differences have this standard `deviation`. By the
    normal approximation, two-sided. Raises `ValueError` for a difference of 0, which no number of rows shows."""
    if difference == 0:
        raise ValueError("no number of rows shows a difference of 0; give the difference that matters")
    standard = NormalDist()
    reach = standard.inv_cdf((1 + confidence) / 2) + standard.inv_cdf(power)
    return max(2, math.ceil((reach * deviation / difference) ** 2))


# ---- Student's t ---------------------------------------------------------------------------------------------------


def t_tail(t: float, freedom: int) -> float:
    """Return the probability that Student's t with so many degrees of freedom is larger than `t`, for t >= 0."""
    return incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5) / 2


@lru_cache(256)
def t_quantile(share: float, freedom: int) -> float:
    """Return the t below which this share of the distribution is, by bisection; 0.505 <= share < 1."""
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > 1 - share:
        low, high = high, high * 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if t_tail(middle, freedom) > 1 - share else (low, middle)
    return high


def incomplete_beta(x: float, a: float, b: float) -> float:
    """Compute the regularised incomplete beta function (Abramowitz and Stegun 26.5.8), where it converges fast."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _continued_fraction(x, a, b))


_TERMS = 1000


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Evaluate 1 + d1 / (1 + d2 / (1 + ...)), by convergents until they do not change (modified Lentz)."""
    tiny = 1e-300
    value = upper = 1.0
    lower = 0.0
    for term in _coefficients(x, a, b):
        upper = 1 + term / upper or tiny
        lower = 1 / (1 + term * lower or tiny)
        value *= upper * lower
        if abs(upper * lower - 1) < 1e-16:
            break
    return value


def _coefficients(x: float, a: float, b: float) -> Iterable[float]:
    for m in range(_TERMS):
        yield -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        yield (m + 1) * (b - m - 1) * x / ((a + 2 * m + 1) * (a + 2 * m + 2))
