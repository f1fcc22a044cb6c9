"""The confidence sequence of a difference: its laws, and how often it errs however often one looks."""

import math
import random
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.parts.rollouts.records import RolloutState, StagedRollout, place_of
from modelyard.parts.rollouts.sequence import (
    Arm,
    interval_of_difference,
    interval_of_mean,
    log_wealth,
    log_wealth_of_difference,
)

ALPHA = 0.05
counts = st.integers(1, 3000)


@st.composite
def arms(draw: st.DrawFn) -> Arm:
    count = draw(counts)
    return Arm(count, draw(st.floats(0, 1)) * count)


@given(arms(), arms())
def test_the_interval_has_the_difference_of_the_means_and_lies_within_what_is_possible(one: Arm, other: Arm) -> None:
    found = interval_of_difference(one, other, ALPHA)
    assert one.mean is not None
    assert other.mean is not None
    assert -1 <= found.low <= other.mean - one.mean + 1e-9
    assert other.mean - one.mean - 1e-9 <= found.high <= 1


@given(arms(), arms())
def test_who_changes_the_arms_turns_the_interval(one: Arm, other: Arm) -> None:
    found, turned = interval_of_difference(one, other, ALPHA), interval_of_difference(other, one, ALPHA)
    assert (found.low, found.high) == pytest.approx((-turned.high, -turned.low), abs=1e-6)


@given(arms(), st.floats(0.01, 0.99))
def test_the_wealth_against_a_difference_is_the_least_of_all_pairs(one: Arm, mean: float) -> None:
    other = Arm(50, 20.0)
    difference = 0.4 - mean
    least = log_wealth_of_difference(one, other, difference)
    for step in range(1, 20):
        at = step / 20
        if 0 < at + difference < 1:
            assert least <= log_wealth(one, at) + log_wealth(other, at + difference) + 1e-6


@given(st.lists(st.integers(0, 1), min_size=1, max_size=8), st.floats(0.05, 0.95))
def test_bets_on_yes_and_no_are_fair(values: list[int], mean: float) -> None:
    """What the wealth is on average after one value more is what it was before."""
    arm = Arm(len(values), float(sum(values)))
    now, hit = math.exp(log_wealth(arm, mean)), math.exp(log_wealth(Arm(arm.count + 1, arm.total + 1), mean))
    miss = math.exp(log_wealth(Arm(arm.count + 1, arm.total), mean))
    assert mean * hit + (1 - mean) * miss == pytest.approx(now, rel=1e-9)


def test_of_nothing_all_is_possible() -> None:
    assert interval_of_mean(Arm(0, 0.0), ALPHA).low == 0.0
    found = interval_of_difference(Arm(0, 0.0), Arm(10, 3.0), ALPHA)
    assert (found.low, found.high) == (-1.0, 1.0)


@given(st.text(max_size=20), st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_who_has_the_candidate_keeps_it_as_shares_grow(user: str, shares: list[float]) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    of = "one", "acme", "desk", "model", "support", "prod", 0, 1, (0.5, 1.0), "thumbs", 0.1, 0.95, False, 1
    rollout = StagedRollout(*of, RolloutState.CANARY, 0, now, "host", now)
    place = place_of(rollout.user_digest(user))
    has = [place < share for share in sorted(shares)]
    assert has == sorted(has)
    assert 0 <= place < 1


def worlds(errs: object, seed: int, count: int = 300, looks: int = 300) -> float:
    """Return how often an interval leaves out the true difference at any of many looks."""
    found, chance = 0, random.Random(seed)
    for _ in range(count):
        one = other = Arm(0, 0.0)
        for _ in range(looks):
            one = Arm(one.count + 1, one.total + (chance.random() < 0.8))
            other = Arm(other.count + 1, other.total + (chance.random() < 0.8))
            if errs(one, other):  # type: ignore[operator]
                found += 1
                break
    return found / count


def sequence_errs(one: Arm, other: Arm) -> bool:
    return log_wealth_of_difference(one, other, 0.0) >= math.log(1 / ALPHA)


def fixed_errs(one: Arm, other: Arm) -> bool:
    if one.count < 10 or one.mean is None or other.mean is None:
        return False
    spread = one.mean * (1 - one.mean) / one.count + other.mean * (1 - other.mean) / other.count
    return abs(other.mean - one.mean) > 1.96 * math.sqrt(spread)


def test_however_often_one_looks_it_errs_seldom_and_an_interval_of_a_fixed_size_often() -> None:
    assert worlds(sequence_errs, 1, 100) <= ALPHA
    assert worlds(fixed_errs, 1, 300) > 2 * ALPHA
