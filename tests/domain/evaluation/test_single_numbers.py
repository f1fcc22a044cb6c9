"""Rows with one number each take a short way, which comes to the same as the general one; so does a run's summary."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation import aggregate as aggregating
from modelyard.domain.evaluation import number_rows_fast, pairing
from modelyard.domain.evaluation.aggregate import aggregate, aggregate_means, run_summary
from modelyard.domain.evaluation.comparison import Comparison
from modelyard.domain.evaluation.metrics import ScoredPrediction
from modelyard.domain.evaluation.pairing import compare
from modelyard.domain.evaluation.run import Prediction, Score

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCORERS = ("weave:///local/p/object/tone:v0", "wandb-artifact:///local/p/tone:v0", "weave:///local/p/object/facts:v0")

values = st.sampled_from(
    [0.0, 0.5, 1, 3, True, False, None, "text", float("nan"), 1e200, 2**60, 2**60 + 1, 2.0**60, -3, [1], {"a": 0.5}, {}]
)
scores = st.tuples(st.sampled_from(SCORERS), st.sampled_from([0.25, 0.5, 1.0]) | values)
trials = st.tuples(st.sampled_from([None, None, None, "failed"]), st.lists(scores, min_size=0, max_size=2))
rows = st.lists(trials, min_size=1, max_size=2)
runs = st.dictionaries(st.integers(0, 6), rows, max_size=6)


def scored(run_id: str, given: dict[int, list[Any]]) -> list[ScoredPrediction]:
    """The predictions of a run with their scores, in the order of the row digests."""
    found: list[ScoredPrediction] = []
    for number, of_row in given.items():
        key = digest({"number": number})
        for trial, (error, made) in enumerate(of_row):
            id = f"{run_id}-{number}-{trial}"
            prediction = Prediction(
                id, "local", "p", "m", {"number": number}, key, NOW, run_id, number, trial, error=error
            )
            found.append(
                (
                    prediction,
                    [
                        Score(f"{id}-{at}", "local", "p", id, scorer, NOW, run_id, {"value": value}, row_digest=key)
                        for at, (scorer, value) in enumerate(made)
                    ],
                )
            )
    return sorted(found, key=lambda one: (one[0].row_digest, one[0].trial))


def compared(baseline: Any, candidate: Any, **options: Any) -> Comparison:
    return compare(scored("a", baseline), scored("b", candidate), **options)


@pytest.mark.slow
@given(runs, runs, st.integers(1, 8), st.integers(1, 8), st.booleans())
def test_the_short_way_comes_to_the_same_as_the_general_one(
    baseline: Any, candidate: Any, page: int, many: int, clustered: bool
) -> None:
    options: Any = {"cluster_by": "number"} if clustered else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(number_rows_fast, "_PAGE", page)
        patch.setattr(number_rows_fast, "MANY", many)
        patch.setattr(number_rows_fast, "_FEW", 1)
        short = [compared(baseline, candidate, keep=keep, **options) for keep in (0, 1, 100)]
        patch.setattr(number_rows_fast, "_number_rows", lambda *page: None)
        general = [compared(baseline, candidate, keep=keep, **options) for keep in (0, 1, 100)]
    assert [repr((one, one.metrics)) for one in short] == [repr((one, one.metrics)) for one in general]
    assert [one.rows for one in short] == [len(baseline.keys() & candidate.keys())] * 3


def test_rows_with_one_number_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[object] = []
    monkeypatch.setattr(pairing._Pairing, "_take", lambda self, pair: taken.append(pair))
    run: dict[int, Any] = {number: [(None, [(SCORERS[0], number / 7)])] for number in range(500)}
    run[250] = [("failed", [])]
    assert compared(run, run).rows == 500
    assert len(taken) < 2 + number_rows_fast._FEW + 1  # the ends of the page, and those around the row that failed


def test_a_row_that_one_run_lacks_leaves_the_others_on_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[object] = []
    monkeypatch.setattr(pairing._Pairing, "_take", lambda self, pair: taken.append(pair))
    run: dict[int, Any] = {number: [(None, [(SCORERS[0], number / 7)])] for number in range(500)}
    found = compared(run, {number: of_row for number, of_row in run.items() if number % 50})
    assert (found.rows, found.only_baseline) == (490, 10)
    assert len(taken) < 5


@pytest.mark.parametrize("odd", [float("nan"), 1e200, 2**60 + 1, -0.5, True, None, "text"])
def test_one_odd_value_among_many_counts_as_it_does_alone(odd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run: dict[int, Any] = {number: [(None, [(SCORERS[0], 0.5)])] for number in range(300)}
    among = sorted(run, key=lambda number: digest({"number": number}))[200]
    other = {**run, among: [(None, [(SCORERS[0], odd)])]}
    run[among] = [(None, [(SCORERS[0], 2.0**60)])]
    short = compared(run, other)
    monkeypatch.setattr(number_rows_fast, "_number_rows", lambda *page: None)
    assert repr(compared(run, other).metrics) == repr(short.metrics)


def test_rows_out_of_order_are_refused_wherever_they_are() -> None:
    run = scored("a", {number: [(None, [(SCORERS[0], number / 7)])] for number in range(300)})
    for at in (0, 1, 100, 129, 130, 298):
        swapped = [*run[:at], run[at + 1], run[at], *run[at + 2 :]]
        with pytest.raises(ValueError, match="in the order of the row digests"):
            compare(swapped, run)


@given(runs)
def test_the_short_way_aggregates_to_the_same_as_the_general_one(given: Any) -> None:
    short = aggregate(scored("a", given))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregating, "single_number", lambda row: None)
        assert repr(aggregate(scored("a", given))) == repr(short)


@given(runs)
def test_a_summary_needs_no_more_than_means(given: Any) -> None:
    scorers = {"tone": SCORERS[0], "facts": SCORERS[2]}
    whole = run_summary(aggregate(scored("a", given)), scorers)
    assert repr(run_summary(aggregate_means(scored("a", given)), scorers)) == repr(whole)
