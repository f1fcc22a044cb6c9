"""The aggregates of a run, against values worked out by hand or by scipy."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.canonical import MAX_TEXT, digest
from modelyard.domain.evaluation.aggregate import MAX_METRICS, MAX_TEXTS, OTHERS, Aggregate, MetricSummary, aggregate
from modelyard.domain.evaluation.metrics import (
    Metric,
    MetricKind,
    ScoredPrediction,
    leaves,
    metric_names,
    readings,
    reducer_of,
    rows,
)
from modelyard.domain.evaluation.pairing import compare
from modelyard.domain.evaluation.run import Prediction, Score
from modelyard.errors import InvalidInput

NOW = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
MODEL = "weave:///acme/red/object/support:step3"
SCORER = "weave:///acme/red/object/exact:v1"
JUDGE = "weave:///acme/red/object/judge:v1"
NOTHING: Any = object()


def prediction(row: Mapping[str, Any], trial: int = 0, **fields: Any) -> Prediction:
    fields = {"output": {"value": "answer"}, "run_id": "run", "trial": trial, **fields}
    return Prediction(f"p-{digest(row)}-{trial}", "acme", "red", MODEL, row, digest(row), NOW, **fields)


def score(value: Any = NOTHING, scorer: str = SCORER, **fields: Any) -> Score:
    kept = {} if value is NOTHING else {"value": value}
    return Score(f"s-{scorer}-{value!r}", "acme", "red", "p", scorer, NOW, value=kept, **fields)


def run_of(judged: Iterable[tuple[Prediction, Sequence[Score]]]) -> list[ScoredPrediction]:
    return sorted(judged, key=lambda one: (one[0].row_digest, one[0].trial))


def run_with(values: Iterable[Any], **row: Any) -> list[ScoredPrediction]:
    """A row for each value; `NOTHING` is a row without any score."""
    return run_of(
        (prediction({"n": n, **row}), [] if value is NOTHING else [score(value)]) for n, value in enumerate(values)
    )


def only(found: Aggregate) -> MetricSummary:
    (summary,) = found.metrics
    return summary


# ---- counts


def test_equal_rows_are_counted_as_trials_and_the_report_counts_them() -> None:
    rows = [(0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0)]
    found = aggregate(run_of((prediction({"n": n}, trial), [score(1.0)]) for n, trial in rows))
    assert (found.rows, found.trials, found.equal_rows) == (2, 7, 2)


values = st.one_of(
    st.booleans(),
    st.integers(-5, 5),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=3),
    st.none(),
    st.just([1]),
    st.dictionaries(st.sampled_from("ab"), st.booleans() | st.none() | st.floats(0, 1), max_size=2),
)
trials = st.one_of(
    st.just("model error"), st.just("scorer error"), st.just("no score"), st.tuples(st.just("scored"), values)
)


@given(st.lists(st.lists(trials, min_size=1, max_size=3), max_size=8))
def test_the_counts_of_every_metric_add_up_to_the_trials(run: list[list[Any]]) -> None:
    judged: list[ScoredPrediction] = []
    for n, row in enumerate(run):
        for trial, what in enumerate(row):
            error = "down" if what == "model error" else None
            given_score = [score(what[1])] if isinstance(what, tuple) else []
            failed = [score(error="broke")] if what == "scorer error" else []
            judged.append((prediction({"n": n}, trial, error=error), given_score + failed))
    found = aggregate(run_of(judged))
    assert found.trials == len(judged)
    assert found.model_errors == sum(row.count("model error") for row in run)
    for summary in found.metrics:
        assert summary.trials == found.trials
        assert min(summary.scored, summary.unscored, summary.scorer_errors, summary.model_errors) >= 0
        assert sum(summary.reasons.values()) == summary.unscored
        assert summary.scorer_errors == sum(row.count("scorer error") for row in run)
        assert sum(summary.texts.values()) == (summary.scored if summary.kind is MetricKind.TEXT else 0)
        if summary.numbers is not None and summary.distribution is not None:
            assert sum(summary.distribution.counts) == summary.numbers.count


def test_each_trial_without_a_value_says_why() -> None:
    found = only(aggregate(run_with([1.0, math.nan, math.inf, None, [1], {}, 1e200, NOTHING, "high"])))
    assert (found.scored, found.unscored) == (1, 8)
    assert found.reasons == {
        "the scorer gave no score": 1,
        "the score is nan": 1,
        "the score is inf": 1,
        "the score is beyond 1e+150": 1,
        "a list is not a score": 1,
        "an empty object is not a score": 1,
        "there is no score": 1,
        "text, where most values are continuous": 1,
    }


def test_a_null_with_a_reason_is_unscored_and_not_an_error() -> None:
    judged = [(prediction({}), [score(None, error="the score is nan")])]
    found = only(aggregate(judged))
    assert (found.unscored, found.scorer_errors, found.reasons) == (1, 0, {"the score is nan": 1})


def test_a_scorer_that_always_fails_is_a_metric_without_a_value() -> None:
    found = aggregate([(prediction({}), [score(error="KeyError: 'expected'")])])
    summary = only(found)
    assert (summary.name, summary.kind, summary.mean, summary.scorer_errors) == ("exact", None, None, 1)
    assert [note.detail for note in found.failures] == ["exact: KeyError: 'expected'"]


def test_nothing_that_a_scorer_said_of_a_failed_model_counts() -> None:
    found = aggregate([(prediction({}, error="timed out", output={}), [score(True)])])
    assert (found.metrics, found.model_errors, found.failed) == ((), 1, 1)
    assert found.failures[0].detail == "model: timed out"


def test_an_empty_run_has_no_metric() -> None:
    found = aggregate([])
    assert (found.rows, found.trials, found.metrics, found.latency, found.usage, found.cost) == (
        0,
        0,
        (),
        None,
        (),
        None,
    )


# ---- metrics


def test_nested_objects_are_metrics_by_their_path() -> None:
    value = {"tone": True, "facts": {"found": 2, "list": [1]}}
    assert dict(leaves(value)) == {("tone",): True, ("facts", "found"): 2, ("facts", "list"): [1]}
    found = aggregate([(prediction({}), [score(value)])])
    assert {summary.name: summary.kind for summary in found.metrics} == {
        "exact.facts.found": MetricKind.CONTINUOUS,
        "exact.facts.list": None,
        "exact.tone": MetricKind.BINARY,
    }


def test_a_null_in_place_of_an_object_makes_no_metric() -> None:
    found = only(aggregate(run_with([{"tone": True}, None])))
    assert (found.name, found.scored, found.reasons) == ("exact.tone", 1, {"the scorer gave no score": 1})


def test_two_versions_of_one_scorer_do_not_overwrite_each_other() -> None:
    newer = SCORER.replace("v1", "v2")
    found = aggregate([(prediction({}), [score(True), score(False, newer)])])
    assert {summary.name: summary.mean for summary in found.metrics} == {
        "acme/red/exact:v1": 1.0,
        "acme/red/exact:v2": 0.0,
    }


def test_both_schemes_name_the_same_scorer_and_the_last_score_counts() -> None:
    again = score(False, SCORER.replace("weave", "modelyard"))
    assert [reading.value for reading in readings([score(True), again])] == [False]


def test_a_name_is_as_long_as_it_must_be() -> None:
    a, b = Metric(SCORER, ("tone",)), Metric(JUDGE, ("tone",))
    assert list(metric_names([a, b]).values()) == ["exact.tone", "judge.tone"]
    assert metric_names([Metric("my scorer")]) == {Metric("my scorer"): "my scorer"}


def test_metrics_without_end_are_counted_and_left_out() -> None:
    many = {f"leaf{n}": True for n in range(MAX_METRICS + 7)}
    found = aggregate([(prediction({}), [score(many)])])
    assert (len(found.metrics), found.omitted) == (MAX_METRICS, 7)


# ---- numbers


@pytest.mark.slow
def test_a_bool_has_a_rate_with_wilson_s_interval() -> None:
    found = only(aggregate(run_with([True] * 8 + [False] * 2)))
    expected = scipy.stats.binomtest(8, 10).proportion_ci(0.95, method="wilson")
    assert found.kind is MetricKind.BINARY
    assert found.mean == 0.8
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.slow
def test_a_number_has_mean_spread_and_student_s_interval() -> None:
    given_values = [0.1, 0.4, 0.7, 1, 3]
    found = only(aggregate(run_with(given_values), confidence=0.9))
    expected = scipy.stats.ttest_1samp(given_values, 0).confidence_interval(0.9)
    assert found.numbers is not None
    assert (found.numbers.mean, found.numbers.median) == pytest.approx((1.04, 0.7))
    assert found.numbers.deviation == pytest.approx(math.sqrt(scipy.stats.tvar(given_values)))
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((expected.low, expected.high))


def test_one_number_has_no_spread() -> None:
    found = only(aggregate(run_with([0.5])))
    assert found.numbers is not None
    assert (found.mean, found.numbers.deviation, found.numbers.error, found.interval) == (0.5, None, None, None)


def test_a_bool_beside_a_number_is_0_or_1() -> None:
    found = only(aggregate(run_with([True, True, False, 1, 0.5])))
    assert (found.kind, found.scored, found.mean) == (MetricKind.CONTINUOUS, 5, pytest.approx(3.5 / 5))
    assert found.reasons == {}


def test_texts_are_counted_the_most_frequent_first() -> None:
    found = only(aggregate(run_with(["bad", "good", "good"])))
    assert list(found.texts.items()) == [("good", 2), ("bad", 1)]
    assert (found.mean, found.pessimistic) == (None, None)


def test_texts_without_end_need_no_more_room() -> None:
    found = only(aggregate(run_with(f"text {n}" for n in range(MAX_TEXTS + 5))))
    assert (len(found.texts), found.texts[OTHERS], found.scored) == (MAX_TEXTS + 1, 5, MAX_TEXTS + 5)


def test_the_headline_is_over_what_is_scored_and_the_pessimistic_mean_over_everything() -> None:
    judged = run_with([True, True, None, NOTHING])
    failed = [(prediction({"n": 9}, error="down"), [])]
    found = only(aggregate(run_of([*judged, *failed])))
    assert (found.mean, found.pessimistic) == (1.0, pytest.approx(2 / 5))


def test_what_is_missing_counts_as_the_lowest_value_where_that_is_below_zero() -> None:
    assert only(aggregate(run_with([-4.0, 2.0, None]))).pessimistic == pytest.approx(-2.0)
    assert only(aggregate(run_with([4.0, 2.0, None]))).pessimistic == pytest.approx(2.0)


# ---- trials


def with_trials(*rows_: Sequence[Any]) -> list[ScoredPrediction]:
    return run_of(
        (prediction({"n": n}, trial), [] if value is NOTHING else [score(value)])
        for n, row in enumerate(rows_)
        for trial, value in enumerate(row)
    )


@each_case(
    ("reducer", "expected"), [("mean", (1.0 + 3.0 + 0.5) / 3), ("min", 1.5 / 3), ("max", 7.5 / 3), ("median", 4.5 / 3)]
)
def test_trials_are_reduced_within_their_row_first(reducer: str, expected: float) -> None:
    found = only(aggregate(with_trials([0.0, 2.0], [1.0, 5.0], [0.5]), reducer=reducer))
    assert found.mean == pytest.approx(expected)
    assert (found.trials, found.scored) == (5, 5)
    assert found.numbers is not None
    assert found.numbers.count == 3


@pytest.mark.slow
def test_passed_in_some_trial_and_passed_in_every_one_are_rates() -> None:
    judged = with_trials([True, False], [True, True], [False, False])
    some, every = only(aggregate(judged, reducer="max")), only(aggregate(judged, reducer="min"))
    assert (some.mean, every.mean) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    expected = scipy.stats.binomtest(2, 3).proportion_ci(0.95, method="wilson")
    assert some.interval is not None
    assert (some.interval.low, some.interval.high) == pytest.approx((expected.low, expected.high))


def wilson_bounds(rate: float, count: float, quantile: float) -> tuple[float, float]:
    """Where the squared distance from the rate is that quantile's, by the roots of Wilson's equation."""
    square = quantile**2 / count
    low, high = sorted(np.roots([1 + square, -(2 * rate + square), rate**2]))
    return low, high


@pytest.mark.slow
def test_the_rate_of_trials_has_wilson_s_interval_of_as_many_values_as_its_error_says() -> None:
    """Rows of 1/2, 1 and 0: a variance of 1/4 / 3 where single values had 1/4 / 2, so 3 rows are worth 4.5."""
    found = only(aggregate(with_trials([True, False], [True, True], [False, False])))
    assert found.interval is not None
    expected = wilson_bounds(0.5, 4.5, scipy.stats.t.ppf(0.975, 2))
    assert (found.interval.low, found.interval.high) == pytest.approx(expected)


@pytest.mark.slow
def test_trials_that_agree_say_no_more_than_one_of_them() -> None:
    once, thrice = (only(aggregate(with_trials(*[[n > 0] * times for n in range(5)]))).interval for times in (1, 3))
    assert once == thrice
    expected = scipy.stats.binomtest(4, 5).proportion_ci(0.95, method="wilson")
    assert once is not None
    assert (once.low, once.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.slow
@pytest.mark.parametrize(("clusters", "count"), [([0, 0, 1, 1], 2), ([0, 1, 2, 2], 3)])
def test_clusters_that_all_pass_have_the_interval_of_so_many_values(clusters: list[int], count: int) -> None:
    judged = run_of((prediction({"n": n, "text": text}), [score(True)]) for n, text in enumerate(clusters))
    found = only(aggregate(judged, cluster_by="text"))
    expected = scipy.stats.binomtest(count, count).proportion_ci(0.95, method="wilson")
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((expected.low, expected.high))


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=3), min_size=2, max_size=8), st.booleans())
def test_no_interval_of_a_rate_leaves_0_to_1(run: list[list[bool]], clustered: bool) -> None:
    judged = run_of(
        (prediction({"n": n, "text": n % 2}, trial), [score(value)])
        for n, row in enumerate(run)
        for trial, value in enumerate(row)
    )
    found = only(aggregate(judged, cluster_by="text" if clustered else None))
    assert found.interval is not None
    assert found.mean is not None
    assert 0 <= found.interval.low <= found.mean <= found.interval.high <= 1


def test_a_missing_trial_is_left_out_of_its_row_and_pessimistically_counted_in_it() -> None:
    found = only(aggregate(with_trials([True, NOTHING], [True, True])))
    assert (found.mean, found.pessimistic) == (1.0, 0.75)


@each_case("name", ["mode", "pass@0", "pass@", "pass@-1", "pass@1.5", "xpass@2", "pass@10000", 5])
def test_an_unknown_reducer_is_refused(name: Any) -> None:
    with pytest.raises(InvalidInput, match=r"reducer: must be one of mean, median, min, max, pass@k"):
        aggregate([], reducer=name)


def test_a_misspelt_reducer_is_told_the_nearest() -> None:
    with pytest.raises(InvalidInput, match=r"; did you mean 'median' or 'mean'\?$"):
        aggregate([], reducer="medain")


@given(st.lists(st.booleans() | st.integers(-3, 3), min_size=1, max_size=6), st.integers(1, 8))
def test_pass_at_k_is_the_mean_of_the_best_over_all_draws_and_pass_to_the_k_of_the_worst(
    values: list[float], count: int
) -> None:
    draws = list(combinations(values, min(count, len(values))))
    for name, extreme in ((f"pass@{count}", max), (f"pass^{count}", min)):
        expected = sum(map(extreme, draws)) / len(draws)
        assert reducer_of(name)(values) == pytest.approx(expected)


def test_pass_at_k_of_bools_is_the_usual_estimate() -> None:
    judged = with_trials([True, False, False, False], [False] * 4)
    found = only(aggregate(judged, reducer="pass@2"))
    assert found.mean == pytest.approx((1 - comb(3, 2) / comb(4, 2)) / 2)


@pytest.mark.parametrize("reducer", ["pass@3", "pass^3"])
def test_more_trials_than_a_row_has_are_refused(reducer: str) -> None:
    said = re.escape(f"reducer: {reducer} draws 3 trials of each row, and a row has 2")
    short, long = with_trials([True, False, True], [True, NOTHING]), with_trials([True] * 3, [True] * 3)
    with pytest.raises(InvalidInput, match=said):
        aggregate(short, reducer=reducer)
    for one, other in ((short, long), (long, short)):
        with pytest.raises(InvalidInput, match=said):
            compare(one, other, reducer=reducer)
    with pytest.raises(InvalidInput, match="and a row has 1"):
        compare(run_with([1.0] * 300), run_with([1.0] * 300), reducer=reducer)
    assert only(aggregate(long, reducer=reducer)).mean == 1.0


def test_rows_out_of_order_are_refused_rather_than_counted_twice() -> None:
    judged = run_with([1.0, 2.0])
    with pytest.raises(ValueError, match="order of the row digests"):
        aggregate(reversed(judged))
    assert [row.digest for row in rows(judged)] == sorted(one.row_digest for one, _ in judged)


# ---- clusters


def test_clustered_errors_by_hand() -> None:
    """Two texts with residual sums -2 and 2: sqrt(2 / 1 x 8) / 4 = 1, and Student's t with one degree of freedom."""
    judged = run_of(
        (prediction({"n": n, "text": text}), [score(value)])
        for n, (text, value) in enumerate([("a", 1), ("a", 1), ("b", 2), ("b", 4)])
    )
    found = only(aggregate(judged, cluster_by="text"))
    assert found.numbers is not None
    assert found.numbers.error == pytest.approx(1.0)
    assert found.interval is not None
    assert found.interval.high - 2 == pytest.approx(scipy.stats.t.ppf(0.975, 1))


