"""Runs in numbers, two runs side by side, and quality gates (specification 4.5)."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Unpack, get_args

import attrs

from modelyard.domain.evaluation.aggregate import MetricSummary, ReportKeywords, RowNote, aggregate
from modelyard.domain.evaluation.comparison import is_number
from modelyard.domain.evaluation.metrics import MetricKind
from modelyard.domain.evaluation.pairing import compare, compare_pages
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.errors import InvalidInput, nearest
from modelyard.platform.evaluations.exported_run import ExportedRun
from modelyard.platform.evaluations.stored_run import StoredRun
from modelyard.platform.runtime import Runtime
from modelyard.report.evaluations.comparison import ComparisonReport, regression_text
from modelyard.report.evaluations.export import Format, RunRows, run_lines
from modelyard.report.evaluations.run import RunReport
from modelyard.report.numbers import count_text, mean_text
from modelyard.report.table import text_table

MOST_COMMENTS = 50


def report_of(runtime: Runtime, run: EvaluationRun, **options: Unpack[ReportKeywords]) -> RunReport:
    stored = StoredRun(runtime, run.id)
    scored = stored.columns() if options.get("cluster_by") is None else stored.full()
    found = aggregate(scored, **options)
    commented = tuple(attrs.evolve(one, worst=_with_comments(stored, one)) for one in found.metrics)
    rows = RunRows(stored.full, stored.columns)
    return RunReport(run, attrs.evolve(found, metrics=commented), rows, remarks(runtime, [run], options))


def remarks(runtime: Runtime, runs: Sequence[EvaluationRun], options: Mapping[str, Any]) -> tuple[str, ...]:
    found = (part.remarks(runtime, runs, options) for part in runtime.parts if part.remarks is not None)
    return tuple(chain.from_iterable(found))


def _with_comments(stored: StoredRun, one: MetricSummary) -> tuple[RowNote, ...]:
    shown = one.worst[:MOST_COMMENTS]
    notes = (attrs.evolve(note, comment=stored.comment(note.digest, one.metric.scorer)) for note in shown)
    return (*notes, *one.worst[MOST_COMMENTS:])


def compare_runs(
    runtime: Runtime,
    baseline: EvaluationRun | ExportedRun,
    candidate: EvaluationRun | ExportedRun,
    **options: Unpack[ReportKeywords],
) -> ComparisonReport:
    before, after = (_rows_of(runtime, run) for run in (baseline, candidate))
    if options.get("cluster_by") is None:
        found = compare_pages(before.pages(), after.pages(), **options)
    else:
        found = compare(before.full(), after.full(), **options)
    rows = (RunRows(before.full, before.columns), RunRows(after.full, after.columns))
    runs = _run_of(baseline), _run_of(candidate)
    return ComparisonReport(*runs, found, rows, remarks(runtime, runs, options))


def _rows_of(runtime: Runtime, run: EvaluationRun | ExportedRun) -> StoredRun | ExportedRun:
    return run if isinstance(run, ExportedRun) else StoredRun(runtime, run.id)


def _run_of(run: EvaluationRun | ExportedRun) -> EvaluationRun:
    return run.run if isinstance(run, ExportedRun) else run


def assert_not_worse(report: ComparisonReport, metric: str | None, margin: float) -> None:
    """Raise AssertionError when the candidate is shown to be worse by more than `margin`, or nothing was compared. The
    message has the metrics, the differences, how certain these are, and the rows. Raises `InvalidInput`."""
    check = report.comparison.check_not_worse(metric, margin)
    if check.not_compared:
        raise AssertionError(f"there are no scored rows to compare: {'; '.join(check.not_compared)}\n\n{report}")
    if not check.passed:
        raise AssertionError(f"the candidate is worse\n{regression_text(report, check)}")


def export_lines(runtime: Runtime, run: EvaluationRun, format: Format) -> Iterator[bytes]:
    if format not in (known := get_args(Format)):
        raise InvalidInput.at("format", msg=f"must be one of {', '.join(known)}{nearest(str(format), known)}")
    stored = StoredRun(runtime, run.id)
    return run_lines(RunRows(stored.full, stored.columns), format)


# ---- gates -------------------------------------------------------------------------------------------------------


@attrs.frozen
class Check:
    """One threshold and the value found. `value` is None when no row was scored, which fails."""

    metric: str
    threshold: float
    value: float | None
    passed: bool
    reason: str
    kind: MetricKind | None = None

    def __bool__(self) -> bool:
        return self.passed


@attrs.frozen(repr=False)
class QualityGate:
    """The means of a run checked against thresholds. It passes when every check passes; `print` it to see them."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def __bool__(self) -> bool:
        return self.passed

    def __repr__(self) -> str:
        return str(self)  # pytest shows the repr of `gate` for `assert gate.passed, gate`

    def __str__(self) -> str:
        return text_table(("metric", "at least", "found", ""), [_line(one) for one in self.checks])


def _line(one: Check) -> tuple[object, ...]:
    numbers = (mean_text(number, one.kind) for number in (one.threshold, one.value))
    return one.metric, *numbers, "passed" if one.passed else one.reason


def check_thresholds(report: RunReport, thresholds: Mapping[str, float], max_errors: float) -> QualityGate:
    if not thresholds:
        raise InvalidInput.at("thresholds", msg="must name at least one metric")
    if not is_number(max_errors) or not 0 <= max_errors <= 1:
        raise InvalidInput.at("max_errors", msg="must be a share of the trials, 0 to 1")
    for name, least in thresholds.items():
        if not is_number(least):
            raise InvalidInput.at("thresholds", name, msg="must be a number, the least that the metric's mean may be")
    known = {summary.name: summary for summary in report.aggregate.metrics}
    for name, least in thresholds.items():
        if name in known and known[name].kind is MetricKind.BINARY and least > 1:
            meant = f"; did you mean {least / 100:g}?" if least <= 100 else ""
            raise InvalidInput.at("thresholds", name, msg=f"must be at most 1, since it is a rate{meant}")
    return QualityGate(tuple(_check(known, name, least, max_errors) for name, least in thresholds.items()))


def _check(known: Mapping[str, MetricSummary], name: str, threshold: float, max_errors: float) -> Check:
    summary = known.get(name)
    if summary is None or summary.mean is None:
        missing = "there are no scored rows" if summary else f"is not a metric of the run{nearest(name, known)}"
        return Check(name, threshold, None, False, missing)
    errors, reasons = summary.scorer_errors + summary.model_errors, []
    if not summary.mean >= threshold:
        reasons.append("below the threshold")
    if errors > max_errors * summary.trials:
        reasons.append(f"{count_text(errors)} of {count_text(summary.trials)} trials failed")
    return Check(name, threshold, summary.mean, not reasons, "; ".join(reasons), summary.kind)
