"""Worlds in which the truth is known: how often do corrected intervals of a judged mean contain it?

    python -m tests.campaigns.judges                        2,000 worlds for each line
    python -m tests.campaigns.judges --worlds 10000 --seed 7
    python -m tests.campaigns.judges --sabotage             must exit with 1

Each world draws a rate (or scores), a judge's sensitivity and specificity (0.6 to 0.98 each), the rows and their
judgements, and labels a random part. Prints a line for each kind of world: how often 95 % intervals contain the truth,
and how wide they are. Fails when a line is outside of 94 to 96 % by more than two standard errors of so many worlds;
small differences and rows labelled elsewhere may be above. With `--sabotage`, the interval is the judge's own, which
knows nothing of the judge's error.
"""

import argparse
import sys
from collections.abc import Callable
from itertools import product
from statistics import NormalDist
from typing import Any

import attrs
import numpy as np

from modelyard.domain.evaluation.statistics import Interval, describe, difference_interval, rate_interval
from modelyard.parts.review.agreement import Confusion
from modelyard.parts.review.corrected import Corrected, DesignedRow, of_design, of_few_values, of_numbers, of_other_rows

BOUNDS = 0.94, 0.96
AT_LEAST = 0.94, 1.0
"""Where few labels disagree, or few rows of each kind are labelled elsewhere, intervals are wider than they need be."""
SKILL = 0.6, 0.98
World = tuple[float, Corrected, Interval | None]
"""The truth, what was estimated, and the judge's own interval."""


def rates(rows: int, labels: int, low: float, high: float, random: np.random.Generator) -> World:
    """Yes or no, some of the run's own rows labelled."""
    rate, right, wrong = random.uniform(low, high), random.uniform(*SKILL), random.uniform(*SKILL)
    chances = [rate * right, rate * (1 - right), (1 - rate) * (1 - wrong), (1 - rate) * wrong]
    kinds = ((1, 1), (0, 1), (1, 0), (0, 0))
    labelled, others = random.multinomial(labels, chances), random.multinomial(rows - labels, chances)
    judged = {judge: int(sum((labelled + others)[at] for at in range(4) if kinds[at][0] == judge)) for judge in (0, 1)}
    known = [
        (float(judge), {float(people): 1.0}) for at, (judge, people) in enumerate(kinds) for _ in range(labelled[at])
    ]
    return rate, of_few_values(judged, known, (0.0, 1.0)), rate_interval(judged[1] / rows, rows)


