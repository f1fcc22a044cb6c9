"""Two runs over the same rows, against values worked out by hand or by scipy."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.aggregate import aggregate
from modelyard.domain.evaluation.comparison import Comparison, MetricComparison, Verdict, rows_needed
from modelyard.domain.evaluation.metrics import MetricKind, ScoredPrediction
from modelyard.domain.evaluation.pairing import compare
from modelyard.domain.evaluation.run import Prediction, Score
from modelyard.errors import InvalidInput

NOW = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
MODEL = "weave:///acme/red/object/support:step3"
SCORER = "weave:///acme/red/object/exact:v1"
FAILED: Any = object()


def scored(row: Mapping[str, Any], values: Mapping[str, Any] | object, trial: int = 0) -> ScoredPrediction:
    """A row of a run with a value for each scorer, or one on which the model failed."""
    key = digest(row)
    if not isinstance(values, Mapping):
        return Prediction(f"p-{key}", "acme", "red", MODEL, row, key, NOW, "run", trial=trial, error="down"), []
    made = Prediction(
        f"p-{key}", "acme", "red", MODEL, row, key, NOW, "run", trial=trial, output={"value": str(values)}
    )
    return made, [Score("s", "acme", "red", made.id, ref, NOW, value={"value": value}) for ref, value in values.items()]


def run_of(values: Mapping[int, Any], scorer: str = SCORER) -> list[ScoredPrediction]:
    """A row for each number, with its value of one scorer; `FAILED` is one on which the model failed."""
    found = (scored({"n": n}, FAILED if value is FAILED else {scorer: value}) for n, value in values.items())
    return sorted(found, key=lambda one: one[0].row_digest)


def listed(values: Sequence[Any]) -> list[ScoredPrediction]:
    return run_of(dict(enumerate(values)))


def only(found: Comparison) -> MetricComparison:
    (metric,) = found.metrics
    return metric


def compared(baseline: Sequence[Any], candidate: Sequence[Any], **options: Any) -> MetricComparison:
    return only(compare(listed(baseline), listed(candidate), **options))


# ---- pairing


@given(st.sets(st.integers(0, 12)), st.sets(st.integers(0, 12)))
def test_rows_are_paired_by_their_digest(one: set[int], other: set[int]) -> None:
    found = compare(run_of(dict.fromkeys(one, 1.0)), run_of(dict.fromkeys(other, 2.0)))
    assert (found.rows, found.only_baseline, found.only_candidate) == (
        len(one & other),
        len(one - other),
        len(other - one),
    )
    if one & other:
        assert only(found).paired.count == len(one & other)
        assert only(found).paired.difference == 1.0


def test_no_row_in_common_is_nothing_to_compare() -> None:
    found = compare(run_of({1: 1.0}), run_of({2: 1.0}))
    assert (found.rows, found.metrics) == (0, ())
    with pytest.raises(InvalidInput, match="metric: must be a metric of both runs: none"):
        found.metric("exact")


def test_a_check_names_the_metrics_that_are_worse_by_more_than_the_margin() -> None:
    found = compare(listed([1.0] * 20), listed([0.5, 0.6] * 10))
    check = found.check_not_worse()
    assert (check.passed, [one.metric for one in check.regressions]) == (False, list(found.metrics))
    assert found.check_not_worse(margin=0.6).passed
    assert compare(listed([0.5, 0.6] * 10), listed([1.0] * 20)).check_not_worse().passed


def test_a_check_without_rows_to_compare_does_not_pass() -> None:
    check = compare(run_of({1: 1.0}), run_of({2: 1.0})).check_not_worse()
    assert (check.passed, check.not_compared) == (False, ("no metric has a value in both runs",))


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=30))
def test_the_paired_difference_agrees_with_the_library(pairs: list[tuple[float, float]]) -> None:
    found = compared([a for a, _ in pairs], [b for _, b in pairs])
    differences = [b - a for a, b in pairs]
    assert found.paired.difference == pytest.approx(sum(differences) / len(pairs), abs=1e-12)
    assert (found.paired.wins, found.paired.losses) == (
        sum(d > 0 for d in differences),
        sum(d < 0 for d in differences),
    )
    assert (found.baseline, found.candidate) == pytest.approx(
        (sum(a for a, _ in pairs) / len(pairs), sum(b for _, b in pairs) / len(pairs))
    )
    if math.sqrt(sum((d - found.paired.difference) ** 2 for d in differences)) > 1e-3:  # type: ignore[operator]
        expected = scipy.stats.ttest_1samp(differences, 0)
        assert found.paired.interval is not None
        assert -1 <= found.paired.interval.low <= found.paired.difference <= found.paired.interval.high <= 1  # type: ignore[operator]
        if any(value not in (0, 1) for pair in pairs for value in pair):
            assert found.paired.p == pytest.approx(expected.pvalue, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("as_number", [bool, int, float])
def test_pass_or_fail_scores_are_compared_by_the_exact_mcnemar_test(as_number: Any) -> None:
    """5 wins and 1 loss: 2 x (1 + 6) / 64. 1.0 and 0.0 say no more than bools do."""
    pairs = [(0, 1)] * 5 + [(1, 0)] + [(1, 1)] * 4
    found = compared([as_number(a) for a, _ in pairs], [as_number(b) for _, b in pairs])
    assert found.paired.p == pytest.approx(14 / 64)
    assert (found.paired.wins, found.paired.ties, found.paired.losses) == (5, 4, 1)
    assert found.paired.difference == pytest.approx(0.4)


def test_equal_differences_are_compared_by_their_signs() -> None:
    """Three rows that all gain 0.25 prove nothing: 2 / 8; the t-test would have given p = 0."""
    found = compared([0.25, 0.5, 0.5], [0.5, 0.75, 0.75])
    assert found.paired.p == pytest.approx(0.25)
    assert found.verdict is Verdict.NO_DIFFERENCE
    assert compared([0.1, 0.2, 0.3], [0.2, 0.3, 0.4]).paired.p == pytest.approx(0.25)


def test_trials_are_reduced_before_rows_are_paired() -> None:
    one = [scored({"n": 1}, {SCORER: value}, trial) for trial, value in enumerate([0.0, 1.0])]
    other = [scored({"n": 1}, {SCORER: 0.75})]
    assert only(compare(one, other)).paired.difference == 0.25
    assert only(compare(one, other, reducer="max")).paired.difference == -0.25


# ---- verdicts


def test_a_difference_is_shown_only_where_the_interval_leaves_out_0() -> None:
    base = [0.5] * 20
    better = [0.5 + (0.1 if n % 3 else 0.05) for n in range(20)]
    assert compared(base, better).verdict is Verdict.BETTER
    assert compared(better, base).verdict is Verdict.WORSE
    noise = [0.5 + (0.2 if n % 2 else -0.19) for n in range(20)]
    assert compared(base, noise).verdict is Verdict.NO_DIFFERENCE
    assert compared([0.1], [0.9]).verdict is Verdict.NO_DIFFERENCE
    assert compared(base, base).verdict is Verdict.NO_DIFFERENCE


def test_an_interval_without_0_is_not_enough_where_the_exact_test_disagrees() -> None:
    """Five wins and no loss of five: 2 / 32 = 0.0625, though Student's interval is the point 1."""
    found = compared([False] * 5, [True] * 5)
    assert found.paired.interval is not None
    assert 0 not in found.paired.interval
    assert found.verdict is Verdict.NO_DIFFERENCE
    assert compared([False] * 6, [True] * 6).verdict is Verdict.BETTER


