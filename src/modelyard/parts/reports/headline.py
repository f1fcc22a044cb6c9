"""A run or a comparison in a sentence; and which of its metrics is the primary one."""

from collections.abc import Sequence

from modelyard.domain.evaluation.aggregate import Aggregate, MetricSummary
from modelyard.domain.evaluation.comparison import Comparison, MetricComparison, Verdict
from modelyard.domain.evaluation.metrics import MetricKind
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.report.numbers import (
    confidence_text,
    count_text,
    difference_text,
    id_text,
    interval_text,
    mean_text,
    model_text,
    span_text,
)

_SHOWN = {Verdict.BETTER: "is better", Verdict.WORSE: "is worse"}


def asked_of(run: EvaluationRun) -> tuple[object, ...]:
    """Return what tells the model of a run, with the prompts that it was asked with, from others."""
    return (run.model, *sorted(run.prompts.items()))


def labels_of(runs: Sequence[EvaluationRun]) -> list[str]:
    """Return a label for each run: the name of its model, and the end of its id if several have that name."""
    names = [model_text(run, *(runs if len(runs) > 1 else ())) for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({id_text(run.id)})" for name, run in zip(names, runs, strict=True)
    ]


def run_sentence(run: EvaluationRun, metrics: Sequence[MetricSummary], found: Aggregate) -> str:
    model = model_text(run)
    if not metrics or metrics[0].mean is None:
        return f"{model} has no score.{_failed(found)}"
    one = metrics[0]
    score = f"{mean_text(one.mean, one.kind)} on {one.name}"
    passed = passed_of(one)
    if passed is not None:
        score = f"{count_text(passed)} of {count_text(one.scored)} on {one.name} ({mean_text(one.mean, one.kind)})"
    sure = confidence_text(found.options.confidence)
    interval = f"; {sure} interval {interval_text(one.interval, one.kind)}" if one.interval is not None else ""
    return f"{model} scores {score}{interval}.{_failed(found)}"


def _failed(found: Aggregate) -> str:
    """Say who failed, and how often: what one scorer fails on is no failure for the others."""
    trials = f"{count_text(found.trials)} {'rows' if found.trials == found.rows else 'trials'}"
    failed = {"The model": found.model_errors}
    scorers = {one.metric.scorer: one for one in reversed(found.metrics)}
    failed |= {f"The scorer {one.name.partition('.')[0]}": one.scorer_errors for one in reversed(scorers.values())}
    return "".join(f" {who} failed on {count_text(count)} of {trials}." for who, count in failed.items() if count)


def passed_of(one: MetricSummary) -> int | None:
    if one.kind is not MetricKind.BINARY or one.mean is None or one.numbers is None or one.numbers.count != one.scored:
        return None
    return round(one.mean * one.scored)


def comparison_sentence(
    baseline: EvaluationRun, candidate: EvaluationRun, metrics: Sequence[MetricComparison], found: Comparison
) -> str:
    before, after = model_text(baseline), model_text(candidate)
    if not metrics:
        return f"{after} cannot be compared with {before}."
    one = metrics[0]
    difference = difference_text(one.paired.difference, one.kind)
    sure = f"{confidence_text(found.options.confidence)} interval {span_text(one.paired.interval, one.kind)}"
    shown = (
        f"{after} {_SHOWN[one.verdict]} than {before}"
        if one.verdict in _SHOWN
        else (f"{after} is not shown to differ from {before}")
    )
    return f"{shown} on {one.name}: {difference} ({sure}).{_others(metrics[1:])}"


def _others(metrics: Sequence[MetricComparison]) -> str:
    parts = []
    for verdict, text in ((Verdict.WORSE, "Worse on"), (Verdict.BETTER, "Better on")):
        parts += [f" {text} {_listed(names)}."] if (names := [m.name for m in metrics if m.verdict is verdict]) else []
    rest = [one.name for one in metrics if one.verdict not in _SHOWN]
    return "".join(parts) + (f" No difference is shown on {_listed(rest)}." if rest else "")


def _listed(names: Sequence[str]) -> str:
    """Return names as a list in a sentence.

    >>> _listed(["a", "b", "c"]), _listed([str(at) for at in range(9)])
    ('a, b and c', '0, 1, 2 and 6 others')
    """
    if len(names) > 4:
        names = [*names[:3], f"{len(names) - 3} others"]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
