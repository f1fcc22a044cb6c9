"""What a test suite asks of runs: not to be worse than another, and to be good enough."""

from collections.abc import Mapping

import attrs

from modelyard.domain.aggregate import MetricSummary
from modelyard.domain.comparison import ONLY_BASELINE, Comparison, MetricComparison, RowDifference
from modelyard.domain.statistics import Paired
from modelyard.errors import InvalidInput
from modelyard.report.comparison import ComparisonReport
from modelyard.report.evaluation import RunReport
from modelyard.report.number import confidence_text, count_text, difference_text, mean_text, p_text, span_text
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
