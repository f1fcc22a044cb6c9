"""Runs in numbers and two runs side by side (specification 4.5)."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Protocol, Unpack, get_args

import attrs

from modelyard.domain.evaluation.aggregate import MetricSummary
from modelyard.domain.evaluation.comparison import ONLY_BASELINE, Comparison, MetricComparison, RowDifference
from modelyard.domain.evaluation.options import TermOptions
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.evaluation.statistics import Paired
from modelyard.errors import InvalidInput
from modelyard.platform.evaluations.stored_run import StoredRun
from modelyard.platform.runtime import Runtime
from modelyard.report.evaluations.comparison import ComparisonReport
from modelyard.report.evaluations.export import Format, run_lines
from modelyard.report.evaluations.run import RunReport
from modelyard.report.numbers import confidence_text, count_text, difference_text, mean_text, p_text, span_text
from modelyard.report.table import printable, text_table

SHOWN_ROWS = 5
SHOWN_TEXT = 60


def check_not_worse(report: ComparisonReport, metric: str | None, margin: float) -> None:
    """Raise AssertionError when the candidate is shown to be worse by more than `margin`, or nothing was compared.

    The message says on which metric, by how much, how sure that is, and on which rows. Raises `InvalidInput`.
    """
    if not _is_number(margin) or not margin >= 0:
        raise InvalidInput.at("margin", msg="must be at least 0: by how much the candidate may be worse")
    lacking = _lacking(report.comparison, metric)
    if lacking:
        raise AssertionError(f"there are no scored rows to compare: {'; '.join(lacking)}\n\n{report}")
    metrics = report.comparison.metrics if metric is None else (report.metric(metric),)
    worse = [(one, found) for one in metrics if (found := one.worse_by(margin)) is not None]
    if worse:
        told = [_told(one, found, margin) for one, found in worse]
        raise AssertionError("\n\n".join([_headline(report), *told]))


def _lacking(found: Comparison, metric: str | None) -> list[str]:
    """What keeps the runs from being compared: a metric that the baseline alone has does, unless another is named."""
    if metric is None and not found.metrics and not found.uncompared:
        return ["no metric has a value in both runs"]
    reasons = {one.name: "no row has a value in both runs" for one in found.metrics if one.paired.count == 0}
    reasons.update((name, why) for name, why in found.uncompared.items() if name == metric or why == ONLY_BASELINE)
    if not found.metrics:
        reasons.update(found.uncompared)
    return [f"{name}, {why}" for name, why in reasons.items() if metric in (None, name)]


def _headline(report: ComparisonReport) -> str:
    candidate, baseline = (f"{printable(run.model)} (run {run.id})" for run in (report.candidate, report.baseline))
    return f"the candidate is worse\n  candidate {candidate}\n  baseline  {baseline}"


def _told(one: MetricComparison, found: Paired, margin: float) -> str:
    assert found.interval is not None
    p = one.corrected if found is one.paired else one.corrected_all_rows
    allowed = f"; {difference_text(margin, one.kind).lstrip('+')} would be allowed" if margin else ""
    sure = f"{confidence_text(found.interval.confidence)} interval {span_text(found.interval, one.kind)}, p {p_text(p)}"
    split = f"{count_text(found.wins)} better, {count_text(found.ties)} the same, {count_text(found.losses)} worse"
    return "\n".join(
        [
            f"{one.name}: {difference_text(found.difference, one.kind)} ({sure}){allowed}",
            f"  over {count_text(found.count)} rows{_over(one, found)}: {split}",
            *(_rows(one.worst) if found is one.paired else _lost_rows(one.lost)),
        ]
    )


def _over(one: MetricComparison, found: Paired) -> str:
    if found is one.paired:
        return f" ({mean_text(one.baseline, one.kind)} before, {mean_text(one.candidate, one.kind)} now)"
    lost = count_text(one.only_baseline)
    return f", {lost} of which have no value in the candidate, which counts as the worst"


def _rows(worst: tuple[RowDifference, ...]) -> list[str]:
    if not worst:
        return []
    lines = [
        (note.digest[:10], f"{note.baseline:g}", f"{note.candidate:g}", _cut(note.inputs), _cut(note.candidate_output))
        for note in worst[:SHOWN_ROWS]
    ]
    headers = ("row", "before", "now", "inputs", "candidate's output")
    return ["  the rows that lose most:", *_indented(text_table(headers, lines, right=("before", "now")))]


def _lost_rows(lost: tuple[RowDifference, ...]) -> list[str]:
    lines = [
        (note.digest[:10], f"{note.baseline:g}", _cut(note.inputs), _cut(note.detail)) for note in lost[:SHOWN_ROWS]
    ]
    headers = ("row", "before", "inputs", "why it has no value now")
    return ["  rows that are lost:", *_indented(text_table(headers, lines, right=("before",)))]


def _indented(table: str) -> list[str]:
    return [f"    {line}" for line in table.splitlines()]


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_TEXT else f"{line[: SHOWN_TEXT - 1]}…"


# ---- gates -------------------------------------------------------------------------------------------------------


@attrs.frozen
class Check:
    """One threshold and what was found. `value` is None when no row was scored, which fails."""

    metric: str
    threshold: float
    value: float | None
    passed: bool
    reason: str


@attrs.frozen
class Gate:
    """Whether a run is good enough; `print` it to see why. It passes when every check does."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def __str__(self) -> str:
        rows = [(one.metric, one.threshold, one.value, "passed" if one.passed else one.reason) for one in self.checks]
        return text_table(("metric", "at least", "found", ""), [[_shown(cell) for cell in row] for row in rows])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(cell: object) -> object:
    return f"{cell:.4g}" if isinstance(cell, float) else "–" if cell is None else cell


