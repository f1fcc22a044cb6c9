"""A mean that a judge gave, corrected by rows that people labelled, with an interval that has the judge's error in it.

All rows have the judge's values, and a random part of them has people's, too. Both estimators are prediction-powered
inference with power tuning (PPI++, Angelopoulos, Duchi and Zrnic 2023): the mean of people's values plus `slope` times
how far the judge's mean over all rows is from that over the labelled ones. The interval depends on the values:

* `of_few_values`, if all are yes or no, or differences of these: the rows are strata by what the judge says, and the
  estimate is Tenenbein's (1970), which is the same as PPI++ then. The normal interval fails where few labelled rows
  disagree, so it is of the posterior: Dirichlet in each stratum, with a neutral prior (Kerman 2011), and the moments of
  their sum matched by a beta distribution.
* `of_numbers`, for other values: Student's t; or the rule of three within known bounds, if the judge explains all
  labels, and so their spread says nothing.
* `of_design`, for rows that go together, such as the turns of a conversation or the trials of a row, and for strata:
  the variance is of the sums of the influence of each cluster's rows (Liang and Zeger 1986; Angelopoulos and others
  2023 for its form), with Student's t.
* `of_other_rows`, if only rows of another sample are labelled: Rogan and Gladen (1978), with the interval of Lang and
  Reiczigel (2014).
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from statistics import NormalDist

import attrs

from modelyard.domain.evaluation.statistics import (
    CONFIDENCE,
    Interval,
    constant_mean,
    incomplete_beta,
    rate_interval,
    spread,
    t_quantile,
)
from modelyard.parts.review.agreement import Confusion

PRIOR_MASS = {2: 2 / 3, 3: 0.5}
"""How many rows the prior of a stratum counts as, by the number of values."""

PRIOR_OF_STRATA = 0.5

Shares = Mapping[float, float]
"""How people's labels of a row are spread over values: the shares sum to 1."""


@attrs.frozen
class Corrected:
    """A corrected mean. `judged` is the judge's own, over all `rows`; `labelled` of them have labels. `method` is "ppi"
    or "rogan_gladen". Without an interval nothing can be told: too few rows are labelled, or the judge is no better
    than chance."""

    method: str
    rows: int
    labelled: int
    judged: float
    mean: float | None = None
    interval: Interval | None = None


# ---- rows of the run are labelled


def of_few_values(
    judged: Mapping[float, int],
    labelled: Sequence[tuple[float, Shares]],
    values: Sequence[float],
    confidence: float = CONFIDENCE,
) -> Corrected:
    """Correct a mean of 2 or 3 possible `values`, in rising order. `judged` counts all rows by the judge's value, and
    `labelled` has the judge's value and people's of each labelled row."""
    rows = sum(judged.values())
    own = math.fsum(value * count for value, count in judged.items()) / rows
    if not labelled:
        return Corrected("ppi", rows, 0, own)
    counts = {stratum: dict.fromkeys(values, 0.0) for stratum in values}
    for stratum, shares in labelled:
        for value, share in shares.items():
            counts[stratum][value] += share
    mean, variance = _posterior(judged, counts, values)
    interval = _matched(mean, variance, values[0], values[-1], confidence)
    said = [value for value in values if any(row[value] for row in counts.values())]
    if len(said) == 1 and said[0] in (values[0], values[-1]):  # no label speaks against that end
        low, high = (values[0], interval.high) if said[0] == values[0] else (interval.low, values[-1])
        interval = Interval(low, high, confidence)
    return Corrected("ppi", rows, len(labelled), own, _stratified(judged, counts, rows), interval)


def _stratified(judged: Mapping[float, int], counts: Mapping[float, Mapping[float, float]], rows: int) -> float:
    """Return Tenenbein's estimate; a stratum without a labelled row has the mean of all labelled ones."""
    means: dict[float, float] = {}
    everything = math.fsum(share for row in counts.values() for share in row.values())
    total = math.fsum(value * share for row in counts.values() for value, share in row.items())
    for stratum, row in counts.items():
        size = math.fsum(row.values())
        weighted = math.fsum(value * share for value, share in row.items())
        means[stratum] = weighted / size if size else total / everything
    return math.fsum(judged.get(stratum, 0) / rows * mean for stratum, mean in means.items())


def _posterior(
    judged: Mapping[float, int], counts: Mapping[float, Mapping[float, float]], values: Sequence[float]
) -> tuple[float, float]:
    """Return the posterior's mean and variance of the mean: of the sum of each stratum's share times its mean, which
    are independent of each other; the shares are of one Dirichlet distribution."""
    prior = PRIOR_MASS[len(values)] / len(values)
    means, squares = [], []
    for stratum in values:
        weights = [counts[stratum][value] + prior for value in values]
        size = math.fsum(weights)
        mean = math.fsum(value * weight for value, weight in zip(values, weights, strict=True)) / size
        second = math.fsum(value**2 * weight for value, weight in zip(values, weights, strict=True)) / size
        means.append(mean)
        squares.append(mean**2 + (second - mean**2) / (size + 1))
    shares = [judged.get(stratum, 0) + PRIOR_OF_STRATA for stratum in values]
    total = math.fsum(shares)
    mean = math.fsum(share * mean for share, mean in zip(shares, means, strict=True)) / total
    of_one = math.fsum(
        share * (share + 1) * square - (share * mean) ** 2
        for share, mean, square in zip(shares, means, squares, strict=True)
    )
    return mean, (of_one + (mean * total) ** 2) / (total * (total + 1)) - mean**2


