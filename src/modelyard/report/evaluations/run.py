"""The report of a run: as text, in a notebook, as one HTML page, and row by row."""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import attrs

from modelyard import report
from modelyard.domain.evaluation.aggregate import Aggregate, MetricSummary
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.errors import InvalidInput, MissingPart, nearest
from modelyard.report.evaluations.export import Format, RunRows, run_lines, save_report
from modelyard.report.numbers import (
    alike,
    clusters_text,
    confidence_text,
    count_text,
    direction_text,
    equal_rows_text,
    errors_text,
    interval_text,
    mean_text,
    model_text,
    money_text,
    primary_first,
    ref_text,
    seconds_text,
)
from modelyard.report.table import printable, text_table

SHOWN_ERRORS = 3


@attrs.frozen(repr=False)
class RunReport:
    """A run in numbers and row by row. `print` it, leave it at the end of a notebook's cell, or save it.

    report = platform.evaluations.report(run)
    report.save("run.html")
    """

    run: EvaluationRun
    aggregate: Aggregate
    rows: RunRows = attrs.field(eq=False)
    remarks: tuple[str, ...] = attrs.field(default=(), eq=False)

    def metric(self, name: str) -> MetricSummary:
        """Return the summary of the metric of this name. Raises `InvalidInput` naming those that exist."""
        for summary in self.aggregate.metrics:
            if summary.name == name:
                return summary
        known = [summary.name for summary in self.aggregate.metrics]
        meant = nearest(name, known)
        raise InvalidInput.at("metric", msg=f"must be a metric of the run: {', '.join(known) or 'none'}{meant}")

    def by(self, field: str) -> Any:
        """Report the run by the values that its rows have in a field: a table a metric, a line a slice, with intervals
        and p corrected for how many there are. Raises `InvalidInput`."""
        return report.run_slices(self, field)

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
        return report.run_html(self)

    @property
    def markdown(self) -> str:
        """The numbers, and the rows with errors and the lowest scores, for a comment on a pull request."""
        return report.run_markdown(self)

    @property
    def junit(self) -> str:
        """The rows as cases in the XML of JUnit: a row fails if some trial has a score that is false, or 0 in a metric
        that has bools, too."""
        return report.run_junit(self)

    def _repr_html_(self) -> str:
        return report.run_notebook(self)

    def __repr__(self) -> str:
        return f"<RunReport of {self.run.id}: {self.aggregate.rows} rows>"

    def __str__(self) -> str:
        lines = [*_lines(self.run, self.aggregate), *map(printable, self.remarks)]
        with suppress(MissingPart):
            lines += map(printable, report.cluster_notes(self))
        return "\n".join(lines)


def _lines(run: EvaluationRun, found: Aggregate) -> Iterator[str]:
    told = f"{printable(model_text(run))} on {printable(ref_text(run.evaluation))}"
    yield f"{told}  (run {printable(run.id)}, {run.state.value})"
    counts = map(count_text, (found.rows, found.trials, found.failed))
    yield "{} rows, {} trials, {} rows {}".format(*counts, errors_text(found))
    if found.equal_rows:
        yield equal_rows_text(found)
    if found.metrics:
        yield ""
        yield text_table(
            headers(found), [cells(one) for one in primary_first(run, found.metrics)], right=headers(found)[1:]
        )
        yield ""
        yield from notes(found)
    for note, *others in alike(found.failures)[:SHOWN_ERRORS]:
        more = f" and {count_text(len(others))} more" if others else ""
        yield f"row {note.digest[:10]}{more}: {printable(note.detail)}"
    for one in found.metrics:
        for reason, count in [*one.reasons.items()][:1]:
            yield f"{count_text(count)} unscored by {one.name}: {printable(reason)}"
    yield from spent(found)


def headers(found: Aggregate) -> tuple[str, ...]:
    sure = confidence_text(found.options.confidence)
    return ("metric", "mean", sure, "all trials", "scored", "unscored", "scorer errors", "model errors")


def cells(one: MetricSummary) -> tuple[object, ...]:
    counts = (one.scored, one.unscored, one.scorer_errors, one.model_errors)
    mean = " / ".join(f"{text} {count}" for text, count in list(one.texts.items())[:3]) or mean_text(one.mean, one.kind)
    return (
        f"{one.name}{direction_text(one.lower_is_better)}",
        mean,
        interval_text(one.interval, one.kind),
        mean_text(one.pessimistic, one.kind),
        *map(count_text, counts),
    )


def notes(found: Aggregate) -> Iterator[str]:
    yield f"all trials: {found.options.policy}"
    if found.trials != found.rows:
        yield f"trials of a row reduced by {found.options.reducer}"
    if found.options.cluster_by is not None:
        yield f"intervals{clusters_text(found.options.cluster_by)}"


def spent(found: Aggregate) -> Iterator[str]:
    if found.latency is not None:
        times = (found.latency.mean, found.latency.p50, found.latency.p95)
        yield "latency: mean {}, p50 {}, p95 {}".format(*map(seconds_text, times))
    for one in found.usage:
        if (one.prompt_tokens, one.completion_tokens, one.cost) != (None, None, None):
            inherited = ", inherited" if one.inherited else ""
            tokens = f"{count_text(one.prompt_tokens)} + {count_text(one.completion_tokens)} tokens"
            name = printable(ref_text(one.name))
            yield f"{one.role} {name}{inherited}: {one.calls:,} calls, {tokens}, {money_text(one.cost)}"