def checked_gate(report: RunReport, thresholds: Mapping[str, float], max_errors: float) -> Gate:
    """Hold a run's means against thresholds. Raises `InvalidInput`."""
    if not thresholds:
        raise InvalidInput.at("thresholds", msg="must name at least one metric")
    if not _is_number(max_errors) or not 0 <= max_errors <= 1:
        raise InvalidInput.at("max_errors", msg="must be a share of the trials, 0 to 1")
    for name, least in thresholds.items():
        if not _is_number(least):
            raise InvalidInput.at("thresholds", name, msg="must be a number, the least that the metric's mean may be")
    known = {summary.name: summary for summary in report.aggregate.metrics}
    return Gate(tuple(_check(known.get(name), name, least, max_errors) for name, least in thresholds.items()))


def _check(summary: MetricSummary | None, name: str, threshold: float, max_errors: float) -> Check:
    if summary is None or summary.mean is None:
        return Check(name, threshold, None, False, "there are no scored rows")
    errors, reasons = summary.scorer_errors + summary.model_errors, []
    if not summary.mean >= threshold:
        reasons.append("below the threshold")
    if errors > max_errors * summary.trials:
        reasons.append(f"{count_text(errors)} of {count_text(summary.trials)} trials failed")
    return Check(name, threshold, summary.mean, not reasons, "; ".join(reasons))


class HasRun(Protocol):
    """Anything that has a run, such as what `Evaluations.run` returns."""

    @property
    def run(self) -> EvaluationRun:
        """The run."""
        ...


AnyRun = str | EvaluationRun | HasRun
"""A run by its id or by value."""


def run_id_of(run: AnyRun) -> str:
    """The id of a run. Raises `InvalidInput` for what is none."""
    found = run if isinstance(run, str | EvaluationRun) else getattr(run, "run", None)
    if not isinstance(found, str | EvaluationRun):
        raise InvalidInput.at("run", msg="must be a run, its id, or the result of one")
    return found if isinstance(found, str) else found.id


class Comparing(ABC):
    """What `Evaluations` says of the runs that it has: in numbers, beside each other, and row by row."""

    runtime: Runtime

    @abstractmethod
    def get(self, run_id: str, *, project: str | None = None, entity: str | None = None) -> EvaluationRun:
        """One run that the caller may see."""

    def report(
        self, run: AnyRun, *, project: str | None = None, entity: str | None = None, **options: Unpack[TermOptions]
    ) -> RunReport:
        """A run in numbers, to print, to show in a notebook, and to save as .html, .jsonl or .csv.

        The trials of a row are reduced first, by `reducer`: "mean", "median", "min" or "max". `cluster_by` names an
        input that rows which go together have in common, such as the text that several questions are about: standard
        errors and intervals then allow for it. `confidence` is that of the intervals. Raises `NotFound`,
        `InvalidInput`.
        """
        return RunReport.of(*self._readable(run, project, entity), **options)

    def compare(
        self,
        *,
        baseline: AnyRun,
        candidate: AnyRun,
        project: str | None = None,
        entity: str | None = None,
        **options: Unpack[TermOptions],
    ) -> ComparisonReport:
        """A candidate beside a baseline, row by row: whether it is shown to be better or worse, by each metric.

        Higher is better. Options are those of `report`. Raises `NotFound`, `InvalidInput`.
        """
        before, read_before = self._readable(baseline, project, entity)
        after, read_after = self._readable(candidate, project, entity)
        return ComparisonReport.of(before, after, (read_before, read_after), **options)

    def _readable(self, run: AnyRun, project: str | None, entity: str | None) -> tuple[EvaluationRun, StoredRun]:
        """A run and what reads it. Raises `NotFound`."""
        found = self.get(run_id_of(run), project=project, entity=entity)
        return found, StoredRun(self.runtime, found.id)

    def assert_not_worse(
        self,
        *,
        baseline: AnyRun,
        candidate: AnyRun,
        metric: str | None = None,
        margin: float = 0.0,
        **options: Unpack[TermOptions],
    ) -> ComparisonReport:
        """For test suites: fail when the candidate is shown to be worse than the baseline by more than `margin`.

        All metrics count, corrected for how many there are, or the one that is named. A candidate that fails on rows
        where the baseline has a value does not get away with it: it must not be shown to be worse over all rows either,
        a missing value counted as the worst. Raises AssertionError that says on which rows, by how much and how sure
        that is, also when no row was scored in both; `NotFound`, `InvalidInput`.
        """
        found = self.compare(baseline=baseline, candidate=candidate, **options)
        check_not_worse(found, metric, margin)
        return found

    def gate(self, run: AnyRun, thresholds: Mapping[str, float], *, max_errors: float = 0.0) -> Gate:
        """Whether each metric's mean reaches its threshold: `assert gate.passed, gate`.

        A metric without a scored row fails, as does one with a larger share of failed trials than `max_errors`. Raises
        `NotFound`, `InvalidInput`.
        """
        return checked_gate(self.report(run), thresholds, max_errors)

    def export(
        self, run: AnyRun, format: Format = "jsonl", *, project: str | None = None, entity: str | None = None
    ) -> Iterator[bytes]:
        """Every prediction of a run with its scores, as JSON Lines or CSV, read as it is asked for.

        Raises `NotFound` at once, `InvalidInput` for another format.
        """
        if format not in get_args(Format):
            raise InvalidInput.at("format", msg=f"must be one of {', '.join(get_args(Format))}")
        _, reader = self._readable(run, project, entity)
        return run_lines(reader, format)