def _matched(mean: float, variance: float, least: float, most: float, confidence: float) -> Interval:
    """Return the interval of the beta distribution between two bounds that has this mean and variance."""
    width = most - least
    place = (mean - least) / width
    mass = place * (1 - place) * width**2 / variance - 1
    tails = (1 - confidence) / 2, (1 + confidence) / 2
    low, high = (least + width * beta_quantile(tail, place * mass, (1 - place) * mass) for tail in tails)
    return Interval(low, high, confidence)


def beta_quantile(share: float, a: float, b: float) -> float:
    """Return the x below which this share of the beta distribution is, by bisection."""
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high and high - low > 1e-10:
        low, high = (low, middle) if incomplete_beta(middle, a, b) > share else (middle, high)
    return high


NO_SPREAD = 1e-9
"""How small residuals are, beside the values, that are but errors of rounding."""


def of_numbers(
    judged: Sequence[float],
    labelled: Sequence[tuple[float, float]],
    confidence: float = CONFIDENCE,
    bounds: tuple[float, float] | None = None,
) -> Corrected:
    """Correct a mean of any numbers. `judged` has the judge's value of every row, and `labelled` the judge's and
    people's of each labelled row. The tuned weight is the slope of people's values on the judge's. `bounds` are the
    least and the most that people's values may be. No interval for fewer than four labelled rows, and if the judge
    explains all labels and no bounds are known."""
    rows, count = len(judged), len(labelled)
    own, deviation = spread(judged)
    if count < 4:
        return Corrected("ppi", rows, count, own)
    mine, theirs = [one for one, _ in labelled], [other for _, other in labelled]
    x, y = spread(mine)[0], spread(theirs)[0]
    squares = math.fsum((one - x) ** 2 for one in mine)
    slope = math.fsum((one - x) * (other - y) for one, other in labelled) / squares if squares else 0.0
    freedom = count - (2 if squares else 1)
    residual = math.fsum((other - y - slope * (one - x)) ** 2 for one, other in labelled) / freedom
    of_rows = (slope * (deviation or 0.0)) ** 2 / rows
    mean = y + slope * (own - x)
    found = Corrected("ppi", rows, count, own, mean)
    if math.sqrt(residual) <= NO_SPREAD * max(map(abs, theirs)):
        reach = t_quantile((1 + confidence) / 2, max(1, rows - 1)) * math.sqrt(of_rows)
        return attrs.evolve(found, interval=_unexplained(mean, reach, count, confidence, bounds))
    of_people = residual * (1 / count + ((own - x) ** 2 / squares if squares else 0.0))
    variance = of_people + of_rows
    freedom = max(1, int(variance**2 / (of_people**2 / freedom + of_rows**2 / (rows - 1))))
    reach = t_quantile((1 + confidence) / 2, freedom) * math.sqrt(variance)
    return attrs.evolve(found, interval=Interval(mean - reach, mean + reach, confidence))


def _unexplained(
    mean: float, reach: float, count: int, confidence: float, bounds: tuple[float, float] | None
) -> Interval | None:
    """Return an interval where the judge explains all labels: as many other rows may differ as the rule of three
    says, each by as much as the bounds allow. None without bounds."""
    if bounds is None:
        return None
    least, most = bounds
    found = constant_mean(min(most, max(least, mean)), count, confidence, least, most)
    return found and Interval(min(mean, found.low) - reach, max(mean, found.high) + reach, confidence)


# ---- rows that go together, and strata


@attrs.frozen
class DesignedRow:
    """A row as its judge scored it. Rows of one `cluster` go together, as those of one conversation do, or the trials
    of a row; rows of one `stratum` had the same chance to be labelled. `label` is people's value, None without one."""

    judged: float
    cluster: Hashable
    stratum: Hashable = 0
    label: float | None = None


