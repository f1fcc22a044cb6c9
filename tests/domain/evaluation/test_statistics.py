"""The numbers of an evaluation, against values worked out by hand and against a statistics library."""

import math
from typing import Any

import numpy as np
import pytest
import scipy
from hypothesis import assume, given
from hypothesis import strategies as st

from modelyard.domain.evaluation.statistics import (
    Interval,
    Numbers,
    Paired,
    bounded_mean,
    clustered_error,
    describe,
    holm,
    mcnemar,
    paired,
    quantile,
    sample_size,
    student,
    t_quantile,
    t_tail,
    t_test,
    wilson,
)

finite = st.floats(-1e6, 1e6)
lists = st.lists(finite, min_size=2, max_size=50)


# ---- one list


def test_wilson_by_hand() -> None:
    """8 of 10 at 95 %: 0.490 to 0.943 (Wilson's formula with z = 1.959964)."""
    interval = wilson(8, 10)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((0.4901625, 0.9433178), abs=1e-7)


def test_nothing_counted_has_no_rate() -> None:
    assert wilson(0, 0) is None


@given(st.integers(1, 10**6), st.floats(0, 1), st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_wilson_agrees_with_the_library(count: int, share: float, confidence: float) -> None:
    passed = round(share * count)
    expected = scipy.stats.binomtest(passed, count).proportion_ci(confidence, method="wilson")
    interval = wilson(passed, count, confidence)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert passed / count in interval


def test_describe_by_hand() -> None:
    found = describe([2, 4, 4, 4, 5, 5, 7, 9])
    assert (found.count, found.mean, found.minimum, found.median, found.maximum) == (8, 5, 2, 4.5, 9)
    assert found.deviation == pytest.approx(math.sqrt(32 / 7))
    assert found.error == pytest.approx(math.sqrt(32 / 7 / 8))


def test_one_value_has_no_spread_and_none_has_nothing() -> None:
    assert describe([3.0]) == Numbers(1, 3.0, None, None, 3.0, 3.0, 3.0)
    assert describe([]) == Numbers(0)


def test_clusters_by_hand() -> None:
    """Two clusters with residual sums -2 and 2: sqrt(2 / 1 x 8) / 4."""
    assert clustered_error([1, 1, 2, 4], ["a", "a", "b", "b"]) == pytest.approx(math.sqrt(2 * 8) / 4)
    assert describe([1, 1, 2, 4], ["a", "a", "b", "b"]).error == pytest.approx(1.0)
    assert clustered_error([1, 2], ["a", "a"]) is None


@given(lists)
def test_clusters_of_one_are_the_plain_standard_error(values: list[float]) -> None:
    plain = describe(values).error
    assert clustered_error(values, range(len(values))) == pytest.approx(plain, rel=1e-9, abs=1e-9)


@given(lists, st.floats(0, 1))
def test_quantile_agrees_with_the_library(values: list[float], share: float) -> None:
    import numpy

    assert quantile(values, share) == pytest.approx(float(numpy.quantile(values, share)), rel=1e-9, abs=1e-6)


def test_the_quantile_of_nothing() -> None:
    assert quantile([], 0.5) is None


# ---- two lists


def test_mcnemar_by_hand() -> None:
    """1 against 5: 2 x (1 + 6) / 64."""
    assert mcnemar(1, 5) == pytest.approx(14 / 64)
    assert mcnemar(3, 3) == 1.0
    assert mcnemar(0, 0) == 1.0


@given(st.integers(0, 3000), st.integers(0, 3000))
def test_mcnemar_agrees_with_the_library(wins: int, losses: int) -> None:
    assume(wins + losses > 0)
    assert mcnemar(wins, losses) == pytest.approx(
        scipy.stats.binomtest(wins, wins + losses).pvalue, rel=1e-6, abs=1e-12
    )


@given(st.floats(0, 1e4), st.integers(1, 10**5))
def test_the_tail_of_t_agrees_with_the_library(t: float, freedom: int) -> None:
    assert t_tail(t, freedom) == pytest.approx(scipy.stats.t.sf(t, freedom), rel=1e-6, abs=1e-14)


@given(st.floats(0.505, 0.9999), st.integers(1, 10**5))
def test_the_quantile_of_t_agrees_with_the_library(share: float, freedom: int) -> None:
    assert t_quantile(share, freedom) == pytest.approx(scipy.stats.t.ppf(share, freedom), rel=1e-6, abs=1e-9)


@pytest.mark.slow
@given(st.lists(st.tuples(finite, finite), min_size=2, max_size=50), st.sampled_from([0.8, 0.95, 0.99]))
def test_paired_numbers_agree_with_the_library(pairs: list[tuple[float, float]], confidence: float) -> None:
    differences = [b - a for a, b in pairs]
    spread = math.sqrt(math.fsum((d - math.fsum(differences) / len(pairs)) ** 2 for d in differences))
    assume(spread > 1e-3)
    expected = scipy.stats.ttest_1samp(differences, 0)
    bounds = expected.confidence_interval(confidence)
    found = paired(pairs, confidence)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-5, abs=1e-9)
    assert found.interval is not None
    shown = (found.interval.low, found.interval.high)
    if all(0 <= value <= 1 for pair in pairs for value in pair):
        assert -1 <= shown[0] <= found.difference <= shown[1] <= 1  # type: ignore[operator]
    else:
        assert shown == pytest.approx((bounds.low, bounds.high), rel=1e-6, abs=1e-4)
    assert found.wins + found.ties + found.losses == found.count == len(pairs)


