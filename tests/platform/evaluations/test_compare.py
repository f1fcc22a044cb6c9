"""Runs in numbers and compared with each other, out of a store; and what a test suite asks of them."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from modelyard import Platform, Principal, Scope, open_platform
from modelyard.domain.evaluation.comparison import Verdict
from modelyard.errors import InvalidInput, NotFound


@pytest.fixture(params=["memory", "sqlite"])
def platform(request: pytest.FixtureRequest, yard_file: Path) -> Iterator[Platform]:
    path = yard_file if request.param == "sqlite" else None
    with open_platform(path, durability="process") if path else open_platform() as opened:
        yield opened


def values(passed: int, failed: int) -> list[bool]:
    return [True] * passed + [False] * failed


# ---- reading


def test_a_run_of_many_pages_is_read_as_a_whole(platform: Platform, scored_runs: Any) -> None:
    run = scored_runs.add(platform, scored_runs.questions(values(300, 150)))
    found = platform.evaluations.report(run).aggregate
    assert (found.rows, found.trials) == (450, 450)
    assert found.metrics[0].mean == pytest.approx(300 / 450)


def test_a_run_is_given_by_its_id_by_value_or_by_what_has_it(platform: Platform, scored_runs: Any) -> None:
    run = scored_runs.add(platform, scored_runs.questions([True]))
    evaluations = platform.evaluations
    for given in (run.id, run, evaluations.result(run.id), evaluations.report(run)):
        assert platform.evaluations.report(given).run == run


def test_equal_rows_of_a_run_are_trials_of_one(platform: Platform, scored_runs: Any) -> None:
    answers = [scored_runs.answer("same", scores={"exact": value}, trial=at) for at, value in enumerate([True, False])]
    found = platform.evaluations.report(scored_runs.add(platform, answers), reducer="max").aggregate
    assert (found.rows, found.trials, found.metrics[0].mean) == (1, 2, 1.0)


def test_what_belongs_to_others_is_not_found(platform: Platform, scored_runs: Any) -> None:
    run = scored_runs.add(platform, scored_runs.questions([True]))
    stranger = platform.acting_as(Principal("key", "other", Scope("other"), "key-id")).evaluations
    for act in (stranger.report, stranger.export, lambda run: stranger.compare(baseline=run, candidate=run)):
        with pytest.raises(NotFound):
            act(run)


@pytest.mark.parametrize("confidence", [0.0, 0.49, 1.0, 95])
def test_a_confidence_that_is_none_is_refused(platform: Platform, scored_runs: Any, confidence: float) -> None:
    run = scored_runs.add(platform, scored_runs.questions([True]))
    for act in (
        platform.evaluations.report,
        lambda run, **more: platform.evaluations.compare(baseline=run, candidate=run, **more),
    ):
        with pytest.raises(InvalidInput, match=r"confidence: must be at least 0\.5 and below 1"):
            act(run, confidence=confidence)


# ---- comparing


def test_a_candidate_is_shown_to_be_better_or_worse(platform: Platform, scored_runs: Any) -> None:
    before = scored_runs.add(platform, scored_runs.questions(values(10, 20)))
    after = scored_runs.add(platform, scored_runs.questions(values(20, 10)))
    better = platform.evaluations.compare(baseline=before, candidate=after).metric("exact")
    assert (better.verdict, better.paired.wins, better.paired.losses) == (Verdict.BETTER, 10, 0)
    assert platform.evaluations.compare(baseline=after, candidate=before).metric("exact").verdict is Verdict.WORSE


def test_not_worse_passes_and_returns_what_was_found(platform: Platform, scored_runs: Any) -> None:
    before = scored_runs.add(platform, scored_runs.questions(values(10, 20)))
    after = scored_runs.add(platform, scored_runs.questions(values(12, 18)))
    found = platform.evaluations.assert_not_worse(candidate=after, baseline=before)
    assert found.metric("exact").paired.difference == pytest.approx(2 / 30)
    platform.evaluations.assert_not_worse(candidate=before, baseline=before)


def test_worse_fails_and_says_which_rows_how_much_and_how_sure(platform: Platform, scored_runs: Any) -> None:
    before = scored_runs.add(platform, scored_runs.questions(values(20, 10)), "support:step1")
    after = scored_runs.add(platform, scored_runs.questions(values(10, 20)), "support:step2")
    with pytest.raises(AssertionError) as failed:
        platform.evaluations.assert_not_worse(candidate=after, baseline=before, metric="exact")
    text = str(failed.value)
    assert f"candidate support:step2 (run {after.id})" in text
    assert "exact: -33.3 pp (95 % interval -49.6 to -14.9 pp, p 0.002)" in text
    assert "over 30 rows (66.7 % before, 33.3 % now): 0 better, 20 the same, 10 worse" in text
    assert text.count("question: question 1") == 5
    platform.evaluations.assert_not_worse(candidate=after, baseline=before, margin=0.2)
    platform.evaluations.assert_not_worse(candidate=after, baseline=before, confidence=0.999)


def test_a_margin_is_what_must_be_passed(platform: Platform, scored_runs: Any) -> None:
    before = scored_runs.add(platform, scored_runs.questions(values(20, 10)))
    after = scored_runs.add(platform, scored_runs.questions(values(10, 20)))
    with pytest.raises(AssertionError, match=r"10\.0 pp would be allowed"):
        platform.evaluations.assert_not_worse(candidate=after, baseline=before, margin=0.1)
    with pytest.raises(InvalidInput, match="margin: must be at least 0"):
        platform.evaluations.assert_not_worse(candidate=after, baseline=before, margin=-0.1)


def test_a_candidate_that_fails_on_rows_is_worse_over_all_of_them(platform: Platform, scored_runs: Any) -> None:
    before = scored_runs.add(platform, scored_runs.questions(values(30, 0)))
    answers = scored_runs.questions(values(30, 0))
    failing = [attrs.evolve(answer, error="timed out", scores={}) for answer in answers[:10]]
    after = scored_runs.add(platform, [*failing, *answers[10:]])
    with pytest.raises(AssertionError, match="10 of which have no value in the candidate, which counts as") as reported:
        platform.evaluations.assert_not_worse(candidate=after, baseline=before)
    assert "rows that are lost:" in str(reported.value)
    assert str(reported.value).count("timed out") == 5


def test_no_scored_rows_fail(platform: Platform, scored_runs: Any) -> None:
    scored = scored_runs.add(platform, scored_runs.questions(values(3, 0)))
    others = scored_runs.add(platform, [scored_runs.answer("another question", scores={"exact": True})])
    silent = scored_runs.add(platform, scored_runs.questions([None] * 3))
    disjoint = [scored_runs.add(platform, scored_runs.questions(row)) for row in ([True, None], [None, True])]
    empty = scored_runs.add(platform, [])
    for candidate, baseline in ((others, scored), (silent, scored), (disjoint[0], disjoint[1]), (empty, empty)):
        with pytest.raises(AssertionError, match="there are no scored rows to compare"):
            platform.evaluations.assert_not_worse(candidate=candidate, baseline=baseline)


def test_a_metric_that_the_candidate_lost_does_not_go_unnoticed(platform: Platform, scored_runs: Any) -> None:
    def run(**scores: Any) -> Any:
        return scored_runs.add(platform, [scored_runs.answer(f"q{n}", scores=scores) for n in range(3)])

    before, after = run(exact=True, tone=0.5), run(exact=True)
    with pytest.raises(AssertionError, match="tone, only the baseline has values of it"):
        platform.evaluations.assert_not_worse(candidate=after, baseline=before)
    platform.evaluations.assert_not_worse(candidate=after, baseline=before, metric="exact")
    platform.evaluations.assert_not_worse(candidate=before, baseline=after)
    with pytest.raises(AssertionError, match="tone, only the baseline has values of it"):
        platform.evaluations.assert_not_worse(candidate=after, baseline=before, metric="tone")
    with pytest.raises(InvalidInput, match="metric: must be a metric of both runs: exact"):
        platform.evaluations.assert_not_worse(candidate=after, baseline=before, metric="colour")


@pytest.mark.parametrize("wrong", [None, 5, object(), {"run": "id"}])
def test_what_is_not_a_run_is_refused(platform: Platform, scored_runs: Any, wrong: Any) -> None:
    run = scored_runs.add(platform, scored_runs.questions(values(3, 0)))
    for pair in ((run, wrong), (wrong, run)):
        with pytest.raises(InvalidInput, match="run: must be a run, its id, or the result of one"):
            platform.evaluations.compare(baseline=pair[0], candidate=pair[1])


@pytest.mark.parametrize("wrong", ["x", None, 95, 1.0, True])
def test_an_invalid_confidence_margin_or_threshold_is_refused(platform: Platform, scored_runs: Any, wrong: Any) -> None:
    run = scored_runs.add(platform, scored_runs.questions(values(3, 0)))
    with pytest.raises(InvalidInput, match=r"confidence: must be at least 0\.5 and below 1"):
        platform.evaluations.report(run, confidence=wrong)
    if not isinstance(wrong, float | int) or wrong is True:
        with pytest.raises(InvalidInput, match="margin: must be at least 0"):
            platform.evaluations.assert_not_worse(candidate=run, baseline=run, margin=wrong)
        with pytest.raises(InvalidInput, match="exact: must be a number, the least"):
            platform.evaluations.gate(run, {"exact": wrong})


def test_runs_over_other_rows_say_why_they_have_none_in_common(platform: Platform, scored_runs: Any) -> None:
    one = scored_runs.add(platform, scored_runs.questions(values(3, 0)))
    other = scored_runs.add(platform, [scored_runs.answer("another question", scores={"exact": True})])
    report = platform.evaluations.compare(baseline=one, candidate=other)
    assert "no row is in both: rows are paired by all that they hold" in str(report)


# ---- gates


def test_a_gate_holds_means_against_thresholds(platform: Platform, scored_runs: Any) -> None:
    run = scored_runs.add(platform, scored_runs.questions(values(9, 1)))
    assert platform.evaluations.gate(run, {"exact": 0.9}).passed
    gate = platform.evaluations.gate(run, {"exact": 0.95})
    assert not gate.passed
    assert "below the threshold" in str(gate)
    failing = scored_runs.add(platform, scored_runs.questions([0.5, ValueError("no")]))
    (check,) = platform.evaluations.gate(failing, {"exact": 0.95}).checks
    assert check.reason == "below the threshold; 1 of 2 trials failed"


def test_no_scored_rows_do_not_pass_a_gate(platform: Platform, scored_runs: Any) -> None:
    run = scored_runs.add(platform, scored_runs.questions([None]))
    unknown = "is not a metric of the run"
    for name, reason in (
        ("exact", "there are no scored rows"),
        ("exakt", f"{unknown}; did you mean 'exact'?"),
        ("other", unknown),
    ):
        gate = platform.evaluations.gate(run, {name: -1.0})
        assert not gate.passed
        assert [check.reason for check in gate.checks] == [reason]


def test_a_gate_takes_runs_by_name_alone_as_by_position_they_could_be_swapped(
    platform: Platform, scored_runs: Any
) -> None:
    before, after = (scored_runs.add(platform, scored_runs.questions([0.0, 1.0] * 4)) for _ in range(2))
    for named in ({}, {"candidate": after}, {"baseline": before, "candidate": after}):
        for positional in ((before,), (before, after)):
            with pytest.raises(TypeError, match="baseline") as refused:
                platform.evaluations.assert_not_worse(*positional, **named)
            assert "baseline" in str(refused.value)


def test_runs_are_compared_by_position_and_a_metric_is_a_line(platform: Platform, scored_runs: Any) -> None:
    before, after = (scored_runs.add(platform, scored_runs.questions([0.0, 1.0] * 4)) for _ in range(2))
    named = platform.evaluations.compare(baseline=before, candidate=after)
    assert str(platform.evaluations.compare(before, after)) == str(named)
    metric = platform.evaluations.report(before).metric("exact")
    assert str(metric) == f"exact 0.5 ({metric.interval.low:.4g} to {metric.interval.high:.4g}), 8 of 8 scored"
    assert "numbers=" in repr(metric)


def test_failed_trials_do_not_pass_a_gate_unless_they_are_allowed(platform: Platform, scored_runs: Any) -> None:
    answers = scored_runs.questions([1.0, 1.0, 1.0, ValueError("no")])
    run = scored_runs.add(platform, answers)
    assert platform.evaluations.gate(run, {"exact": 1.0}, max_errors=0.25).passed
    (check,) = platform.evaluations.gate(run, {"exact": 1.0}, max_errors=0.2).checks
    assert (check.passed, check.reason) == (False, "1 of 4 trials failed")


def test_a_gate_needs_a_threshold_and_a_share(platform: Platform, scored_runs: Any) -> None:
    run = scored_runs.add(platform, scored_runs.questions([1.0]))
    with pytest.raises(InvalidInput, match="thresholds"):
        platform.evaluations.gate(run, {})
    with pytest.raises(InvalidInput, match="max_errors"):
        platform.evaluations.gate(run, {"exact": 1.0}, max_errors=2)


# ---- rows


def test_a_run_is_exported_as_json_lines(platform: Platform, scored_runs: Any) -> None:
    answers = [
        scored_runs.answer("one", "=1+1", {"exact": True, "judge": {"tone": 0.5}}),
        scored_runs.answer("two", scores={}, error="timed out"),
    ]
    run = scored_runs.add(platform, answers)
    lines = [json.loads(line) for line in b"".join(platform.evaluations.export(run)).splitlines()]
    one, two = sorted(lines, key=lambda line: line["index"])
    assert one["inputs"] == {"question": "one"}
    assert (one["output"], one["cost"], one["latency"]) == ("=1+1", "0.001", 0.25)
    assert {score["scorer"].split("/")[-1]: score["value"] for score in one["scores"]} == {
        "exact:v0": True,
        "judge:v0": {"tone": 0.5},
    }
    assert (two["output"], two["error"], two["scores"]) == (None, "timed out", [])


def test_a_run_is_exported_as_csv_that_no_spreadsheet_takes_for_formulas(platform: Platform, scored_runs: Any) -> None:
    answers = [
        scored_runs.answer("one", '=HYPERLINK("x")', {"exact": True, "judge": {"tone": 0.5}}),
        scored_runs.answer("two", "-5", {"exact": ValueError("no")}),
        scored_runs.answer("three", 'a "b",\nc'),
    ]
    run = scored_runs.add(platform, answers)
    text = b"".join(platform.evaluations.export(run, "csv")).decode()
    rows = {row["index"]: row for row in csv.DictReader(io.StringIO(text, newline=""))}
    assert list(rows["0"])[-2:] == ["exact", "judge.tone"]
    assert (rows["0"]["output"], rows["0"]["exact"], rows["0"]["judge.tone"]) == ('\'=HYPERLINK("x")', "true", "0.5")
    assert (rows["1"]["output"], rows["1"]["exact"]) == ("-5", "")
    assert rows["2"]["output"] == 'a "b",\nc'


def test_a_comparison_is_exported_row_by_row(platform: Platform, scored_runs: Any) -> None:
    before = scored_runs.add(platform, scored_runs.questions([0.25, 0.5]))
    after = scored_runs.add(platform, scored_runs.questions([0.75, None]))
    report = platform.evaluations.compare(baseline=before, candidate=after)
    lines = [json.loads(line) for line in b"".join(report.export()).splitlines()]
    by_question = {line["inputs"]["question"]: line for line in lines}
    assert by_question["question 0"]["differences"] == {"exact": 0.5}
    assert by_question["question 1"]["candidate"]["values"] == {}
    assert by_question["question 1"]["differences"] == {}
    rows = list(csv.DictReader(io.StringIO(b"".join(report.export("csv")).decode())))
    assert {row["exact difference"] for row in rows} == {"0.5", ""}
    assert {row["candidate output"] for row in rows} == {"answer 0", "answer 1"}


def test_another_format_is_refused_at_once(platform: Platform, scored_runs: Any) -> None:
    run = scored_runs.add(platform, scored_runs.questions([1.0]))
    with pytest.raises(InvalidInput, match=r"format: must be one of jsonl, csv.*; did you mean 'jsonl'\?$"):
        platform.evaluations.export(run, "json")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="format: must be one of jsonl, csv"):
        platform.evaluations.export(run, "xlsx")  # type: ignore[arg-type]
