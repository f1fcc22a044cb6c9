"""The same numbers everywhere: what a run keeps of itself, its report, its export and the results over HTTP agree."""

import csv
import io
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, groupby
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Platform, open_platform
from modelyard.domain.evaluation.aggregate import MetricSummary
from modelyard.domain.evaluation.metrics import MetricKind
from modelyard.domain.evaluation.run import EvaluationRun

COUNTS = ("scored", "unscored", "scorer_errors", "model_errors")
PLACE = "/v2/local/demo"

NUMBERS = st.sampled_from([0, 1, 0.25, -3.5, 1e9, math.nan, None])
VERDICTS = st.sampled_from([True, False, None, KeyError("no such field")])
OBJECTS = st.one_of(st.fixed_dictionaries({"tone": st.booleans(), "facts": NUMBERS}), st.none(), st.just("words"))
MIXED = st.one_of(VERDICTS, NUMBERS, st.just("words"), st.just(OSError("no network")))
SCORERS = {"verdict": VERDICTS, "number": NUMBERS, "object": OBJECTS, "mixed": MIXED}

NUMBERS_OF_ANY_KIND = (MetricKind.BINARY, MetricKind.CONTINUOUS)

Answers = Sequence[tuple[int, Sequence[Mapping[str, Any] | None]]]
"""For each row its question, of which several may be the same, and for each trial what the scorers say; None where the
model fails."""


def answers(trials: int) -> st.SearchStrategy[Answers]:
    trial = st.one_of(st.fixed_dictionaries(SCORERS), st.none())
    return st.lists(
        st.tuples(st.integers(0, 4), st.lists(trial, min_size=trials, max_size=trials)), min_size=1, max_size=7
    )


@pytest.fixture
def ask(client: Any, platform: Any) -> Callable[..., bytes]:
    key = platform.keys.create("local").secret

    def send(method: str, path: str, body: Any = None, **more: Any) -> bytes:
        answer = client.send(method, f"{PLACE}{path}", body, key=key, auth="Basic", **more)
        assert answer.status == 200, answer.raw
        return bytes(answer.raw)

    return send


def evaluated(platform: Platform, given: Answers, trials: int) -> EvaluationRun:
    """A run of the engine in which the model and the scorers say what is given."""
    reply = [trial for _, row in given for trial in row]
    calls = count()

    def model(row: Mapping[str, Any]) -> int:
        call = next(calls)
        if reply[call] is None:
            raise ConnectionError("the model is out of order")
        return call

    def scorer(name: str) -> Callable[[int, Mapping[str, Any]], Any]:
        def score(call: int, row: Mapping[str, Any]) -> Any:
            value = reply[call][name]
            if isinstance(value, Exception):
                raise value
            return value

        return score

    rows = [{"question": question} for question, _ in given]
    scorers = {name: scorer(name) for name in SCORERS}
    return platform.evaluations.run(
        "same", model, rows, scorers, project="demo", trials=trials, concurrency=1, progress=False
    ).run


# ---- numbers, worked out once more from the lines of an export


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, member in value.items():
            yield from leaves(member, f"{path}.{name}")
    else:
        yield path, value


def kind_of(value: Any) -> MetricKind | None:
    if isinstance(value, bool):
        return MetricKind.BINARY
    return (
        MetricKind.CONTINUOUS if isinstance(value, int | float) else MetricKind.TEXT if isinstance(value, str) else None
    )


def name_of(ref: str) -> str:
    return ref.rpartition("/")[2].partition(":")[0]


def values_of(line: Mapping[str, Any], metric: str) -> Any:
    """The value of a metric in one trial, or None."""
    if line["error"] is not None:
        return None
    found = {
        path: value
        for score in line["scores"]
        if score["outcome"] == "scored"
        for path, value in leaves(score["value"], name_of(score["scorer"]))
    }
    return found.get(metric)


def recounted(lines: Sequence[Mapping[str, Any]], metric: str, kind: MetricKind | None) -> tuple[Any, ...]:
    """Counts and mean of a metric, from an export."""
    outcomes: Counter[str] = Counter()
    means = []
    for _, trials in groupby(lines, lambda line: line["row_digest"]):
        numbers = []
        for line in trials:
            value = values_of(line, metric)
            scorer = metric.partition(".")[0]
            reply = next((one["outcome"] for one in line["scores"] if name_of(one["scorer"]) == scorer), "unscored")
            if line["error"] is not None:
                outcomes["model_errors"] += 1
            elif reply == "scorer_errors":
                outcomes["scorer_errors"] += 1
            elif kind is not None and kind_of(value) in ([kind] if kind is MetricKind.TEXT else NUMBERS_OF_ANY_KIND):
                outcomes["scored"] += 1
                numbers.append(value)
            else:
                outcomes["unscored"] += 1
        if numbers and kind is not MetricKind.TEXT:
            means.append(statistics.fmean(numbers))
    return (*(outcomes[name] for name in COUNTS), statistics.fmean(means) if means else None)


def counted(one: MetricSummary) -> tuple[Any, ...]:
    return one.scored, one.unscored, one.scorer_errors, one.model_errors, one.mean


