"""Two runs side by side to look at: as text, in a notebook, as one HTML page, and row by row."""

import os
from collections.abc import Iterator, Mapping
from typing import Unpack

import attrs

from modelyard.domain.evaluation.comparison import Comparison, MetricComparison, Verdict, compare
from modelyard.domain.evaluation.metrics import Row, row_values
from modelyard.domain.evaluation.options import TermOptions
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.report.evaluations.comparison_page import UNPAIRED, comparison_content
from modelyard.report.evaluations.export import Format, comparison_lines, save_report
from modelyard.report.evaluations.reader import Reader, compared_on
from modelyard.report.html import fragment, page, tag
from modelyard.report.numbers import (
    clusters_text,
    confidence_text,
    count_text,
    difference_text,
    left_out_text,
    mean_text,
    p_text,
    ref_text,
    span_text,
)
from modelyard.report.table import printable, text_table

GLANCE = 10


@attrs.frozen(repr=False)
class ComparisonReport:
    """A candidate beside a baseline in numbers, and the way to their rows. `print` it, leave it at the end of a
    notebook's cell, or save it.

    report = platform.evaluations.compare(baseline=baseline, candidate=candidate)
    report.save("comparison.html")
    """

    baseline: EvaluationRun
    candidate: EvaluationRun
    comparison: Comparison
    readers: tuple[Reader, Reader] = attrs.field(eq=False)

    @classmethod
    def of(
        cls,
        baseline: EvaluationRun,
        candidate: EvaluationRun,
        readers: tuple[Reader, Reader],
        **options: Unpack[TermOptions],
    ) -> "ComparisonReport":
        """The report of a candidate beside a baseline, which `readers` read. Raises `InvalidInput`."""
        before, after = (compared_on(reader, options) for reader in readers)
        return cls(baseline, candidate, compare(before, after, **options), readers)

    def metric(self, name: str) -> MetricComparison:
        """The metric of this name. Raises `InvalidInput` naming those that there are."""
        return self.comparison.metric(name)

    def export(self, format: Format = "jsonl") -> Iterator[bytes]:
        """Every row of both runs, side by side, as JSON Lines or CSV, read as it is asked for."""
        names = [one.name for one in self.comparison.metrics]
        return comparison_lines(*self.readers, self._values, names, format)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file of the kind that its ending says: .html, .jsonl or .csv. Raises `InvalidInput`."""
        save_report(path, lambda: self.html, self.export)

    @property
    def html(self) -> str:
        """The whole page, which needs no other file. Of the rows it shows those that were kept, and says so."""
        content = comparison_content(self.baseline, self.candidate, self.comparison)
        return page(self._title, tag("h1", self._title), *content)

    def _repr_html_(self) -> str:
        content = comparison_content(self.baseline, self.candidate, self.comparison, GLANCE)
        return fragment(tag("h3", self._title), *content)

    @property
    def _title(self) -> str:
        return f"{ref_text(self.candidate.model)} compared with {ref_text(self.baseline.model)}"

    def __repr__(self) -> str:
        return f"<ComparisonReport of {self.candidate.id} with {self.baseline.id}: {self.comparison.rows} rows>"

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def _values(self, row: Row) -> Mapping[str, float]:
        kinds = {one.metric: one.kind for one in self.comparison.metrics}
        names = {one.metric: one.name for one in self.comparison.metrics}
        values = row_values(row, kinds, self.comparison.terms.reduce)
        return {names[metric]: value for metric, value in values.items()}


_HEADERS = ("metric", "baseline", "candidate", "difference", "interval", "better", "same", "worse", "p", "verdict")


def _lines(report: ComparisonReport) -> Iterator[str]:
    found = report.comparison
    yield f"baseline   {printable(report.baseline.id)}  {printable(report.baseline.model)}"
    yield f"candidate  {printable(report.candidate.id)}  {printable(report.candidate.model)}"
    yield (
        f"{count_text(found.rows)} rows in both, {count_text(found.only_baseline)} only in the baseline, "
        f"{count_text(found.only_candidate)} only in the candidate"
    )
    if not found.rows:
        yield UNPAIRED
    if found.metrics:
        yield ""
        yield text_table(_HEADERS, [_cells(one) for one in found.metrics], right=_HEADERS[1:-1])
        yield ""
        several = f"; p corrected for {len(found.metrics)} metrics (Holm)" if len(found.metrics) > 1 else ""
        yield f"intervals at {confidence_text(found.terms.confidence)}{clusters_text(found.terms.cluster_by)}{several}"
    for one in found.metrics:
        yield from _remarks(one)
    if found.baseline_failed or found.candidate_failed:
        failed = map(count_text, (found.baseline_failed, found.candidate_failed))
        yield "the model failed on {} rows of the baseline and {} of the candidate".format(*failed)
    for name, reason in found.uncompared.items():
        yield f"not compared: {printable(name)}, {reason}"


def _remarks(one: MetricComparison) -> Iterator[str]:
    """What stands behind the table: over which rows it is not, and how many would be enough."""
    everywhere, left_out = one.all_rows, left_out_text(one)
    if left_out:
        told = f"{difference_text(everywhere.difference, one.kind)} ({span_text(everywhere.interval, one.kind)})"
        yield f"{printable(one.name)}, {left_out}; over all {count_text(everywhere.count)}, these as worst: {told}"
    if one.verdict is Verdict.NO_DIFFERENCE and one.rows_needed is not None:
        yield f"{printable(one.name)}, about {count_text(one.rows_needed)} rows would show a difference of this size"


def _cells(one: MetricComparison) -> tuple[object, ...]:
    pairs = one.paired
    return (
        one.name,
        mean_text(one.baseline, one.kind),
        mean_text(one.candidate, one.kind),
        difference_text(pairs.difference, one.kind),
        span_text(pairs.interval, one.kind),
        *map(count_text, (pairs.wins, pairs.ties, pairs.losses)),
        p_text(one.corrected),
        one.verdict.value,
    )
