"""A bool is 0 or 1 as soon as its metric has a number: in one run or in the other, leaf by leaf, in every view."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.evaluation.test_single_numbers import SCORERS, scored

from modelyard import Platform, open_platform
from modelyard.domain.evaluation.aggregate import aggregate
from modelyard.domain.evaluation.metrics import ScoredPrediction
from modelyard.domain.evaluation.pairing import compare
from modelyard.domain.evaluation.results import RunTotals

leaf = st.sampled_from([True, False, 0, 1, 0.5, 2.5, None, "text"])
value = leaf | st.fixed_dictionaries({"tone": leaf, "deep": st.fixed_dictionaries({"found": leaf})})
score = st.tuples(st.just(SCORERS[0]), value)
trial = st.tuples(
    st.sampled_from([None, None, None, "failed"]), st.lists(st.tuples(st.just(SCORERS[0]), value), max_size=1)
)
runs = st.dictionaries(st.integers(0, 8), st.lists(trial, min_size=1, max_size=3), max_size=8)
NUMBERS: Any = {"tone": 0.25, "deep": {"found": 0.25}}


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        yield opened


def numbered(value: Any) -> Any:
    """The same value, its bools as numbers."""
    if isinstance(value, Mapping):
        return {name: numbered(member) for name, member in value.items()}
    return float(value) if isinstance(value, bool) else value


def with_numbers(run: dict[int, Any], whole: Any = NUMBERS) -> dict[int, Any]:
    return {**run, 98: [(None, [(SCORERS[0], whole)])], 99: [(None, [(SCORERS[0], 0.25)])]}


def in_numbers(run: dict[int, Any]) -> dict[int, Any]:
    return {
        row: [(error, [(scorer, numbered(value)) for scorer, value in scores]) for error, scores in trials]
        for row, trials in run.items()
    }


def stats(found: list[ScoredPrediction]) -> list[tuple[Any, ...]]:
    totals = RunTotals("r")
    totals.note(SCORERS[:1])
    for one in found:
        totals.add(one)
    return [(one.path, one.value_type, one.numeric_count, one.numeric_mean) for one in totals.summary().stats]


@pytest.mark.slow
@given(runs, st.sampled_from(["mean", "max", "median", "min"]), st.booleans())
def test_in_a_run_with_a_number(run: dict[int, Any], reducer: str, clustered: bool) -> None:
    options: Any = {"reducer": reducer, "cluster_by": "number" if clustered else None}
    run = with_numbers(run)
    one, other = scored("a", run), scored("a", in_numbers(run))
    assert repr(aggregate(one, keep=0, **options)) == repr(aggregate(other, keep=0, **options))
    assert stats(one) == stats(other)


@pytest.mark.slow
@given(runs, runs, st.booleans())
def test_in_a_comparison_with_a_number_in_one_run(one: dict[int, Any], other: dict[int, Any], first: bool) -> None:
    """The run without the number has a bool in its place, so that both runs have the same rows."""
    false: Any = {"tone": False, "deep": {"found": False}}
    bools = {**other, 98: [(None, [(SCORERS[0], false)])], 99: [(None, [(SCORERS[0], False)])]}
    pair = (with_numbers(one), bools) if first else (bools, with_numbers(one))
    found = compare(*(scored("ab"[at], run) for at, run in enumerate(pair)), keep=0)
    wanted = compare(*(scored("ab"[at], in_numbers(run)) for at, run in enumerate(pair)), keep=0)
    assert repr((found, found.metrics, found.uncompared)) == repr((wanted, wanted.metrics, wanted.uncompared))


@pytest.mark.parametrize("wrong", [0, False, 0.0])
@pytest.mark.parametrize("right", [1, True, 1.0])
def test_six_of_ten_are_six_of_ten_however_they_are_written(platform: Platform, right: Any, wrong: Any) -> None:
    def run(good: int) -> Any:
        rows = [{"i": i} for i in range(10)]
        return platform.evaluations.run(
            "e",
            lambda row: "x",
            rows,
            {"s": lambda output, row: right if row["i"] < good else wrong},
            project="d",
            progress=False,
        )

    nine, six = run(9), run(6)
    assert six.score == pytest.approx(0.6)
    assert platform.evaluations.gate(six.run, {"s": 0.6}).passed
    assert not platform.evaluations.gate(six.run, {"s": 0.9}).passed
    assert platform.evaluations.compare(baseline=nine.run, candidate=six.run).metric("s").paired.difference < 0
    again = platform.evaluations.rescore(six.run.id, {"s": lambda output, row: right if row["i"] < 6 else wrong})
    assert again.score == pytest.approx(0.6)
    assert all(
        json.loads(line)["scores"][0]["outcome"] == "scored"
        for line in b"".join(platform.evaluations.export(six.run)).splitlines()
    )


def test_a_run_of_bools_beside_one_of_numbers_is_compared(platform: Platform) -> None:
    def run(*values: Any) -> Any:
        rows = [{"i": i} for i in range(len(values))]
        scorers = {"s": lambda output, row: values[row["i"]]}
        return platform.evaluations.run("e", lambda row: "x", rows, scorers, project="d", progress=False).run

    better, worse = run(*[True] * 20), run(*[0.0] * 20)
    with pytest.raises(AssertionError, match="the candidate is worse"):
        platform.evaluations.assert_not_worse(baseline=better, candidate=worse)
    platform.evaluations.assert_not_worse(baseline=worse, candidate=better)