def test_a_row_without_the_key_of_its_cluster_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"cluster_by: the row .* has no input 'text'"):
        aggregate(run_with([1]), cluster_by="text")


# ---- rows to look at


def test_the_worst_rows_come_first_up_to_the_requested_number() -> None:
    found = only(aggregate(run_with([3, 1, 2, 0]), keep=2))
    assert [note.value for note in found.worst] == [0, 1]
    assert found.worst[0].digest == digest({"n": 3})
    assert (found.worst[0].inputs, found.worst[0].output) == ("n: 3", "answer")


def test_what_is_kept_of_a_row_is_short() -> None:
    judged = [(prediction({"text": "x" * 10**6}, output={"value": "y" * 10**6}), [score(False)])]
    (note,) = only(aggregate(judged)).worst
    assert len(note.inputs) == len(note.output) == MAX_TEXT
    assert note.output.endswith("y…")


# ---- time and money


def test_latency_is_of_the_answers_that_say_it() -> None:
    judged = run_of(
        [
            *((prediction({"n": n}, latency=float(n)), []) for n in range(1, 11)),
            (prediction({"n": 11}), []),
            (prediction({"n": 12}, latency=60.0, error="timed out"), []),
            (prediction({"n": 13}, latency=0.0, copied_from="p-0"), []),
        ]
    )
    found = aggregate(judged).latency
    assert found is not None
    assert (found.count, found.mean, found.p50, found.inherited) == (11, 5.0, 5.0, 1)
    assert found.p95 == pytest.approx(9.5)


