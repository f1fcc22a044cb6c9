"""The report of a run: as text, in a notebook, as one HTML page, and row by row."""

import os
from collections.abc import Container, Iterator

import attrs

from modelyard.domain.evaluation.aggregate import Aggregate, MetricSummary
from modelyard.domain.evaluation.metrics import Metric, MetricKind, RunRow, metric_names, rows
from modelyard.domain.evaluation.run import EvaluationRun, Outcome
from modelyard.errors import InvalidInput
from modelyard.formats.json import dumps
from modelyard.report import junit, markdown
from modelyard.report.evaluations.export import Format, RunRows, run_lines, save_report
from modelyard.report.evaluations.run_page import run_content
from modelyard.report.html import fragment, page, tag
from modelyard.report.numbers import (
    clusters_text,
    confidence_text,
    count_text,
    direction_text,
    equal_rows_text,
    interval_text,
    mean_text,
    money_text,
    ref_text,
    seconds_text,
    value_text,
)
from modelyard.report.table import printable, text_table

SHOWN_ERRORS = 3
SHOWN_ROWS = 5
SHOWN_IN_NOTEBOOK = 10


@attrs.frozen(repr=False)
class RunReport:
    """A run in numbers and row by row. `print` it, leave it at the end of a notebook's cell, or save it.

    report = platform.evaluations.report(run)
    report.save("run.html")
    """

    run: EvaluationRun
    aggregate: Aggregate
    rows: RunRows = attrs.field(eq=False)

    def metric(self, name: str) -> MetricSummary:
        """Return the summary of the metric of this name. Raises `InvalidInput` naming those that exist."""
        for summary in self.aggregate.metrics:
            if summary.name == name:
                return summary
        known = ", ".join(summary.name for summary in self.aggregate.metrics) or "none"
        raise InvalidInput.at("metric", msg=f"must be a metric of the run: {known}")

    def export(self, format: Format = "jsonl") -> Iterator[bytes]:
        """Export every prediction with its scores, as JSON Lines or CSV. The rows are read lazily."""
        return run_lines(self.rows, format)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file of the kind that its ending names: .html, .md, .xml (JUnit), .jsonl or .csv. Raises
        `InvalidInput`."""
        save_report(self, path)

    @property
    def html(self) -> str:
        """The whole page, which needs no other file. It shows the rows that were kept, and says so."""
        return page(self._title, tag("h1", self._title), *run_content(self.run, self.aggregate))

    @property
    def markdown(self) -> str:
        """The numbers, and the rows with errors and the lowest scores, for a comment on a pull request."""
        return markdown.joined(_paragraphs(self._title, self.run, self.aggregate))

    @property
    def junit(self) -> str:
        """The rows as cases in the XML of JUnit: a row fails if some trial has a score that is false, or 0 in a metric
        that has bools, too."""
        found = list(rows(self.rows.full()))
        bools = {one.metric for row in found for one in row.readings if one.kind is MetricKind.BINARY}
        return junit.suite(self._title, (_case(row, bools) for row in found))

    def _repr_html_(self) -> str:
        return fragment(tag("h3", self._title), *run_content(self.run, self.aggregate, SHOWN_IN_NOTEBOOK))

    @property
    def _title(self) -> str:
        return f"{ref_text(self.run.model)} on {ref_text(self.run.evaluation)}"

    def __repr__(self) -> str:
        return f"<RunReport of {self.run.id}: {self.aggregate.rows} rows>"

    def __str__(self) -> str:
        return "\n".join(_lines(self.run, self.aggregate))


def _lines(run: EvaluationRun, found: Aggregate) -> Iterator[str]:
    yield f"evaluation run {printable(run.id)}, {run.state.value}"
    yield f"{printable(ref_text(run.model))} on {printable(ref_text(run.evaluation))}"
    counts = (found.rows, found.trials, found.failed)
    yield "{} rows, {} trials, {} rows with errors".format(*map(count_text, counts))
    if found.equal_rows:
        yield equal_rows_text(found)
    if found.metrics:
        yield ""
        yield text_table(_headers(found), [_cells(summary) for summary in found.metrics], right=_headers(found)[1:])
        yield ""
        yield from _notes(found)
    for note in found.failures[:SHOWN_ERRORS]:
        yield f"row {note.digest[:10]}: {printable(note.detail)}"
    yield from _spent(found)


def _paragraphs(title: str, run: EvaluationRun, found: Aggregate) -> Iterator[str]:
    yield f"### {markdown.plain(title)}"
    failed = f", {count_text(found.failed)} with errors" if found.failed else ""
    yield f"{run.state.value}, {count_text(found.rows)} rows, {count_text(found.trials)} trials{failed}"
    headers = _headers(found)
    if found.metrics:
        cells = ([markdown.plain(cell) for cell in _cells(summary)] for summary in found.metrics)
        yield markdown.table(headers, cells, right=headers[1:])
        yield "\n".join(f"* {markdown.plain(note)}" for note in (*_notes(found), *_spent(found)))
    if found.failures:
        shown = found.failures[:SHOWN_ROWS]
        lines = [_code(note.digest[:10], note.detail, note.inputs) for note in shown]
        yield markdown.folded("rows with errors", markdown.table(("row", "what went wrong", "inputs"), lines))
    for one in found.metrics:
        worst = one.worst[:SHOWN_ROWS]
        lines = [_code(value_text(note.value, one.kind), note.digest[:10], note.inputs, note.output) for note in worst]
        if lines:
            table = markdown.table((markdown.plain(one.name), "row", "inputs", "output"), lines)
            yield markdown.folded(f"the worst rows by {one.name}", table)


def _code(*cells: object) -> list[str]:
    return [markdown.code(cell) for cell in cells]


def _case(row: RunRow, bools: Container[Metric]) -> junit.Case:
    found = row.readings
    names = metric_names(reading.metric for reading in found)
    broken = [f"{names[one.metric]}: {one.reason}" for one in found if one.outcome is Outcome.SCORER_ERROR]
    missed = dict.fromkeys(names[one.metric] for one in found if one.value == 0 and one.metric in bools)
    return junit.Case(
        name=row.digest[:10],
        failure=f"false: {', '.join(missed)}" if missed else "",
        error="; ".join([*row.failures, *broken]),
        details=f"inputs: {dumps(row.inputs).decode()}\noutput: {dumps(row.output).decode()}",
    )


def _headers(found: Aggregate) -> tuple[str, ...]:
    sure = confidence_text(found.options.confidence)
    return ("metric", "mean", sure, "all trials", "scored", "unscored", "scorer errors", "model errors")


def _cells(one: MetricSummary) -> tuple[object, ...]:
    counts = (one.scored, one.unscored, one.scorer_errors, one.model_errors)
    mean = " / ".join(f"{text} {count}" for text, count in list(one.texts.items())[:3]) or mean_text(one.mean, one.kind)
    return (
        f"{one.name}{direction_text(one.lower_is_better)}",
        mean,
        interval_text(one.interval, one.kind),
        mean_text(one.pessimistic, one.kind),
        *map(count_text, counts),
    )


def _notes(found: Aggregate) -> Iterator[str]:
    yield f"all trials: {found.options.policy}"
    if found.trials != found.rows:
        yield f"trials of a row reduced by {found.options.reducer}"
    if found.options.cluster_by is not None:
        yield f"intervals{clusters_text(found.options.cluster_by)}"


def _spent(found: Aggregate) -> Iterator[str]:
    if found.latency is not None:
        times = (found.latency.mean, found.latency.p50, found.latency.p95)
        yield "latency: mean {}, p50 {}, p95 {}".format(*map(seconds_text, times))
    for one in found.usage:
        if (one.prompt_tokens, one.completion_tokens, one.cost) != (None, None, None):
            inherited = ", inherited" if one.inherited else ""
            tokens = f"{count_text(one.prompt_tokens)} + {count_text(one.completion_tokens)} tokens"
            name = printable(ref_text(one.name))
            yield f"{one.role} {name}{inherited}: {one.calls:,} calls, {tokens}, {money_text(one.cost)}"
