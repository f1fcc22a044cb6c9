"""Numbers in a few round bars, and the few lowest of many."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.domain.evaluation.metrics import LARGEST
from modelyard.domain.evaluation.running_totals import NSmallest
from modelyard.domain.evaluation.statistics import BARS, Distribution

numbers = st.floats(-LARGEST, LARGEST)


@given(st.lists(numbers, min_size=1, max_size=50))
def test_every_number_is_in_one_of_a_few_bars(values: list[float]) -> None:
    found = Distribution.of(values)
    assert found is not None
    assert sum(found.counts) == len(values)
    assert 1 <= len(found.counts) <= BARS + 2
    assert found.counts[0] > 0
    assert found.counts[-1] > 0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_a_number_lies_in_the_bar_that_counts_it(values: list[float]) -> None:
    found = Distribution.of(values)
    assert found is not None
    for centre, count in zip(found.centres, found.counts, strict=True):
        inside = sum(abs(value - centre) <= found.step * 0.501 for value in values)
        assert inside >= count


def test_round_numbers_stand_in_the_middle_of_their_bars() -> None:
    found = Distribution.of([0.0, 0.5, 1.0, 1.0])
    assert found is not None
    assert found.step == pytest.approx(0.05)
    bars = dict(zip(found.centres, found.counts, strict=True))
    assert {centre: count for centre, count in bars.items() if count} == pytest.approx({0.0: 1, 0.5: 1, 1.0: 2})


def test_equal_numbers_are_one_bar_and_none_are_none() -> None:
    assert Distribution.of([0.37, 0.37]) == Distribution(1, 0.37, (2,))
    assert Distribution.of([0.0]) == Distribution(0, 1.0, (1,))
    assert Distribution.of([]) is None


@given(st.lists(st.integers(-5, 5)), st.integers(0, 6))
def test_the_lowest_are_what_sorting_would_give(ranks: list[int], keep: int) -> None:
    lowest: NSmallest[tuple[int, int]] = NSmallest(keep)
    for at, rank in enumerate(ranks):
        lowest.offer(rank, (rank, at))
    assert lowest.items == tuple(sorted((rank, at) for at, rank in enumerate(ranks))[:keep])