def test_several_metrics_are_corrected_by_holm() -> None:
    """p = 2 / 64 = 0.031 alone is shown; next to another metric it is doubled, and is not."""
    before = sorted(
        (scored({"n": n}, {SCORER: {"a": False, "b": True}}) for n in range(6)), key=lambda j: j[0].row_digest
    )
    after = sorted(
        (scored({"n": n}, {SCORER: {"a": True, "b": True}}) for n in range(6)), key=lambda j: j[0].row_digest
    )
    found = compare(before, after)
    a = found.metric("exact.a")
    assert (a.paired.p, a.corrected) == (pytest.approx(2 / 64), pytest.approx(4 / 64))
    assert a.verdict is Verdict.NO_DIFFERENCE
    assert compared([False] * 6, [True] * 6).corrected == pytest.approx(2 / 64)


def test_the_advice_on_the_number_of_rows_by_hand() -> None:
    """(1.959964 + 0.841621)^2 x (0.5 / 0.1)^2 = 196.2 rows for a difference of 0.1 that spreads by 0.5."""
    spread = 0.5 * math.sqrt(3 / 4)
    assert rows_needed([0.1 + spread, 0.1 + spread, 0.1 - spread, 0.1 - spread], 0.95) == 197
    assert rows_needed([0.0, 0.0], 0.95) is None
    assert rows_needed([0.3], 0.95) is None


