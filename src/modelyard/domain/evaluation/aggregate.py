"""The aggregates of a run: one function, so that every view shows the same numbers (specification 4.5)."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Unpack

import attrs

from modelyard.domain.canonical import shortened
from modelyard.domain.evaluation.metrics import (
    Metric,
    MetricColumn,
    MetricKind,
    Reading,
    RunRow,
    ScoredPrediction,
    check_lower_is_better,
    is_lower_better,
    metric_names,
    rows,
    single_number,
)
from modelyard.domain.evaluation.reducers import Reducer
from modelyard.domain.evaluation.run import Outcome
from modelyard.domain.evaluation.running_totals import Latency, NSmallest, UsageSummary
from modelyard.domain.evaluation.statistics import (
    Distribution,
    Interval,
    Numbers,
    clustered_rate,
    describe,
    student,
    wilson,
)
from modelyard.domain.evaluation.summary import Aggregate, MetricSummary, ReportKeywords, ReportOptions, RowNote

MAX_METRICS = 200
MAX_TEXTS = 1000
MAX_LABEL = 200
KEEP = 100
OTHERS = "(others)"


# ---- the function ------------------------------------------------------------------------------------------------


def aggregate(scored: Iterable[ScoredPrediction], *, keep: int = KEEP, **options: Unpack[ReportKeywords]) -> Aggregate:
    """Aggregate scored predictions, which must come in the order of the row digests (see `metrics.rows`). Options are
    the fields of `ReportOptions`. Memory holds one number a row and metric, and at most `keep` rows. Raises
    `InvalidInput`."""
    found = _Aggregation(ReportOptions(**options), keep)
    for row in rows(scored):
        found.add(row)
    check_lower_is_better(found.options.lower_is_better, found.leaves)
    return found.result(found.summaries(found.with_numbers), found.spending.latency)


def aggregate_means(scored: Iterable[ScoredPrediction]) -> Aggregate:
    found = _Aggregation(ReportOptions(), 0)
    for row in rows(scored):
        found.add(row)
    return found.result(found.summaries(found.with_mean), None)


# ---- counting ----------------------------------------------------------------------------------------------------


@attrs.define
class _Leaf:
    reduce: Reducer
    keep: int
    lower_is_better: bool
    columns: dict[MetricKind, MetricColumn] = attrs.field(factory=dict)
    worst: dict[MetricKind, NSmallest[tuple[RunRow, float]]] = attrs.field(factory=dict)
    texts: Counter[str] = attrs.field(factory=Counter)
    reasons: Counter[str] = attrs.field(factory=Counter)

    def take(self, number: int, row: RunRow, kind: MetricKind, values: Sequence[float]) -> None:
        column = self.columns.get(kind)
        if column is None:
            column = self.columns[kind] = MetricColumn(self.reduce, self.lower_is_better)
            self.worst[kind] = NSmallest(self.keep)
        value = column.put(number, values, len(row.trials) - len(values))
        self.worst[kind].offer(-value if self.lower_is_better else value, (row, value))

    def take_text(self, text: str) -> None:
        """Count a string; when there are many different ones, count a new one among the others."""
        label = shortened(text, MAX_LABEL)
        self.texts[label if label in self.texts or len(self.texts) < MAX_TEXTS else OTHERS] += 1

    @property
    def kinds(self) -> dict[MetricKind, int]:
        counts = {kind: column.trials for kind, column in self.columns.items()}
        counts[MetricKind.TEXT] = self.texts.total()
        found = sorted((kind for kind in MetricKind if counts.get(kind)), key=lambda kind: -counts[kind])
        return {kind: counts[kind] for kind in found}


_WithNumbers = Callable[[MetricSummary, _Leaf, MetricKind], MetricSummary]


@attrs.define
class _Aggregation:
    options: ReportOptions
    keep: int
    rows: int = 0
    trials: int = 0
    model_errors: int = 0
    failed: int = 0
    possibly_repeated: int = 0
    omitted: int = 0
    equal_rows: int = 0
    leaves: dict[Metric, _Leaf] = attrs.field(factory=dict)
    scorer_errors: Counter[str] = attrs.field(factory=Counter)
    failures: list[RowNote] = attrs.field(factory=list)
    clusters: list[str] = attrs.field(factory=list)
    spending: UsageSummary = attrs.field(factory=UsageSummary)

    def add(self, row: RunRow) -> None:
        if self.options.cluster_by is not None:
            self.clusters.append(row.cluster(self.options.cluster_by))
        for prediction, scores in row.trials:
            self.spending.add(prediction, scores)
            self.possibly_repeated += prediction.possibly_repeated
        self.trials += len(row.trials)
        if not self._took_single(row):
            self._take_any(row)
        self.rows += 1

    def _took_single(self, row: RunRow) -> bool:
        found = single_number(row)
        if found is None:
            return False
        leaf = self._leaf(found[0])
        if leaf is None:
            self.omitted += 1
        else:
            leaf.take(self.rows, row, found[1], found[2:])
        return True

    def _take_any(self, row: RunRow) -> None:
        self.equal_rows += row.copies
        errors = [f"model: {error}" for error in row.failures]
        self.model_errors += len(errors)
        numbers: dict[tuple[Metric, MetricKind], list[float]] = {}
        for reading in row.readings:
            self._take(reading, numbers, errors)
        for (metric, kind), values in numbers.items():
            self.leaves[metric].take(self.rows, row, kind, values)
        self._note_errors(row, errors)

    def _take(self, reading: Reading, numbers: dict[tuple[Metric, MetricKind], list[float]], errors: list[str]) -> None:
        if reading.outcome is Outcome.SCORER_ERROR:
            self.scorer_errors[reading.metric.scorer] += 1
            errors.append(f"{metric_names([reading.metric])[reading.metric]}: {reading.reason}")
            return
        leaf = self._leaf(reading.metric)
        if leaf is None:
            self.omitted += 1
        elif reading.kind is None:
            leaf.reasons[shortened(reading.reason, MAX_LABEL)] += 1
        elif reading.kind is MetricKind.TEXT:
            leaf.take_text(reading.value)
        else:
            numbers.setdefault((reading.metric, reading.kind), []).append(reading.value)

    def _leaf(self, metric: Metric) -> _Leaf | None:
        found = self.leaves.get(metric)
        if found is None and len(self.leaves) < MAX_METRICS:
            found = self._new_leaf(metric)
        return found

    def _new_leaf(self, metric: Metric) -> _Leaf:
        lower = is_lower_better(metric, self.options.lower_is_better)
        found = self.leaves[metric] = _Leaf(self.options.reduce, self.keep, lower)
        return found

    def _note_errors(self, row: RunRow, errors: Sequence[str]) -> None:
        if errors:
            self.failed += 1
        if errors and len(self.failures) < self.keep:
            self.failures.append(RowNote.of(row, detail=shortened("; ".join(errors))))

    # ---- the numbers

    def result(self, metrics: tuple[MetricSummary, ...], latency: Latency | None) -> Aggregate:
        return Aggregate(
            self.rows,
            self.trials,
            self.model_errors,
            self.options,
            metrics,
            latency,
            self.spending.usage,
            self.failed,
            tuple(self.failures),
            self.possibly_repeated,
            self.omitted,
            self.equal_rows,
        )

    def summaries(self, with_numbers: _WithNumbers) -> tuple[MetricSummary, ...]:
        self._drop_empty()
        for scorer in self.scorer_errors.keys() - {metric.scorer for metric in self.leaves}:
            self._new_leaf(Metric(scorer))
        names = metric_names(self.leaves)
        ordered = sorted(self.leaves, key=lambda metric: names[metric])
        return tuple(self._summary(metric, names[metric], with_numbers) for metric in ordered)

    def _drop_empty(self) -> None:
        """Drop the leaves without any value that have leaves below them, and count their missing values there. An
        example is the null of a scorer that usually returns an object."""
        for empty in [metric for metric, leaf in self.leaves.items() if not leaf.kinds]:
            below = [metric for metric in self.leaves if _is_below(metric, empty)]
            for metric in below:
                self.leaves[metric].reasons.update(self.leaves[empty].reasons)
            if below:
                del self.leaves[empty]

    def _summary(self, metric: Metric, name: str, with_numbers: _WithNumbers) -> MetricSummary:
        leaf, kinds = self.leaves[metric], self.leaves[metric].kinds
        kind = next(iter(kinds), None)
        scored = 0 if kind is None else kinds[kind]
        errors = self.scorer_errors[metric.scorer]
        unscored = self.trials - self.model_errors - errors - scored
        counts = (scored, unscored, errors, self.model_errors)
        reasons = _reasons(leaf, kinds, unscored)
        if kind is None:
            return MetricSummary(metric, name, None, *counts, reasons=reasons)
        if kind is MetricKind.TEXT:
            return MetricSummary(metric, name, kind, *counts, texts=dict(leaf.texts.most_common()), reasons=reasons)
        return with_numbers(MetricSummary(metric, name, kind, *counts, reasons=reasons), leaf, kind)

    def with_mean(self, summary: MetricSummary, leaf: _Leaf, kind: MetricKind) -> MetricSummary:
        values = leaf.columns[kind].present
        return attrs.evolve(summary, numbers=Numbers(len(values), math.fsum(values) / len(values)))

    def with_numbers(self, summary: MetricSummary, leaf: _Leaf, kind: MetricKind) -> MetricSummary:
        column, confidence = leaf.columns[kind], self.options.confidence
        column.fill(self.rows)
        values = column.present
        clusters = [
            one for one, value in zip(self.clusters, column.values, strict=bool(self.clusters)) if value == value
        ]
        numbers = describe(values, clusters)
        groups = len(set(clusters)) if clusters else len(values)
        return attrs.evolve(
            summary,
            numbers=numbers,
            interval=_interval(kind, values, numbers, column.trials, groups, confidence),
            pessimistic=math.fsum(column.pessimistic(column.worst)) / self.rows,
            distribution=Distribution.of(values),
            worst=tuple(RowNote.of(row, float(value)) for row, value in leaf.worst[kind].items),
            lower_is_better=leaf.lower_is_better,
        )


def _interval(
    kind: MetricKind, values: Sequence[float], numbers: Numbers, trials: int, groups: int, confidence: float
) -> Interval | None:
    """Return the interval of the mean of row values, of which so many `groups` are independent."""
    if kind is not MetricKind.BINARY:
        return student(numbers, groups, confidence)
    if groups == len(values) and all(value in (0.0, 1.0) for value in values):
        return wilson(round(math.fsum(values)), len(values), confidence)
    return clustered_rate(numbers, trials, groups, confidence)


def _is_below(metric: Metric, above: Metric) -> bool:
    depth = len(above.path)
    return metric.scorer == above.scorer and len(metric.path) > depth and metric.path[:depth] == above.path


def _reasons(leaf: _Leaf, kinds: Mapping[MetricKind, int], unscored: int) -> dict[str, int]:
    found = Counter(leaf.reasons)
    for kind in list(kinds)[1:]:
        found[f"{kind}, where most values are {next(iter(kinds))}"] += kinds[kind]
    found["there is no score"] += unscored - found.total()
    return dict((+found).most_common())
