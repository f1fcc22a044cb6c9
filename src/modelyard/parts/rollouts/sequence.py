"""A confidence sequence of the difference of two means: an interval that holds at all times at once.

The values of each arm are between 0 and 1 and have the same mean, whatever came before. Against a mean m one bets on
each value; a bet is a chance p, and multiplies the wealth by (p / m)^x ((1 - p) / (1 - m))^(1 - x). That is a convex
function of x, and 1 on average if x is 0 or 1 with mean m, so at most 1 on average for every x with that mean. The
wealth is mixed over p by a beta distribution (Jeffreys), which needs no tuning, has a closed form, and does not depend
on the order of the values: it is the capital process of Waudby-Smith and Ramdas (Estimating means of bounded random
variables by betting, 2024) with the mixture of Robbins (1970), exact for yes and no, and careful for other values.

Of two arms the product of the wealths is a bet against a pair of means. By Ville's inequality the wealth against the
true pair ever reaches 1 / alpha with a chance of at most alpha. So the pairs against which it is less are a confidence
sequence, however often one looks and whenever one stops, and so are their differences.
"""

import math
from collections.abc import Callable

import attrs

from modelyard.domain.evaluation.statistics import Interval

PRIOR = 0.5
"""Both parameters of the beta distribution of bets."""

_HALVINGS = 60
_LEAST = 1e-300
"""What stands for a mean of 0, which is impossible as soon as there is a hit."""


@attrs.frozen
class Arm:
    """How many values there are, and their sum."""

    count: int
    total: float

    @property
    def mean(self) -> float | None:
        """Return the mean of the values; None of nothing."""
        return self.total / self.count if self.count else None

    @property
    def log_mixed(self) -> float:
        """The logarithm of the mixed numerators of the wealth, which is the same against every mean."""
        hits, misses = PRIOR + self.total, PRIOR + self.count - self.total
        return _log_beta(hits, misses) - _log_beta(PRIOR, PRIOR)

    def log_likelihood(self, mean: float) -> float:
        """Return the logarithm of the likelihood of a mean, as of yes and no."""
        return _times_log(self.total, mean) + _times_log(self.count - self.total, 1 - mean)


def log_wealth(arm: Arm, mean: float) -> float:
    """Return the logarithm of the wealth of who bets that the mean is another one."""
    return arm.log_mixed - arm.log_likelihood(mean)


def log_wealth_of_difference(baseline: Arm, candidate: Arm, difference: float) -> float:
    """Return the logarithm of the least wealth against any pair of means with this difference, candidate minus
    baseline."""
    at = _likeliest(baseline, candidate, difference)
    likely = baseline.log_likelihood(at) + candidate.log_likelihood(at + difference)
    return baseline.log_mixed + candidate.log_mixed - likely


def interval_of_difference(baseline: Arm, candidate: Arm, alpha: float) -> Interval:
    """Return the differences, candidate minus baseline, against which the wealth is less than 1 / alpha."""
    if baseline.mean is None or candidate.mean is None:
        return Interval(-1.0, 1.0)
    middle = candidate.mean - baseline.mean
    return _edges(lambda at: log_wealth_of_difference(baseline, candidate, at), middle, -1.0, 1.0, alpha)


def interval_of_mean(arm: Arm, alpha: float) -> Interval:
    """Return the means against which the wealth is less than 1 / alpha."""
    if arm.mean is None:
        return Interval(0.0, 1.0)
    return _edges(lambda at: log_wealth(arm, at), arm.mean, 0.0, 1.0, alpha)


def _edges(wealth: Callable[[float], float], middle: float, least: float, most: float, alpha: float) -> Interval:
    """Return where a convex function that is least at the middle reaches the logarithm of 1 / alpha."""
    wanted = math.log(1 / alpha)

    def edge(end: float) -> float:
        if wealth(end) < wanted:
            return end
        within, without = middle, end
        for _ in range(_HALVINGS):
            half = (within + without) / 2
            if wealth(half) < wanted:
                within = half
            else:
                without = half
        return without

    return Interval(edge(least), edge(most))


def _likeliest(baseline: Arm, candidate: Arm, difference: float) -> float:
    """Return the likeliest mean of the baseline, if that of the candidate is greater by the difference."""
    low, high = max(0.0, -difference), min(1.0, 1.0 - difference)
    for _ in range(_HALVINGS):
        half = (low + high) / 2
        if _slope(baseline, half) + _slope(candidate, half + difference) > 0:
            low = half
        else:
            high = half
    return (low + high) / 2


def _slope(arm: Arm, mean: float) -> float:
    hits = arm.total / mean if mean > 0 else math.inf if arm.total else 0.0
    misses = (arm.count - arm.total) / (1 - mean) if mean < 1 else math.inf if arm.count > arm.total else 0.0
    return hits - misses


def _times_log(times: float, value: float) -> float:
    return times * math.log(max(value, _LEAST)) if times else 0.0


def _log_beta(one: float, other: float) -> float:
    return math.lgamma(one) + math.lgamma(other) - math.lgamma(one + other)