def test_clusters_widen_the_interval_by_hand() -> None:
    """Differences 1, 1, 2, 4 on two texts: error 1, mean 2, Student's t with one degree of freedom."""
    rows = [("a", 1.0), ("a", 1.5), ("b", 2.0), ("b", 4.5)]
    before = [scored({"n": n, "text": text}, {SCORER: 0.5}) for n, (text, _) in enumerate(rows)]
    after = [scored({"n": n, "text": text}, {SCORER: value + 0.5}) for n, (text, value) in enumerate(rows)]
    order = [sorted(side, key=lambda one: one[0].row_digest) for side in (before, after)]
    found = only(compare(*order, cluster_by="text"))
    residuals = [2.5 - 4.5, 6.5 - 4.5]
    error = math.sqrt(2 * sum(r * r for r in residuals)) / 4
    assert found.paired.interval is not None
    assert found.paired.interval.high == pytest.approx(2.25 + scipy.stats.t.ppf(0.975, 1) * error)
    assert found.paired.p == pytest.approx(2 * scipy.stats.t.sf(2.25 / error, 1))


# ---- what is missing


def test_rows_without_a_value_are_counted_on_the_side_that_lacks_it() -> None:
    found = compare(
        listed([True, True, None, FAILED, None]),
        listed([True, FAILED, True, True, FAILED]),
    )
    metric = only(found)
    assert (metric.paired.count, metric.only_baseline, metric.only_candidate, metric.neither) == (1, 1, 2, 1)
    assert (found.baseline_failed, found.candidate_failed) == (1, 2)
    assert {note.detail for note in found.failures} == {"baseline: down", "candidate: down"}


def test_a_candidate_that_fails_where_it_would_lose_does_not_get_away_with_it() -> None:
    found = compared([True] * 20, [True] * 10 + [FAILED] * 10)
    assert (found.paired.difference, found.verdict) == (0.0, Verdict.NO_DIFFERENCE)
    assert found.all_rows.difference == -0.5
    assert found.worse_by(0.0) is found.all_rows
    assert found.worse_by(0.5) is None


def test_better_where_it_answers_is_not_better_where_it_fails_on_most() -> None:
    base = [True] * 30 + [False] * 10
    found = compared(base, [FAILED] * 30 + [True] * 10)
    assert (found.paired.difference, found.verdict) == (1.0, Verdict.UNCLEAR)
    assert compared([FAILED] * 30 + [True] * 10, base).verdict is Verdict.UNCLEAR
    assert compared(base, [FAILED] * 2 + [True] * 38).verdict is Verdict.BETTER


def test_lost_rows_are_listed_with_the_reason_the_highest_first() -> None:
    found = compared([0.5, 0.9, 0.1, 0.2], [FAILED, math.nan, None, 0.2])
    assert [(note.baseline, note.candidate) for note in found.lost] == [(0.9, None), (0.5, None), (0.1, None)]
    assert [note.detail for note in found.lost] == ["the score is nan", "down", "the scorer gave no score"]


def test_over_all_rows_a_missing_value_counts_as_the_lowest_of_both_runs() -> None:
    found = compared([-3.0, 1.0, 1.0], [-1.0, 1.0, None])
    assert found.all_rows.difference == pytest.approx((2 + 0 - 4) / 3)
    assert compared([3.0, 1.0, 1.0], [1.0, 1.0, None]).all_rows.difference == pytest.approx(-1)


def test_metrics_of_one_run_and_texts_are_not_compared_and_say_why() -> None:
    before = sorted(
        (scored({"n": n}, {"old": 1, "text": "a", "mixed": True}) for n in range(2)), key=lambda j: j[0].row_digest
    )
    after = sorted(
        (scored({"n": n}, {"new": 1, "text": "b", "mixed": 0.5}) for n in range(2)), key=lambda j: j[0].row_digest
    )
    found = compare(before, after)
    assert [(one.name, one.kind, one.baseline, one.candidate) for one in found.metrics] == [
        ("mixed", MetricKind.CONTINUOUS, 1.0, 0.5)
    ]
    assert found.uncompared == {
        "new": "only the candidate has values of it",
        "old": "only the baseline has values of it",
        "text": "it is not a number",
    }
    with pytest.raises(InvalidInput, match="only the baseline has values of it"):
        found.metric("old")