@pytest.mark.slow
@examples(15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data(), st.integers(1, 3))
def test_a_runs_summary_report_export_and_results_say_the_same(
    platform: Platform, ask: Callable[..., bytes], data: st.DataObject, trials: int
) -> None:
    given = data.draw(answers(trials))
    run = evaluated(platform, given, trials)
    report = platform.evaluations.report(run).aggregate
    exported = b"".join(platform.evaluations.export(run))
    lines = [json.loads(line) for line in exported.splitlines()]
    assert report.trials == len(lines) == len(given) * trials
    assert report.rows == len({line["row_digest"] for line in lines})

    # the report against the export
    for one in report.metrics:
        assert counted(one) == pytest.approx(recounted(lines, one.name, one.kind))
        assert sum(counted(one)[:4]) == len(lines)

    # the kept summary against the report
    assert run.summary is not None
    kept = {name: tuple(entry[key] for key in (*COUNTS, "mean")) for name, entry in run.summary["scorers"].items()}
    reported = {one.name: counted(one) for one in report.metrics}
    assert {name: kept[name] for name in reported} == reported
    silent = (0, report.trials - report.model_errors, 0, report.model_errors, None)
    assert all(kept[name] == silent for name in kept.keys() - reported.keys())
    assert {name.partition(".")[0] for name in kept} == set(SCORERS)
    assert {**run.summary, **run.summary["scorers"]["verdict"]} == run.summary
    assert sum(run.summary[name] for name in COUNTS) == run.summary["trials"] == report.trials

    # over HTTP
    assert json.loads(ask("GET", f"/evaluation_runs/{run.id}"))["summary"] == json.loads(
        json.dumps(dict(run.summary), default=dict)
    )
    assert ask("GET", f"/evaluation_runs/{run.id}/export") == exported
    results = json.loads(ask("POST", "/eval_results/query", {"evaluation_run_ids": [run.id], "include_summary": True}))
    shown = {trial["predict_call_id"]: trial for row in results["rows"] for trial in row["evaluations"][0]["trials"]}
    assert shown.keys() == {line["prediction_id"] for line in lines}
    for line in lines:
        trial = shown[line["prediction_id"]]
        assert trial["error"] == line["error"]
        assert trial["model_output"] == line["output"]
        assert trial["scores"] == {
            name_of(one["scorer"]): one["value"] for one in line["scores"] if one["outcome"] != "scorer_errors"
        }
    (summary,) = results["summary"]["evaluations"]
    assert summary["trial_count"] == len(lines)
    stats = {".".join(filter(None, (one["scorer_key"], one["path"]))): one for one in summary["scorer_stats"]}
    assert stats.keys() == {one.name for one in report.metrics if one.kind is not None}
    for one in report.metrics:
        if one.kind is not None:
            check_stats(
                stats[one.name], one, [values_of(line, one.name) for line in lines], alone=report.rows == len(lines)
            )


def check_stats(found: Mapping[str, Any], one: MetricSummary, values: Sequence[Any], alone: bool) -> None:
    """What is shown of a leaf: that of the trials, and of the report where each row is `alone`, with one trial."""
    bools = [value for value in values if kind_of(value) is MetricKind.BINARY]
    numbers = [value for value in values if kind_of(value) in NUMBERS_OF_ANY_KIND]
    numbers = numbers if len(numbers) > len(bools) else []
    assert (found["pass_true_count"], found["pass_known_count"]) == (sum(bools), len(bools))
    assert found["numeric_count"] == len(numbers)
    assert found["numeric_mean"] == (pytest.approx(statistics.fmean(numbers)) if numbers else None)
    assert found["value_type"] == one.kind
    if alone and one.kind is not MetricKind.TEXT:
        assert one.mean == pytest.approx(found["pass_rate" if one.kind is MetricKind.BINARY else "numeric_mean"])


def test_a_runs_mean_is_that_of_the_report_also_where_trials_are_missing(platform: Platform) -> None:
    right, wrong = {**dict.fromkeys(SCORERS), "verdict": True}, {**dict.fromkeys(SCORERS), "verdict": False}
    run = evaluated(platform, [(0, [right, right, right]), (1, [wrong, None, None])], 3)
    assert run.summary is not None
    assert run.summary["mean"] == 0.5 == platform.evaluations.report(run).metric("verdict").mean
    assert [run.summary[name] for name in COUNTS] == [4, 0, 0, 2]


def test_a_comparison_shows_the_means_of_the_reports(platform: Platform) -> None:
    given: Answers = [(at, [{**dict.fromkeys(SCORERS), "number": value}]) for at, value in enumerate([1, 0.25, 0])]
    run = evaluated(platform, given, 1)
    mean = platform.evaluations.report(run).metric("number").mean
    found = platform.evaluations.compare(baseline=run, candidate=run).metric("number")
    assert (found.baseline, found.candidate) == (mean, mean)


def test_a_table_of_rows_says_what_the_lines_say(platform: Platform) -> None:
    given: Answers = [
        (0, [{**dict.fromkeys(SCORERS), "number": 0.25, "verdict": KeyError("no such field")}]),
        (1, [None]),
    ]
    run = evaluated(platform, given, 1)
    lines = [json.loads(line) for line in b"".join(platform.evaluations.export(run)).splitlines()]
    text = b"".join(platform.evaluations.export(run, "csv")).decode()
    table = list(csv.DictReader(io.StringIO(text)))
    assert [row["row_digest"] for row in table] == [line["row_digest"] for line in lines]
    by_question = {json.loads(row["inputs"])["question"]: row for row in table}
    assert (by_question[0]["number"], by_question[0]["scorer_errors"]) == ("0.25", "verdict: KeyError: 'no such field'")
    assert (by_question[1]["number"], by_question[1]["error"]) == ("", "ConnectionError: the model is out of order")


def test_a_run_says_the_same_when_it_was_kept_in_a_file(tmp_path: Any) -> None:
    given: Answers = [(at, [{**dict.fromkeys(SCORERS), "number": at / 3}]) for at in range(5)]
    with open_platform() as memory, open_platform(tmp_path / "yard.db") as file:
        kept = [evaluated(platform, given, 1).summary for platform in (memory, file)]
    assert kept[0] == kept[1]
