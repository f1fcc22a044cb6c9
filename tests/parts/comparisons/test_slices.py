"""A run by the values of a field."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from modelyard import Platform, open_platform
from modelyard.errors import InvalidInput
from modelyard.parts.comparisons.slices import fisher


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        yield opened


def answers(scored_runs: Any, given: list[tuple[str, Any]], **more: Any) -> list[Any]:
    return [
        scored_runs.answer(f"question {n}", scores={"exact": value}, more={"topic": topic, "n": n % 5, **more})
        for n, (topic, value) in enumerate(given)
    ]


def report_of(platform: Platform, scored_runs: Any, given: list[tuple[str, Any]], **options: Any) -> Any:
    return platform.evaluations.report(scored_runs.add(platform, answers(scored_runs, given)), **options)


TOPICS = [(topic, n < passed) for topic, passed in {"law": 3, "art": 28, "sport": 27}.items() for n in range(30)]


def test_a_slice_has_the_numbers_of_its_rows(platform: Platform, scored_runs: Any) -> None:
    found = report_of(platform, scored_runs, TOPICS).by("topic")
    assert {one.slice: (one.summary.mean, one.summary.scored) for one in found.metrics} == {
        "law": (0.1, 30),
        "art": (pytest.approx(28 / 30), 30),
        "sport": (0.9, 30),
    }
    law = found.slice("law")["exact"]
    assert law.difference == pytest.approx(3 / 30 - 55 / 60)
    assert law.p == pytest.approx(scipy.stats.fisher_exact([[3, 27], [55, 5]]).pvalue)
    assert law.corrected >= law.p


def test_intervals_are_wider_the_more_slices_there_are(platform: Platform, scored_runs: Any) -> None:
    alone = report_of(platform, scored_runs, TOPICS[:30]).metric("exact").interval
    among = report_of(platform, scored_runs, TOPICS).by("topic").slice("law")["exact"].summary.interval
    assert among.low < alone.low < alone.high < among.high
    assert among.confidence == pytest.approx(1 - 0.05 / 3)


def test_the_slice_that_differs_is_named(platform: Platform, scored_runs: Any) -> None:
    text = str(report_of(platform, scored_runs, TOPICS).by("topic"))
    assert "topic law is lower on exact than the other rows." in text
    assert "corrected for 3 tests (Holm)" in text


@pytest.mark.slow
def test_slices_that_are_equal_are_seldom_shown_to_differ(platform: Platform, scored_runs: Any) -> None:
    random, tables, shown = Random(7), 60, 0
    for _ in range(tables):
        given = [(f"t{n % 6}", random.gauss(0, 1)) for n in range(90)]
        found = report_of(platform, scored_runs, given).by("topic")
        shown += any(one.corrected <= 0.05 for one in found.metrics)
    assert shown <= tables * 0.05 + 3 * (tables * 0.05 * 0.95) ** 0.5


def test_a_welch_test_is_that_of_scipy_but_for_whole_degrees_of_freedom(platform: Platform, scored_runs: Any) -> None:
    random = Random(1)
    given = [(topic, random.gauss(at, 1 + at)) for at, topic in enumerate(["a", "b"]) for _ in range(40)]
    found = report_of(platform, scored_runs, given).by("topic").slice("a")["exact"]
    sides = [[value for topic, value in given if topic == side] for side in ("a", "b")]
    assert found.p == pytest.approx(scipy.stats.ttest_ind(*sides, equal_var=False).pvalue, rel=0.05)


def test_clusters_are_taken_together(platform: Platform, scored_runs: Any) -> None:
    """Rows of one cluster that are equal count as one row does."""
    given = [(f"{n % 2}", float(n % 5 < 2 + n % 2)) for n in range(200)]
    plain = report_of(platform, scored_runs, given).by("topic").slice("0")["exact"]
    clustered = report_of(platform, scored_runs, given, cluster_by="n").by("topic").slice("0")["exact"]
    assert clustered.p > plain.p


def test_values_that_are_not_strings_are_slices_too(platform: Platform, scored_runs: Any) -> None:
    found = report_of(platform, scored_runs, TOPICS).by("n")
    assert found.slice(3)["exact"].summary.scored == 18


def test_a_field_that_no_row_has_and_one_with_a_value_a_row_are_refused(platform: Platform, scored_runs: Any) -> None:
    report = report_of(platform, scored_runs, TOPICS)
    with pytest.raises(InvalidInput, match="has no input 'topics'; did you mean 'topic'"):
        report.by("topics")
    with pytest.raises(InvalidInput, match="'question' has more than 50 values"):
        report.by("question")
    with pytest.raises(InvalidInput, match="slice: no row has topic 'lav'; did you mean 'law'"):
        report.by("topic").slice("lav")


@given(st.integers(1, 25), st.integers(1, 25), st.data())
def test_fishers_test_is_that_of_scipy(one: int, other: int, data: st.DataObject) -> None:
    first, second = data.draw(st.integers(0, one)), data.draw(st.integers(0, other))
    table = [[first, one - first], [second, other - second]]
    assert fisher(first, one, second, other) == pytest.approx(scipy.stats.fisher_exact(table).pvalue)
