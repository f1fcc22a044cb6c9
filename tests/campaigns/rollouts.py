"""Worlds in which the truth is known: how often is a candidate promoted that is worse by more than the margin?

    python -m tests.campaigns.rollouts                       10,000 rollouts on each side of the margin
    python -m tests.campaigns.rollouts --worlds 2000 --seed 7
    python -m tests.campaigns.rollouts --sabotage            must exit with 1

In each world users come one after the other, fall to an arm by chance, and score the answer; after every score the
rollout looks. It goes through all stages, or back. Prints for each kind of world how many were promoted, rolled back,
or undecided at the end, and the median number of scores until then, beside those that a test of a fixed size needs for
the same error and a power of 80 %. Fails if more than alpha of the worse ones are promoted, if more than alpha of those
that are not worse than the margin go back, or if the part itself decides otherwise. With `--sabotage`, the interval is
the normal one of a test of a fixed size, looked at after every score.
"""

import argparse
import math
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from statistics import NormalDist
from typing import Any

import attrs
import numpy as np

from modelyard.parts.rollouts.decisions import decide, standing
from modelyard.parts.rollouts.records import UNIT, RolloutChange, RolloutState, RolloutTally, Side, StagedRollout
from modelyard.parts.rollouts.sequence import PRIOR

ALPHA, MARGIN, LEAST, RATE = 0.05, 0.1, 20, 0.8
CANARY = (0.2, 0.5, 1.0)
MOST_USERS = 3000
"""How many users score in a stage until the world ends undecided."""

NOW = datetime(2026, 1, 1, tzinfo=UTC)
_STEPS = 40
_EPS = 1e-12

Array = Any
Wealth = Callable[[Array, Array, Array, Array], Array]


@attrs.frozen
class Kind:
    """A kind of world: how much better the candidate is."""

    name: str
    difference: float


KINDS = (
    Kind("worse by 0.1 more than the margin", -MARGIN - 0.1),
    Kind("worse by 0.02 more than the margin", -MARGIN - 0.02),
    Kind("worse by just more than the margin", -MARGIN - 1e-9),
    Kind("worse by just less than the margin", -MARGIN + 1e-9),
    Kind("the same", 0.0),
    Kind("better by 0.05", 0.05),
)


def log_tables(most: int) -> tuple[Array, Array]:
    """Return the logarithms of the gamma function at k + PRIOR and at k + 2 PRIOR."""
    half = np.array([math.lgamma(PRIOR + k) for k in range(most + 2)])
    whole = np.array([math.lgamma(2 * PRIOR + k) for k in range(most + 2)])
    return half, whole


def bet(tables: tuple[Array, Array]) -> Wealth:
    """Return the logarithm of the wealth against a difference of minus the margin, as `sequence` has it."""
    half, whole = tables
    none = 2 * half[0] - whole[0]

    def mixed(hits: Array, count: Array) -> Array:
        return half[hits] + half[count - hits] - whole[count] - none

    def likely(hits: Array, count: Array, mean: Array) -> Array:
        kept = np.clip(mean, _EPS, 1 - _EPS)
        return hits * np.log(kept) + (count - hits) * np.log1p(-kept)

    def wealth(hits0: Array, count0: Array, hits1: Array, count1: Array) -> Array:
        """A pair of means that is not the likeliest gives more than the wealth: only where that is enough, it is
        looked for."""
        near = np.clip((hits0 + hits1 + MARGIN * count1) / (count0 + count1), MARGIN, 1)
        least = likely(hits0, count0, near) + likely(hits1, count1, near - MARGIN)
        found = mixed(hits0, count0) + mixed(hits1, count1) - least
        (at,) = np.nonzero(found >= math.log(1 / ALPHA))
        if len(at):
            found[at] += least[at] - likeliest(hits0[at], count0[at], hits1[at], count1[at])
        return found

    def likeliest(hits0: Array, count0: Array, hits1: Array, count1: Array) -> Array:
        low, high = np.full(hits0.shape, MARGIN), np.ones(hits0.shape)
        for _ in range(_STEPS):
            at = (low + high) / 2
            other = at - MARGIN
            slope = hits0 / at - (count0 - hits0) / np.maximum(1 - at, _EPS)
            slope += hits1 / np.maximum(other, _EPS) - (count1 - hits1) / (1 - other)
            up = slope > 0
            low, high = np.where(up, at, low), np.where(up, high, at)
        at = (low + high) / 2
        return likely(hits0, count0, at) + likely(hits1, count1, at - MARGIN)

    return wealth


def fixed(hits0: Array, count0: Array, hits1: Array, count1: Array) -> Array:
    """Return what stands for the wealth if a normal interval of a test of a fixed size is looked at each time."""
    one, other = hits0 / np.maximum(count0, 1), hits1 / np.maximum(count1, 1)
    spread = np.sqrt(one * (1 - one) / np.maximum(count0, 1) + other * (1 - other) / np.maximum(count1, 1)) + _EPS
    apart = np.abs(other - one + MARGIN) / spread
    return np.where(apart > NormalDist().inv_cdf(1 - ALPHA), math.log(1 / ALPHA) + 1, 0.0)


@attrs.frozen(eq=False)
class Ended:
    """How worlds ended: with a promotion (1), a rollback (-1) or undecided (0); after so many scores; and the counts of
    the first stage at its end."""

    change: Array
    scores: Array
    first: Array