def elsewhere(rows: int, labels: int, low: float, high: float, random: np.random.Generator) -> World:
    """Yes or no, rows of another sample labelled, of which half are right."""
    rate, right, wrong = random.uniform(low, high), random.uniform(*SKILL), random.uniform(*SKILL)
    passed = int(random.binomial(rows, rate * right + (1 - rate) * (1 - wrong)))
    yes, no = int(random.binomial(labels // 2, right)), int(random.binomial(labels // 2, wrong))
    known = Confusion(yes, labels // 2 - no, labels // 2 - yes, no)
    return rate, of_other_rows(passed, rows, known), rate_interval(passed / rows, rows)


def differences(rows: int, labels: int, low: float, high: float, random: np.random.Generator) -> World:
    """A candidate that differs from the baseline in some rows, both judged yes or no, and labelled in the same rows."""
    rate, lost, won = random.uniform(0.2, 0.9), random.uniform(low, high), random.uniform(low, high)
    right, wrong = random.uniform(*SKILL), random.uniform(*SKILL)
    before = random.random(rows) < rate
    after = np.where(before, random.random(rows) >= lost, random.random(rows) < won)
    seen = [np.where(one, random.random(rows) < right, random.random(rows) >= wrong) for one in (before, after)]
    judge, people = seen[1].astype(int) - seen[0], after.astype(int) - before
    counts = {value: int((judge == value).sum()) for value in (-1, 0, 1)}
    known = [(float(judge[at]), {float(people[at]): 1.0}) for at in range(labels)]
    pairs = [(float(a), float(b)) for a, b in zip(*seen, strict=True)]
    own = difference_interval(pairs, describe([b - a for a, b in pairs]), rows, 0.95)
    return (1 - rate) * won - rate * lost, of_few_values(counts, known, (-1.0, 0.0, 1.0)), own


def numbers(rows: int, labels: int, low: float, high: float, random: np.random.Generator) -> World:
    """Scores of 1 to 5 by a judge who is biased, noisy and rounds."""
    bias, noise, middle = random.uniform(-1, 1), random.uniform(0.3, 1.5), random.uniform(low, high)
    truth = random.normal(middle, 1.0, rows)
    judge = np.clip(np.round(truth + bias + random.normal(0, noise, rows)), 1, 5)
    found = of_numbers(judge.tolist(), list(zip(judge[:labels].tolist(), truth[:labels].tolist(), strict=True)))
    reach = 1.96 * judge.std() / rows**0.5
    return middle, found, Interval(judge.mean() - reach, judge.mean() + reach)


def _conversations(rows: int, random: np.random.Generator) -> tuple[Any, Any]:
    """The conversation of each row, 1 to 9 rows each, and how good each conversation is, of a normal distribution."""
    sizes = random.integers(1, 10, rows)
    of = np.repeat(np.arange(rows), sizes)[:rows]
    return of, random.normal(0, 1, rows)[of]


def _judged(
    rows: int, labels: int, low: float, high: float, random: np.random.Generator, strata: bool, together: bool
) -> World:
    """Yes or no: rows of a conversation are alike, and so are the judge's errors on them; people label rows at random,
    or as many of each thing that the judge says."""
    middle, alike = random.uniform(low, high), random.uniform(0.3, 1.0) if together else 0.0
    right, wrong = random.uniform(*SKILL), random.uniform(*SKILL)
    of, good = _conversations(rows, random)
    truth = middle + alike * good + random.normal(0, 1, rows) > 0
    harsh = random.normal(0, 1, rows)
    sharp = 0.8 * random.normal(0, 1, rows) + 0.6 * (harsh[of] if together else harsh)
    limit = NormalDist().inv_cdf
    judge = np.where(truth, sharp < limit(right), sharp > limit(wrong)).astype(float)
    if strata:
        each = [random.permutation(np.flatnonzero(judge == value))[: labels // 2] for value in (0.0, 1.0)]
        chosen = np.concatenate(each)
    else:
        chosen = random.permutation(rows)[:labels]
    said = {int(at): float(truth[at]) for at in chosen}
    designed = [
        DesignedRow(float(judge[at]), int(of[at]) if together else at, float(judge[at]) if strata else 0, said.get(at))
        for at in range(rows)
    ]
    rate = NormalDist().cdf(middle / (1 + alike**2) ** 0.5)
    return rate, of_design(designed, 0.95, (0.0, 1.0)), rate_interval(float(judge.mean()), rows)


def conversations(*of: Any) -> World:
    """Rows of conversations, labelled at random."""
    return _judged(*of, strata=False, together=True)


def by_score(*of: Any) -> World:
    """As many rows labelled of each thing that the judge says."""
    return _judged(*of, strata=True, together=False)


def both(*of: Any) -> World:
    """Rows of conversations, as many labelled of each thing that the judge says."""
    return _judged(*of, strata=True, together=True)


@attrs.frozen
class Kind:
    """Worlds of one kind. `bounds` are those of the coverage."""

    name: str
    draw: Callable[..., World]
    low: float
    high: float
    bounds: tuple[float, float] = BOUNDS


KINDS = (
    Kind("rate", rates, 0.1, 0.9),
    Kind("rate near 0", rates, 0.005, 0.1),
    Kind("rate near 1", rates, 0.9, 0.995),
    Kind("rate, other rows labelled", elsewhere, 0.1, 0.9, AT_LEAST),
    Kind("difference", differences, 0.05, 0.4),
    Kind("small difference", differences, 0.0, 0.05, AT_LEAST),
    Kind("scores of 1 to 5", numbers, 2.5, 4.0),
    Kind("conversations", conversations, -0.8, 0.8),
    Kind("by score", by_score, -1.3, 1.3),
    Kind("conversations by score", both, -0.8, 0.8),
)
SIZES = ((200, 20), (200, 50), (1000, 30), (1000, 100), (5000, 300))
"""How many rows there are, and how many of them are labelled."""

SHORT = [
    *(((1000, 30), kind) for kind in KINDS if kind.name in ("rate", "rate near 0", "difference")),
    *(((200, 50), kind) for kind in KINDS[-3:]),
]


def covered(kind: Kind, size: tuple[int, int], worlds: int, seed: int, sabotage: bool) -> tuple[float, float]:
    """Return how often the truth is in the interval, and how wide that is on average."""
    random, inside, width, told = np.random.default_rng(seed), 0, 0.0, 0
    for _ in range(worlds):
        truth, found, own = kind.draw(*size, kind.low, kind.high, random)
        interval = own if sabotage else found.interval
        if interval is not None:
            told += 1
            inside += truth in interval
            width += interval.high - interval.low
    return inside / told, width / told


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sabotage", action="store_true")
    parser.add_argument("--short", action="store_true", help="Some of the lines.")
    asked = parser.parse_args(arguments)
    failed = False
    for size, kind in SHORT if asked.short else product(SIZES, KINDS):
        share, width = covered(kind, size, asked.worlds, asked.seed, asked.sabotage)
        chance = 2 * (0.95 * 0.05 / asked.worlds) ** 0.5
        good = kind.bounds[0] - chance <= share <= kind.bounds[1] + chance
        failed = failed or not good
        line = f"{kind.name:26}{size[0]:6} rows {size[1]:4} labelled  {share:7.2%}  width {width:.3f}"
        print(line if good else f"{line}  outside of {kind.bounds[0]:.0%} to {kind.bounds[1]:.0%}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
