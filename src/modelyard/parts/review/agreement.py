"""How far judges and people agree: kappas, alpha, sensitivity and specificity. Pure functions over plain numbers.

A table of ratings has a row for each thing that was rated, with the values that it got, in any order. What cannot be
computed is None, never 0: an agreement of nothing, or beyond chance if chance alone explains all of it.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import product

import attrs

from modelyard.domain.evaluation.statistics import CONFIDENCE, Interval, rate_interval

Ratings = Sequence[Sequence[float]]


def cohen_kappa(pairs: Sequence[tuple[Hashable, Hashable]], weights: Sequence[float] = ()) -> float | None:
    """Return Cohen's kappa (1960) of two raters, given what each of them said of the same things, perhaps with how much
    each thing weighs."""
    if not pairs:
        return None
    given = weights or [1] * len(pairs)
    count, one, other = sum(given), Counter[Hashable](), Counter[Hashable]()
    for (a, b), weight in zip(pairs, given, strict=True):
        one[a] += weight  # type: ignore[assignment]
        other[b] += weight  # type: ignore[assignment]
    observed = sum(weight for (a, b), weight in zip(pairs, given, strict=True) if a == b) / count
    return _beyond(observed, sum(one[value] * other[value] for value in one) / count**2)


def fleiss_kappa(ratings: Iterable[Sequence[Hashable]]) -> float | None:
    """Return Fleiss' kappa (1971) of several raters, who need not be the same for each thing. Things with fewer than
    two ratings are left out. If their numbers differ, each thing counts once, as in Fleiss (1981)."""
    rated = [Counter(values) for values in ratings if len(values) > 1]
    if not rated:
        return None
    agreed = math.fsum(_agreeing_pairs(one) for one in rated) / len(rated)
    total = sum((one for one in rated), Counter[Hashable]())
    chance = math.fsum((count / total.total()) ** 2 for count in total.values())
    return _beyond(agreed, chance)


def _agreeing_pairs(values: Counter[Hashable]) -> float:
    count = values.total()
    return sum(same * (same - 1) for same in values.values()) / (count * (count - 1))


def _beyond(observed: float, chance: float) -> float | None:
    return (observed - chance) / (1 - chance) if chance < 1 else None


def krippendorff_alpha(ratings: Iterable[Sequence[float]], level: str = "nominal") -> float | None:
    """Return Krippendorff's alpha (2011), also if ratings are missing. `level` is "nominal", at which two values are
    the same or not, or "interval", at which they are as far apart as the square of their difference."""
    apart = _APART[level]
    rated = [Counter(values) for values in ratings if len(values) > 1]
    total = sum(rated, Counter[float]())
    if total.total() < 2:
        return None
    observed = math.fsum(_disagreement(one, apart) / (one.total() - 1) for one in rated) / total.total()
    expected = _disagreement(total, apart) / (total.total() * (total.total() - 1))
    return 1 - observed / expected if expected else None


_APART: Mapping[str, Callable[[float, float], float]] = {
    "nominal": lambda one, other: float(one != other),
    "interval": lambda one, other: (one - other) ** 2,
}


def _disagreement(values: Counter[float], apart: Callable[[float, float], float]) -> float:
    """Return the sum of the distances of all ordered pairs."""
    return math.fsum(
        count * times * apart(one, other) for one, count in values.items() for other, times in values.items()
    )


@attrs.frozen
class Confusion:
    """How often a judge says yes or no where people say yes or no. The first word is the judge's."""

    yes_yes: float = 0
    yes_no: float = 0
    no_yes: float = 0
    no_no: float = 0

    @classmethod
    def of(cls, pairs: Sequence[tuple[bool, bool]], weights: Sequence[float] = ()) -> "Confusion":
        """Count pairs of what a judge and what people say, perhaps with how much each weighs."""
        found = dict.fromkeys(product((True, False), repeat=2), 0.0)
        for (judge, people), weight in zip(pairs, weights or [1] * len(pairs), strict=True):
            found[bool(judge), bool(people)] += weight
        return cls(*found.values())

    @property
    def yes(self) -> float:
        """How many things are right, as people say."""
        return self.yes_yes + self.no_yes

    @property
    def no(self) -> float:
        """How many things are wrong, as people say."""
        return self.no_no + self.yes_no

    @property
    def sensitivity(self) -> float | None:
        """The share of what is right that the judge finds right."""
        return self.yes_yes / self.yes if self.yes else None

    @property
    def specificity(self) -> float | None:
        """The share of what is wrong that the judge finds wrong."""
        return self.no_no / self.no if self.no else None

    def sensitivity_interval(self, confidence: float = CONFIDENCE) -> Interval | None:
        """Return Wilson's interval (1927) of the sensitivity."""
        return rate_interval(self.yes_yes / self.yes, self.yes, confidence) if self.yes else None

    def specificity_interval(self, confidence: float = CONFIDENCE) -> Interval | None:
        """Return Wilson's interval (1927) of the specificity."""
        return rate_interval(self.no_no / self.no, self.no, confidence) if self.no else None

    def __add__(self, other: "Confusion") -> "Confusion":
        mine, theirs = attrs.astuple(self), attrs.astuple(other)
        return Confusion(*(one + more for one, more in zip(mine, theirs, strict=True)))