def test_versions_of_one_scorer_are_not_compared_with_each_other() -> None:
    found = compare(run_of({1: True}), run_of({1: False}, SCORER.replace("v1", "v2")))
    assert found.metrics == ()
    assert list(found.uncompared) == ["acme/red/exact:v1", "acme/red/exact:v2"]


# ---- rows to look at


def test_the_rows_that_lose_most_come_first() -> None:
    found = compared([0.5, 0.5, 0.5, 0.5, 0.5], [0.4, 0.1, 0.5, 0.9, 0.6], keep=1)
    assert [(row.digest, row.baseline, row.candidate) for row in found.worst] == [(digest({"n": 1}), 0.5, 0.1)]
    assert [row.digest for row in found.best] == [digest({"n": 3})]


def test_the_distribution_is_that_of_the_differences() -> None:
    found = compared([0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 1.0, 0.0])
    assert found.distribution is not None
    bars = dict(zip(found.distribution.centres, found.distribution.counts, strict=True))
    assert {centre: count for centre, count in bars.items() if count} == pytest.approx({-1: 1, 0: 2, 1: 1})


def test_a_comparison_is_shown_by_its_verdicts() -> None:
    found = compare(listed([0.0] * 10), listed([1.0] * 10))
    assert repr(found) == "<Comparison of 10 rows: exact better>"
    assert repr(compare([], [])) == "<Comparison of 0 rows: nothing to compare>"


# ---- direction


@given(st.lists(st.tuples(st.integers(2, 9), st.integers(2, 9)), min_size=1, max_size=30))
def test_where_lower_is_better_the_comparison_is_that_of_the_negated_values(pairs: list[tuple[int, int]]) -> None:
    before, after = [float(a) for a, _ in pairs], [float(b) for _, b in pairs]
    lower = compared(before, after, lower_is_better=["exact"])
    negated = compared([-a for a in before], [-b for b in after])
    assert (lower.verdict, lower.corrected) == (negated.verdict, negated.corrected)
    assert (lower.paired.wins, lower.paired.losses) == (negated.paired.wins, negated.paired.losses)
    assert lower.paired.difference == -(negated.paired.difference or 0.0)
    assert bool(lower.worse_by(0.5)) is bool(negated.worse_by(0.5))
    changes = [[(note.inputs, note.baseline, note.candidate) for note in which] for which in (lower.worst, lower.best)]
    assert changes == [
        [(note.inputs, -(note.baseline or 0), -(note.candidate or 0)) for note in which]
        for which in (negated.worst, negated.best)
    ]


def test_a_metric_of_which_lower_is_better_is_named_by_itself_its_scorer_or_its_version() -> None:
    before, after = (
        [{"words": float(n), "ok": 1.0} for n in range(10)],
        [{"words": n / 2, "ok": 1.0} for n in range(10)],
    )
    for name in ("exact", "exact.words", "acme/red/exact:v1.words"):
        found = compare(listed(before), listed(after), lower_is_better=name)
        assert found.metric("exact.words").verdict is Verdict.BETTER
    assert compare(listed(before), listed(after)).metric("exact.words").verdict is Verdict.WORSE
    for one in (
        lambda **options: compare(listed(before), listed(after), **options),
        lambda **o: aggregate(listed(after), **o),
    ):
        with pytest.raises(InvalidInput, match=r"'word' must be one of the metrics: exact\.ok, exact\.words"):
            one(lower_is_better=["word"])


def test_where_lower_is_better_a_missing_value_counts_as_the_highest() -> None:
    candidate = [1.0, 2.0, None, None]
    found = compared([7.0, 7.0, 5.0, 5.0], candidate, lower_is_better=["exact"])
    assert found.all_rows.difference == (1 + 2 + 7 + 7 - 24) / 4
    assert [note.baseline for note in found.lost] == [5.0, 5.0]
    (summary,) = aggregate(listed(candidate), lower_is_better="exact").metrics
    assert (summary.mean, summary.pessimistic) == (1.5, 7 / 4)
    assert [note.value for note in summary.worst] == [2.0, 1.0]
    (toxic,) = aggregate(listed([True, False, None, None]), lower_is_better="exact").metrics
    assert toxic.pessimistic == 0.75