def test_paired_bools_use_mcnemar() -> None:
    pairs = [(False, True)] * 5 + [(True, False)] + [(True, True)] * 4
    found = paired(pairs)
    assert (found.count, found.wins, found.ties, found.losses) == (10, 5, 4, 1)
    assert found.difference == pytest.approx(0.4)
    assert found.p == pytest.approx(14 / 64)


def test_no_pair_and_one_pair() -> None:
    assert paired([]) == Paired(0, 0, 0, 0)
    assert paired([(1.0, 3.0)]) == Paired(1, 1, 0, 0, 2.0, None, None)


def test_differences_without_spread() -> None:
    assert t_test(0.0, 0.0, 2) == 1.0
    assert t_test(1.0, 0.0, 2) == 0.0
    assert paired([(3.0, 3.0)] * 3).interval is None
    interval = paired([(3.0, 5.0)] * 100).interval
    assert interval is not None
    assert 0 < interval.low < 2.0
    assert interval.high == 2.0
    assert student(describe([3.0] * 5), 5, 0.95) is None


@given(count=st.integers(2, 200), value=st.floats(0, 1), share=st.floats(0, 1))
def test_equal_values_show_no_more_than_their_number_does(count: int, value: float, share: float) -> None:
    """An interval of nothing but equal values has the width that Wilson's has of so many rows without a failure."""
    width = 1 - wilson(count, count).low  # type: ignore[union-attr]
    of_run = bounded_mean(describe([value] * count), count, 0.95)
    of_difference = paired([(value, value)] * count).interval
    moved = paired([(value * share, value)] * count)
    assert of_run is not None
    assert of_difference is not None
    assert moved.interval is not None
    assert of_run.high - of_run.low == pytest.approx(width)
    assert (of_difference.low, of_difference.high) == pytest.approx((-width, width))
    assert moved.interval.high - moved.interval.low == pytest.approx(2 * width)
    assert moved.interval.low - 1e-9 <= moved.difference <= moved.interval.high + 1e-9  # type: ignore[operator]


def test_the_sign_of_a_difference_is_that_of_the_second() -> None:
    found = paired([(0.0, 1.0), (0.0, 3.0), (1.0, 0.0)])
    assert found.difference == pytest.approx(1.0)
    assert (found.wins, found.losses) == (2, 1)


