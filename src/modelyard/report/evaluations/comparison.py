"""The report of a comparison: as text, in a notebook, as one HTML page, and row by row."""

import os
from collections.abc import Iterator, Mapping

import attrs

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
from modelyard.report import junit, markdown
from modelyard.report.evaluations.comparison_page import UNPAIRED, comparison_content
from modelyard.report.evaluations.export import Format, RunRows, comparison_lines, save_report
from modelyard.report.html import fragment, page, tag
from modelyard.report.numbers import (
    clusters_text,
    confidence_text,
    count_text,
    difference_text,
    direction_text,
    left_out_text,
    mean_text,
    p_text,
    ref_text,
    span_text,
)
from modelyard.report.table import printable, text_table

SHOWN_IN_NOTEBOOK = 10
SHOWN_ROWS = 5
SHOWN_TEXT = 60


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
        content = comparison_content(self.baseline, self.candidate, self.comparison)
        return page(self._title, tag("h1", self._title), *content)

    @property
    def markdown(self) -> str:
        """The verdicts, the numbers and the rows that lose most, for a comment on a pull request."""
        return markdown.joined(_paragraphs(self))

    @property
    def junit(self) -> str:
        """The metrics as cases in the XML of JUnit: one fails if the candidate is shown to be worse."""
        lost = [junit.Case(name, error=reason) for name, reason in self.comparison.uncompared.items()]
        return junit.suite(self._title, [*map(_case, self.comparison.metrics), *lost])

    def _repr_html_(self) -> str:
        content = comparison_content(self.baseline, self.candidate, self.comparison, SHOWN_IN_NOTEBOOK)
        return fragment(tag("h3", self._title), *content)

    @property
    def _title(self) -> str:
        return f"{ref_text(self.candidate.model)} compared with {ref_text(self.baseline.model)}"

    def __repr__(self) -> str:
        return f"<ComparisonReport of {self.candidate.id} with {self.baseline.id}: {self.comparison.rows} rows>"

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def _values(self, row: RunRow) -> Mapping[str, float]:
        names = {one.metric: one.name for one in self.comparison.metrics}
        values = row_values(row, names, self.comparison.options.reduce)
        return {names[metric]: value for metric, value in values.items()}


def _paragraphs(report: ComparisonReport) -> Iterator[str]:
    found = report.comparison
    yield f"### {markdown.plain(report._title)}"
    yield "; ".join(f"{markdown.plain(one.name)}: **{one.verdict.value}**" for one in found.metrics)
    lines = [markdown.plain(line) for line in _counts(report)]
    if found.metrics:
        cells = ([markdown.plain(cell) for cell in _cells(one)] for one in found.metrics)
        yield markdown.table(_HEADERS, cells, right=_HEADERS[1:-1])
        remarks = [_footnote(found), *(line for one in found.metrics for line in _remarks(one))]
        lines += map(markdown.plain, remarks)
    yield "\n".join(f"* {line}" for line in lines)
    headers = ("row", "before", "now", "inputs", "candidate's output")
    for one in found.metrics:
        rows = [_row(note) for note in one.worst[:SHOWN_ROWS]]
        if rows:
            yield markdown.folded(f"rows that lose most by {one.name}", markdown.table(headers, rows))


def _row(note: RowDifference) -> list[str]:
    values = (f"{note.baseline:g}", f"{note.candidate:g}")
    return [markdown.code(part) for part in (note.digest[:10], *values, note.inputs, note.candidate_output)]


def _case(one: MetricComparison) -> junit.Case:
    worse = f"{difference_text(one.paired.difference, one.kind)}, p {p_text(one.corrected)}"
    worst = one.worst[:SHOWN_ROWS]
    shown = "\n".join(f"{note.digest[:10]}: {_cut(note.inputs)} -> {_cut(note.candidate_output)}" for note in worst)
    return junit.Case(one.name, failure=f"worse by {worse}" if one.verdict is Verdict.WORSE else "", details=shown)


_HEADERS = ("metric", "baseline", "candidate", "difference", "interval", "better", "same", "worse", "p", "verdict")


def _lines(report: ComparisonReport) -> Iterator[str]:
    found = report.comparison
    yield from _counts(report)
    if found.metrics:
        yield ""
        yield text_table(_HEADERS, [_cells(one) for one in found.metrics], right=_HEADERS[1:-1])
        yield ""
        yield _footnote(found)
    for one in found.metrics:
        yield from _remarks(one)
    if found.baseline_failed or found.candidate_failed:
        failed = map(count_text, (found.baseline_failed, found.candidate_failed))
        yield "the model failed on {} rows of the baseline and {} of the candidate".format(*failed)
    for name, reason in found.uncompared.items():
        yield f"not compared: {printable(name)}, {reason}"


def _counts(report: ComparisonReport) -> Iterator[str]:
    found = report.comparison
    yield f"baseline   {printable(ref_text(report.baseline.model))}  (run {printable(report.baseline.id)})"
    yield f"candidate  {printable(ref_text(report.candidate.model))}  (run {printable(report.candidate.id)})"
    yield (
        f"{count_text(found.rows)} rows in both, {count_text(found.only_baseline)} only in the baseline, "
        f"{count_text(found.only_candidate)} only in the candidate"
    )
    if not found.rows:
        yield UNPAIRED


def _footnote(found: Comparison) -> str:
    several = f"; p corrected for {len(found.metrics)} metrics (Holm)" if len(found.metrics) > 1 else ""
    confidence, clusters = confidence_text(found.options.confidence), clusters_text(found.options.cluster_by)
    return f"intervals at {confidence}{clusters}{several}"


def _remarks(one: MetricComparison) -> Iterator[str]:
    everywhere, left_out = one.all_rows, left_out_text(one)
    if left_out:
        shown = f"{difference_text(everywhere.difference, one.kind)} ({span_text(everywhere.interval, one.kind)})"
        yield f"{printable(one.name)}, {left_out}; over all {count_text(everywhere.count)}, these as worst: {shown}"
    if one.verdict is Verdict.NO_DIFFERENCE and one.rows_needed is not None:
        yield f"{printable(one.name)}, about {count_text(one.rows_needed)} rows would show a difference of this size"


def _cells(one: MetricComparison) -> tuple[object, ...]:
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
        f"{printable(ref_text(run.model))} (run {run.id})" for run in (report.candidate, report.baseline)
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
