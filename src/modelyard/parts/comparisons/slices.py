"""A run by the values of a field: each slice in numbers, and whether it differs from the other rows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import attrs

from modelyard.domain.canonical import canonical_json, shortened
from modelyard.domain.evaluation.aggregate import Aggregate, MetricSummary, ReportOptions, aggregate
from modelyard.domain.evaluation.comparison import holm_of_some
from modelyard.domain.evaluation.metrics import MetricKind, RunRow, ScoredPrediction, row_values, rows
from modelyard.domain.evaluation.statistics import describe, t_tail
from modelyard.errors import InvalidInput, nearest
from modelyard.parts.comparisons.sheet import Sheet, SheetTable, Shown
from modelyard.report.evaluations.run import RunReport
from modelyard.report.numbers import (
    clusters_text,
    confidence_text,
    count_text,
    difference_text,
    interval_text,
    mean_text,
    model_text,
    p_text,
)

MOST_SLICES = 50
NUMBERS = ("rows", "mean", "interval", "to the others", "p")
Values = Mapping[str, Sequence[tuple[float, str]]]
"""The values of a metric by slices, each with its cluster."""


@attrs.frozen
class SliceMetric:
    """A metric on the rows of a slice. `difference` is the mean minus that of all other rows; `p` is that of Fisher's
    exact test if all values are 0 or 1, else of Welch's t-test; `corrected` is Holm's over all slices and metrics.
    None where there are too few rows to test. The `interval` of the summary is one of as many as there are slices and
    metrics that hold together (Bonferroni)."""

    slice: str
    summary: MetricSummary
    difference: float | None
    p: float | None
    corrected: float | None = None


@attrs.frozen(repr=False, slots=False)
class Slices(Shown):
    """A run by the values of a field of its rows: `platform.evaluations.report(run).by("topic")`."""

    field: str
    title: str
    options: ReportOptions
    metrics: tuple[SliceMetric, ...]

    def slice(self, value: object) -> dict[str, SliceMetric]:
        """Return the metrics of a slice by their names. Raises `InvalidInput` naming the nearest slice."""
        wanted = _label(value)
        found = {one.summary.name: one for one in self.metrics if one.slice == wanted}
        if not found:
            known = {one.slice for one in self.metrics}
            raise InvalidInput.at("slice", msg=f"no row has {self.field} {wanted!r}{nearest(wanted, known)}")
        return found

    def __repr__(self) -> str:
        return f"<Slices by {self.field}: {len({one.slice for one in self.metrics})}>"

    @cached_property
    def sheet(self) -> Sheet:
        names = dict.fromkeys(one.summary.name for one in self.metrics)
        tables = [SheetTable(name, (self.field, *NUMBERS), list(self._lines(name)), NUMBERS) for name in names]
        tested = sum(one.p is not None for one in self.metrics)
        sure = f"intervals hold together at {confidence_text(self.options.confidence)} (Bonferroni)"
        clusters = clusters_text(self.options.cluster_by)
        note = f"{sure}{clusters}; p of a slice against all other rows, corrected for {tested} tests (Holm)"
        return Sheet(self.title, list(self._sentences()), tables, [note])

    def _lines(self, name: str) -> Iterator[Sequence[object]]:
        for one in self.metrics:
            found = one.summary
            if found.name == name:
                yield (
                    one.slice,
                    count_text(0 if found.numbers is None else found.numbers.count),
                    mean_text(found.mean, found.kind),
                    interval_text(found.interval, found.kind),
                    difference_text(one.difference, found.kind or MetricKind.CONTINUOUS),
                    p_text(one.corrected),
                )

    def _sentences(self) -> Iterator[str]:
        shown = [one for one in self.metrics if one.corrected is not None and one.corrected <= self._least]
        for one in shown:
            way = "higher" if (one.difference or 0.0) > 0 else "lower"
            yield f"{self.field} {one.slice} is {way} on {one.summary.name} than the other rows."
        if not shown:
            yield "No slice is shown to differ from the other rows."

    @property
    def _least(self) -> float:
        return 1 - self.options.confidence


def run_slices(report: RunReport, field: str) -> Slices:
    """Report a run by the values that its rows have in a field of their inputs, with the options of the report. Raises
    `InvalidInput` for a field that no row has, and for one with more than `MOST_SLICES` values."""
    options = report.aggregate.options
    slice_of, values = _read(report, field)
    names = sorted(set(slice_of.values()))
    numbers = {name: _numbers(report, slice_of, name, options, len(values) * len(names)) for name in names}
    found = [
        SliceMetric(name, summary, *_against_others(values.get(summary.name, {}), name, summary))
        for name in names
        for summary in numbers[name].metrics
        if summary.kind is not MetricKind.TEXT
    ]
    ps = holm_of_some([one.p for one in found])
    corrected = tuple(attrs.evolve(one, corrected=p) for one, p in zip(found, ps, strict=True))
    return Slices(field, f"{model_text(report.run)} by {field}", options, corrected)


def _read(report: RunReport, field: str) -> tuple[dict[str, str], dict[str, dict[str, list[tuple[float, str]]]]]:
    """Return the slice of each row by its digest, and the values of each metric by slices."""
    options, slice_of = report.aggregate.options, dict[str, str]()
    names = {one.metric: one.name for one in report.aggregate.metrics}
    values: dict[str, dict[str, list[tuple[float, str]]]] = {}
    labels = set[str]()
    for row in rows(report.rows.full()):
        label = _label_of(row, field)
        slice_of[row.digest] = label
        labels.add(label)
        if len(labels) > MOST_SLICES:
            raise InvalidInput.at(
                "field", msg=f"{field!r} has more than {MOST_SLICES} values; name one that rows share"
            )
        cluster = "" if options.cluster_by is None else row.cluster(options.cluster_by)
        for metric, value in row_values(row, names, options.reduce).items():
            values.setdefault(names[metric], {}).setdefault(label, []).append((float(value), cluster))
    return slice_of, values


def _label_of(row: RunRow, field: str) -> str:
    if field not in row.inputs:
        near = nearest(field, row.inputs)
        raise InvalidInput.at("field", msg=f"the row {row.digest[:10]} has no input {field!r}{near}")
    return _label(row.inputs[field])


def _label(value: object) -> str:
    return shortened(value) if isinstance(value, str) else canonical_json(value)


def _numbers(report: RunReport, slice_of: Mapping[str, str], name: str, options: ReportOptions, of: int) -> Aggregate:
    scored: Iterator[ScoredPrediction] = report.rows.columns() if options.cluster_by is None else report.rows.full()
    return aggregate(
        (one for one in scored if slice_of[one[0].row_digest] == name),
        keep=0,
        reducer=options.reducer,
        cluster_by=options.cluster_by,
        confidence=1 - (1 - options.confidence) / max(1, of),
    )


# ---- a slice against the others


def _against_others(values: Values, name: str, summary: MetricSummary) -> tuple[float | None, float | None]:
    here, others = values.get(name, ()), [one for key, some in values.items() if key != name for one in some]
    if not here or not others:
        return None, None
    one, other = ([value for value, _ in some] for some in (here, others))
    difference = math.fsum(one) / len(one) - math.fsum(other) / len(other)
    clusters = [[cluster for _, cluster in some] for some in (here, others)]
    if clusters[0][0] == "" and {*one, *other} <= {0.0, 1.0}:
        return difference, fisher(one.count(1.0), len(one), other.count(1.0), len(other))
    return difference, _welch(one, other, clusters)


def _welch(one: Sequence[float], other: Sequence[float], clusters: Sequence[Sequence[str]]) -> float | None:
    """Return p of Welch's t-test, with clustered errors, and the clusters as what is independent, if there are any."""
    clustered = clusters[0][0] != ""
    parts = [describe(some, of if clustered else ()) for some, of in zip((one, other), clusters, strict=True)]
    counts = [len(set(of)) if clustered else len(some) for some, of in zip((one, other), clusters, strict=True)]
    if any(part.error is None for part in parts) or min(counts) < 2:
        return None
    squares = [(part.error or 0.0) ** 2 for part in parts]
    difference = abs((parts[0].mean or 0.0) - (parts[1].mean or 0.0))
    if not sum(squares):
        return 1.0 if difference == 0 else 0.0
    freedom = sum(squares) ** 2 / sum(square**2 / (count - 1) for square, count in zip(squares, counts, strict=True))
    return min(1.0, 2 * t_tail(difference / math.sqrt(sum(squares)), max(1, math.floor(freedom))))


def fisher(passed: int, count: int, others_passed: int, others: int) -> float:
    """Return the two-sided p of Fisher's exact test: the chance of a table at most as likely as this one."""
    total, whole = passed + others_passed, count + others
    logs = [
        _log_binomial(count, at) + _log_binomial(others, total - at) - _log_binomial(whole, total)
        for at in range(max(0, total - others), min(count, total) + 1)
    ]
    seen = _log_binomial(count, passed) + _log_binomial(others, others_passed) - _log_binomial(whole, total)
    return min(1.0, math.fsum(math.exp(log) for log in logs if log <= seen + 1e-7))


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