def test_holm_by_hand() -> None:
    """Sorted 0.01, 0.03, 0.04 times 3, 2, 1, never falling."""
    assert holm({"b": 0.04, "a": 0.01, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"only": 0.2}) == {"only": 0.2}
    assert holm({"a": 0.9, "b": 0.8}) == {"b": 1.0, "a": 1.0}


def test_sample_size_by_hand() -> None:
    """(1.959964 + 0.841621)^2 x (0.5 / 0.1)^2 = 196.2."""
    assert sample_size(0.1, 0.5) == 197
    assert sample_size(-0.1, 0.5) == 197
    with pytest.raises(ValueError, match="no number of rows"):
        sample_size(0, 0.5)


# ---- means of what lies between 0 and 1 ----------------------------------------------------------------------------

SCORES = {
    "any value alike": (0.0, 0.0, 1, 1),
    "about the middle": (0.0, 0.0, 20, 20),
    "near the ends": (0.0, 0.0, 0.5, 0.5),
    "some perfect": (0.4, 0.1, 3, 2),
    "most perfect": (0.8, 0.05, 4, 2),
    "nearly all perfect": (0.9, 0.02, 6, 2),
    "a rate": (0.5, 0.5, 1, 1),
    "a high rate": (0.9, 0.1, 1, 1),
}
"""The share of ones, the share of zeros, and the beta distribution of the others."""


def samples(scores: tuple[float, float, float, float], count: int) -> tuple[Any, float]:
    """A thousand samples of so many scores, and their true mean."""
    ones, zeros, a, b = scores
    random = np.random.default_rng(7)
    kind, other = random.random((1000, count)), random.beta(a, b, (1000, count))
    drawn = np.where(kind < ones, 1.0, np.where(kind < ones + zeros, 0.0, other))
    return drawn, ones + (1 - ones - zeros) * a / (a + b)


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, 8, 12, 50])
@pytest.mark.parametrize("scores", SCORES)
def test_the_interval_of_scores_holds_their_mean_as_often_as_it_says(scores: str, count: int) -> None:
    """In 0.87 to 0.99 of 1,000 samples at 95 %. Student's holds it in 0.39 of them if nearly all are perfect."""
    drawn, mean = samples(SCORES[scores], count)
    held = students = 0
    for values in drawn.tolist():
        numbers = describe(values)
        interval, plain = bounded_mean(numbers, count, 0.95), student(numbers, count, 0.95)
        assert interval is not None
        assert 0 <= interval.low <= numbers.mean <= interval.high <= 1  # type: ignore[operator]
        held, students = held + (mean in interval), students + (plain is not None and mean in plain)
    assert held >= 865
    assert held >= students - 30


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), st.floats(-50, 50), st.floats(0.1, 9))
def test_the_interval_of_a_mean_stays_within_its_bounds(values: list[float], least: float, width: float) -> None:
    most = least + width
    moved = [min(max(least + width * value, least), most) for value in values]
    interval = bounded_mean(describe(moved), len(moved), 0.95, least, most)
    assert interval is not None
    assert least - 1e-9 <= interval.low <= interval.high <= most + 1e-9
    if all(value == most for value in moved):
        assert interval.low < most


def test_scores_that_are_all_perfect_have_the_interval_of_a_rate() -> None:
    assert bounded_mean(describe([1.0] * 8), 8, 0.95) == wilson(8, 8)
    assert paired([(0.0, 1.0)] * 8).interval == Interval(2 * wilson(8, 8).low - 1, 1.0)  # type: ignore[union-attr]


@pytest.mark.parametrize("scores", [[1.7e9, 1.7e9 + 1, 1.7e9 + 3], [1e-12, 2e-12, 4e-12]])
def test_scores_that_differ_have_an_interval_however_large_they_are(scores: list[float]) -> None:
    interval = student(describe(scores), len(scores), 0.95)
    assert interval is not None
    assert interval.low < interval.high
    assert student(describe([0.1 + 0.2, 0.3, 0.3]), 3, 0.95) is None
