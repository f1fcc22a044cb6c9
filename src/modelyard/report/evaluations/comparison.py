"""The report of a comparison: as text, in a notebook, as one HTML page, and row by row."""

import os
from collections.abc import Iterator, Mapping

import attrs

from modelyard import report
from modelyard.domain.evaluation.comparison import (
    Comparison,
    MetricComparison,
    NotWorseCheck,
    Regression,
    RowDifference,
    Verdict,
)
from modelyard.domain.evaluation.metrics import RunRow, row_values
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.report.evaluations.export import Format, RunRows, comparison_lines, save_report
from modelyard.report.numbers import (
    clusters_text,
    confidence_text,
    count_text,
    difference_text,
    direction_text,
    left_out_text,
    mean_text,
    model_text,
    p_text,
    primary_first,
    span_text,
)
from modelyard.report.table import printable, text_table

SHOWN_ROWS = 5
SHOWN_TEXT = 60
UNPAIRED = "no row is in both: rows are paired by all that they hold, so both runs must be of the same data"


@attrs.frozen(repr=False)
class ComparisonReport:
    """A candidate compared with a baseline, in numbers and row by row.

    `print` it, leave it at the end of a notebook's cell, or save it.

    report = platform.evaluations.compare(baseline=baseline, candidate=candidate)
    report.save("comparison.html")
    """

    baseline: EvaluationRun
    candidate: EvaluationRun
    comparison: Comparison
    rows: tuple[RunRows, RunRows] = attrs.field(eq=False)
    remarks: tuple[str, ...] = attrs.field(default=(), eq=False)

    def metric(self, name: str) -> MetricComparison:
        """Return the comparison of the metric of this name. Raises `InvalidInput` naming those that exist."""
        return self.comparison.metric(name)

    def export(self, format: Format = "jsonl") -> Iterator[bytes]:
        """Export every row that is in both runs, side by side, as JSON Lines or CSV. Rows are read lazily."""
        names = [one.name for one in self.comparison.metrics]
        return comparison_lines(*self.rows, self._values, names, format)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file of the kind that its ending names: .html, .md, .xml (JUnit), .jsonl or .csv. Raises
        `InvalidInput`."""
        save_report(self, path)

    @property
    def html(self) -> str:
        """The whole page, which needs no other file. It shows the rows that were kept, and says so."""
        return report.comparison_html(self)

    @property
    def markdown(self) -> str:
        """The verdicts, the numbers and the rows that lose most, for a comment on a pull request."""
        return report.comparison_markdown(self)

    @property
    def junit(self) -> str:
        """The metrics as cases in the XML of JUnit: one fails if the candidate is shown to be worse."""
        return report.comparison_junit(self)

    def _repr_html_(self) -> str:
        return report.comparison_notebook(self)

    def __repr__(self) -> str:
        return f"<ComparisonReport of {self.candidate.id} with {self.baseline.id}: {self.comparison.rows} rows>"

    def __str__(self) -> str:
        return "\n".join((*_lines(self), *map(printable, self.remarks)))

    def _values(self, row: RunRow) -> Mapping[str, float]:
        names = {one.metric: one.name for one in self.comparison.metrics}
        values = row_values(row, names, self.comparison.options.reduce)
        return {names[metric]: value for metric, value in values.items()}


HEADERS = ("metric", "baseline", "candidate", "difference", "interval", "better", "same", "worse", "p", "verdict")


def _lines(report: ComparisonReport) -> Iterator[str]:
    found = report.comparison
    yield from counts(report)
    if found.metrics:
        yield ""
        yield text_table(
            HEADERS, [cells(one) for one in primary_first(report.candidate, found.metrics)], right=HEADERS[1:-1]
        )
        yield ""
        yield footnote(found)
    for one in found.metrics:
        yield from remarks(one)
    if found.baseline_failed or found.candidate_failed:
        failed = map(count_text, (found.baseline_failed, found.candidate_failed))
        yield "the model failed on {} rows of the baseline and {} of the candidate".format(*failed)
    for name, reason in found.uncompared.items():
        yield f"not compared: {printable(name)}, {reason}"


def counts(report: ComparisonReport) -> Iterator[str]:
    found = report.comparison
    both = {"baseline": report.baseline, "candidate": report.candidate}
    for name, run in both.items():
        yield f"{name:9}  {printable(model_text(run, *both.values()))}  (run {printable(run.id)})"
    yield (
        f"{count_text(found.rows)} rows in both, {count_text(found.only_baseline)} only in the baseline, "
        f"{count_text(found.only_candidate)} only in the candidate"
    )
    if not found.rows:
        yield UNPAIRED


def footnote(found: Comparison) -> str:
    several = f"; p corrected for {len(found.metrics)} metrics (Holm)" if len(found.metrics) > 1 else ""
    confidence, clusters = confidence_text(found.options.confidence), clusters_text(found.options.cluster_by)
    return f"intervals at {confidence}{clusters}{several}"


def remarks(one: MetricComparison) -> Iterator[str]:
    everywhere, left_out = one.all_rows, left_out_text(one)
    if left_out:
        shown = f"{difference_text(everywhere.difference, one.kind)} ({span_text(everywhere.interval, one.kind)})"
        yield f"{printable(one.name)}, {left_out}; over all {count_text(everywhere.count)}, these as worst: {shown}"
    if one.verdict is Verdict.NO_DIFFERENCE and one.rows_needed is not None:
        yield f"{printable(one.name)}, about {count_text(one.rows_needed)} rows would show a difference of this size"


def cells(one: MetricComparison) -> tuple[object, ...]:
    pairs = one.paired
    return (
        f"{one.name}{direction_text(one.lower_is_better)}",
        mean_text(one.baseline, one.kind),
        mean_text(one.candidate, one.kind),
        difference_text(pairs.difference, one.kind),
        span_text(pairs.interval, one.kind),
        *map(count_text, (pairs.wins, pairs.ties, pairs.losses)),
        p_text(one.corrected),
        one.verdict.value,
    )


# ---- what is worse


def regression_text(report: ComparisonReport, check: NotWorseCheck) -> str:
    candidate, baseline = (
        f"{printable(model_text(run, report.candidate, report.baseline))} (run {run.id})"
        for run in (report.candidate, report.baseline)
    )
    runs = f"  candidate {candidate}\n  baseline  {baseline}"
    return "\n\n".join([runs, *(_regression(one, check.margin) for one in check.regressions)])


def _regression(regression: Regression, margin: float) -> str:
    one, found = regression.metric, regression.rows
    assert found.interval is not None
    p = one.corrected if found is one.paired else one.corrected_all_rows
    allowed = f"; {difference_text(margin, one.kind).lstrip('+')} would be allowed" if margin else ""
    sure = f"{confidence_text(found.interval.confidence)} interval {span_text(found.interval, one.kind)}, p {p_text(p)}"
    split = f"{count_text(found.wins)} better, {count_text(found.ties)} the same, {count_text(found.losses)} worse"
    return "\n".join(
        [
            f"{one.name}: {difference_text(found.difference, one.kind)} ({sure}){allowed}",
            f"  over {count_text(found.count)} rows{_means(regression)}: {split}",
            *(_worst_rows(one.worst) if found is one.paired else _lost_rows(one.lost)),
        ]
    )


def _means(regression: Regression) -> str:
    one = regression.metric
    if regression.rows is one.paired:
        return f" ({mean_text(one.baseline, one.kind)} before, {mean_text(one.candidate, one.kind)} now)"
    lost = count_text(one.only_baseline)
    return f", {lost} of which have no value in the candidate, which counts as the worst"


def _worst_rows(worst: tuple[RowDifference, ...]) -> list[str]:
    if not worst:
        return []
    lines = [
        (note.digest[:10], f"{note.baseline:g}", f"{note.candidate:g}", cut(note.inputs), cut(note.candidate_output))
        for note in worst[:SHOWN_ROWS]
    ]
    headers = ("row", "before", "now", "inputs", "candidate's output")
    return ["  the rows that lose most:", *_indented(text_table(headers, lines, right=("before", "now")))]


def _lost_rows(lost: tuple[RowDifference, ...]) -> list[str]:
    lines = [(note.digest[:10], f"{note.baseline:g}", cut(note.inputs), cut(note.detail)) for note in lost[:SHOWN_ROWS]]
    headers = ("row", "before", "inputs", "why it has no value now")
    return ["  rows that are lost:", *_indented(text_table(headers, lines, right=("before",)))]


def _indented(table: str) -> list[str]:
    return [f"    {line}" for line in table.splitlines()]


def cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_TEXT else f"{line[: SHOWN_TEXT - 1]}…"