def test_usage_is_summed_exactly_by_model_and_by_role_and_null_when_nothing_was_reported() -> None:
    tenth = Decimal("0.1")
    judged = run_of(
        [
            *(
                (prediction({"n": n}, prompt_tokens=2, cost=tenth), [score(1, JUDGE, judge_cost=tenth)])
                for n in range(3)
            ),
            (prediction({"n": 3}, prompt_tokens=7, cost=tenth, copied_from="p-0"), [score(1)]),
        ]
    )
    found = aggregate(judged)
    assert [(one.role, one.name, one.inherited, one.calls, one.prompt_tokens, one.cost) for one in found.usage] == [
        ("model", MODEL, False, 3, 6, Decimal("0.3")),
        ("model", MODEL, True, 1, 7, Decimal("0.1")),
        ("judge", JUDGE, False, 3, None, Decimal("0.3")),
    ]
    assert found.usage[0].completion_tokens is None
    assert found.cost == Decimal("0.6")
    (free,) = aggregate([(prediction({}), [])]).usage
    assert (free.calls, free.prompt_tokens, free.cost) == (1, None, None)


# ---- compared with a plain one


@pytest.mark.slow
@given(st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=4), min_size=2, max_size=12))
def test_the_mean_over_rows_is_that_of_a_plain_reckoning(run: list[list[float]]) -> None:
    found = only(aggregate(with_trials(*run)))
    plain = sum(sum(row) / len(row) for row in run) / len(run)
    assert found.mean == pytest.approx(plain, abs=1e-9)
    assert found.pessimistic == pytest.approx(plain, abs=1e-9)
    assert found.scored == sum(len(row) for row in run)