def run(kind: Kind, worlds: int, wealth: Wealth, random: np.random.Generator) -> Ended:
    """Let worlds go through the stages."""
    change, scores = np.zeros(worlds, int), np.zeros(worlds, int)
    first, running = np.zeros((4, worlds), int), np.arange(worlds)
    for at, share in enumerate(CANARY[:-1]):
        counts, outcome = _stage(kind, share, len(running), wealth, random)
        scores[running] += counts[1] + counts[3]
        if at == 0:
            first[:, running] = counts
        change[running[outcome < 0]] = -1
        running = running[outcome > 0]
    change[running] = 1
    return Ended(change, scores, first)


def _stage(kind: Kind, share: float, worlds: int, wealth: Wealth, random: np.random.Generator) -> tuple[Array, Array]:
    """Return hits and scores of baseline and candidate at the end of a stage, and 1, -1 or 0 for how it ended."""
    ended, outcome, active = np.zeros((4, worlds), int), np.zeros(worlds, int), np.arange(worlds)
    counts = np.zeros((4, worlds), int)
    for _ in range(MOST_USERS):
        drawn = random.random((2, len(active)), dtype=np.float32)
        arm = drawn[0] < share
        hit = drawn[1] < np.where(arm, RATE + kind.difference, RATE)
        counts += np.stack([hit & ~arm, ~arm, hit & arm, arm])
        hits0, count0, hits1, count1 = counts
        shown = (wealth(*counts) >= math.log(1 / ALPHA)) & (count0 > 0) & (count1 > 0)
        if not shown.any():
            continue
        above = hits1 / np.maximum(count1, 1) - hits0 / np.maximum(count0, 1) > -MARGIN
        ends = shown & (~above | (np.minimum(count0, count1) >= LEAST))
        outcome[active[ends]], ended[:, active[ends]] = np.where(above[ends], 1, -1), counts[:, ends]
        counts, active = counts[:, ~ends], active[~ends]
        if not len(active):
            break
    ended[:, active] = counts
    return ended, outcome


def fixed_size(difference: float) -> int:
    """Return how many scores a test of a fixed size needs in the first stage to show that the candidate is not worse by
    the margin, with the same error and a power of 80 %."""
    normal, rates = NormalDist(), (RATE, RATE + difference)
    needed = (normal.inv_cdf(1 - ALPHA) + normal.inv_cdf(0.8)) / (difference + MARGIN)
    spread = rates[0] * (1 - rates[0]) / (1 - CANARY[0]) + rates[1] * (1 - rates[1]) / CANARY[0]
    return math.ceil(needed**2 * spread)


def decided(counts: Array) -> RolloutChange:
    """Return what the part decides of hits and scores of baseline and candidate in the first stage."""
    of = "one", "acme", "desk", "model", "support", "prod", 0, 1, CANARY, "thumbs", MARGIN, 1 - ALPHA, False, LEAST
    rollout = StagedRollout(*of, RolloutState.CANARY, 0, NOW, "host", NOW)
    tallies = {}
    for side, hits, count in ((Side.BASELINE, *counts[:2]), (Side.CANDIDATE, *counts[2:])):
        tally = RolloutTally("one", 0, side, "acme", "desk", scores=int(count), total=int(hits) * UNIT)
        tallies[0, side] = tally
    return decide(rollout, standing(rollout, tallies), NOW).change


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sabotage", action="store_true")
    asked = parser.parse_args(arguments)
    wealth = fixed if asked.sabotage else bet(log_tables(MOST_USERS))
    wrong = []
    print(
        f"alpha {ALPHA}, margin {MARGIN}, canary {CANARY}, {asked.worlds} rollouts of each kind, a look at each score"
    )
    for at, kind in enumerate(KINDS):
        ended = run(kind, asked.worlds, wealth, np.random.default_rng([asked.seed, at]))
        promoted, back = np.mean(ended.change > 0), np.mean(ended.change < 0)
        gone = ended.change != 0
        first = np.median((ended.first[1] + ended.first[3])[gone]) if gone.any() else math.nan
        needs = fixed_size(kind.difference) if kind.difference > -MARGIN + 0.01 else None
        beside = f", of the first stage {first:.0f}; a fixed size needs {needs}" if needs else ""
        print(
            f"{kind.name:36} promoted {promoted:.4f}  back {back:.4f}  undecided {1 - promoted - back:.4f}"
            f"  median scores {np.median(ended.scores[gone]) if gone.any() else math.nan:.0f}{beside}"
        )
        if kind.difference < -MARGIN and promoted > ALPHA:
            wrong.append(f"{kind.name}: {promoted:.4f} were promoted, of at most {ALPHA}")
        if kind.difference > -MARGIN and back > ALPHA:
            wrong.append(f"{kind.name}: {back:.4f} went back, of at most {ALPHA}")
        if not asked.sabotage:
            sample = range(0, asked.worlds, max(1, asked.worlds // 50))
            known = {RolloutChange.ROLLED_BACK: -1, RolloutChange.ADVANCED: 1, RolloutChange.LOOKED: 0}
            for one in sample:
                said = known[decided(ended.first[:, one])]
                if ended.change[one] == -1 and said == 1:
                    continue  # it went back in a later stage
                if said != ended.change[one] and not (said == 1 and ended.change[one] == 0):
                    wrong.append(f"{kind.name}: world {one} ends {ended.change[one]}, and the part says {said}")
    for line in wrong:
        print(f"WRONG {line}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