def of_design(
    rows: Sequence[DesignedRow], confidence: float = CONFIDENCE, bounds: tuple[float, float] | None = None
) -> Corrected:
    """Correct a mean of rows that go together, or of which some had a greater chance to be labelled: the labelled rows
    of a stratum stand for all of it. No interval if a stratum has fewer than two labels, or if there are fewer than
    three labelled clusters more than strata."""
    total, known = len(rows), [one for one in rows if one.label is not None]
    own = math.fsum(one.judged for one in rows) / total
    sizes, counts = Counter(one.stratum for one in rows), Counter(one.stratum for one in known)
    plain = Corrected("ppi", total, len(known), own)
    freedom = len({one.cluster for one in known}) - len(sizes) - 1
    if any(counts[stratum] < min(2, size) for stratum, size in sizes.items()) or freedom < 2:
        return plain
    weights = {stratum: size / counts[stratum] for stratum, size in sizes.items()}
    slope = _weighted_slope([(one.judged, one.label or 0.0, weights[one.stratum]) for one in known])
    residuals = {stratum: list[float]() for stratum in sizes}
    for one in known:
        residuals[one.stratum].append((one.label or 0.0) - slope * one.judged)
    means = {stratum: math.fsum(left) / len(left) for stratum, left in residuals.items()}
    middle = math.fsum(sizes[stratum] * mean for stratum, mean in means.items()) / total
    mean = slope * own + middle
    found = attrs.evolve(plain, mean=mean)
    of_rows, of_people = dict[Hashable, float](), dict[Hashable, float]()
    for one in rows:
        share = slope * (one.judged - own) + means[one.stratum] - middle
        of_rows[one.cluster] = of_rows.get(one.cluster, 0.0) + share
        if one.label is not None:
            few = counts[one.stratum]
            exact = math.sqrt(few / (few - 1)) if few > 1 else 1.0
            left = weights[one.stratum] * exact * (one.label - slope * one.judged - means[one.stratum])
            of_people[one.cluster] = of_people.get(one.cluster, 0.0) + left
    groups = len(of_rows)
    people = _square_mean(of_people.values(), len(of_people)) / total**2
    both = (one + of_people.get(cluster, 0.0) for cluster, one in of_rows.items())
    variance = _square_mean(both, groups) / total**2
    if math.sqrt(people) <= NO_SPREAD * max(abs(one.label or 0.0) for one in known):
        reach = t_quantile((1 + confidence) / 2, groups - 1) * math.sqrt(variance)
        labels = min(len({one.cluster for one in known}), *counts.values())
        return attrs.evolve(found, interval=_unexplained(mean, reach, labels, confidence, bounds))
    others = max(variance - people, 0.0)
    certain = max(1, int((people + others) ** 2 / (people**2 / freedom + others**2 / (groups - 1))))
    quantile = t_quantile((1 + confidence) / 2, certain)
    return attrs.evolve(found, interval=_within(mean, variance, quantile, confidence, bounds))


def _within(
    mean: float, variance: float, quantile: float, confidence: float, bounds: tuple[float, float] | None
) -> Interval:
    """Return Student's interval; between bounds Wilson's, of so many rows as would have this variance."""
    reach = quantile * math.sqrt(variance)
    if bounds is None or not bounds[0] < mean < bounds[1]:
        low, high = bounds or (-math.inf, math.inf)
        return Interval(max(low, mean - reach), min(high, mean + reach), confidence)
    least, width = bounds[0], bounds[1] - bounds[0]
    place = (mean - least) / width
    found = rate_interval(place, place * (1 - place) * width**2 / variance, confidence, quantile)
    return Interval(least + width * found.low, least + width * found.high, confidence)


def _square_mean(sums: Iterable[float], groups: int) -> float:
    """Return the sum of squares of the sums of clusters, corrected for how few they are."""
    return math.fsum(one * one for one in sums) * groups / (groups - 1)


def _weighted_slope(known: Sequence[tuple[float, float, float]]) -> float:
    """Return the slope of people's values on the judge's, of labelled rows with their weights."""
    total = math.fsum(weight for *_, weight in known)
    x = math.fsum(weight * one for one, _, weight in known) / total
    y = math.fsum(weight * other for _, other, weight in known) / total
    squares = math.fsum(weight * (one - x) ** 2 for one, _, weight in known)
    return math.fsum(weight * (one - x) * (other - y) for one, other, weight in known) / squares if squares else 0.0


# ---- rows of another sample are labelled


def of_other_rows(passed: float, rows: float, known: Confusion, confidence: float = CONFIDENCE) -> Corrected:
    """Correct a rate by the judge's sensitivity and specificity on other rows, if it errs as often on these. Without an
    interval if the judge is not shown to be better than chance."""
    own = passed / rows
    found = Corrected("rogan_gladen", round(rows), round(known.yes + known.no), own)
    if not known.yes or not known.no:
        return found
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    count = rows + z * z
    rate = (passed + z * z / 2) / count
    right, wrong = known.yes + 2, known.no + 2
    sensitivity, specificity = (known.yes_yes + 1) / right, (known.no_no + 1) / wrong
    informed = sensitivity + specificity - 1
    errors = sensitivity * (1 - sensitivity) / right, specificity * (1 - specificity) / wrong
    if informed <= z * math.sqrt(sum(errors)):
        return found
    middle = (rate + specificity - 1) / informed
    shift = 2 * z * z * (middle * errors[0] - (1 - middle) * errors[1])
    variance = rate * (1 - rate) / count + middle**2 * errors[0] + (1 - middle) ** 2 * errors[1]
    reach = z * math.sqrt(variance) / informed
    low, high = (min(1.0, max(0.0, middle + shift + side)) for side in (-reach, reach))
    plain = (known.sensitivity or 0.0) + (known.specificity or 0.0) - 1
    mean = min(1.0, max(0.0, (own + (known.specificity or 0.0) - 1) / plain))
    return attrs.evolve(found, mean=mean, interval=Interval(low, high, confidence))
