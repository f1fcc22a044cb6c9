"""The numbers of a run: one function aggregates them, so that every view shows the same ones (specification 4.5)."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any, TypedDict, Unpack

import attrs

from modelyard.domain import usage as money
from modelyard.domain.canonical import shortened
from modelyard.domain.evaluation.metrics import (
    Metric,
    MetricColumn,
    MetricKind,
    Reading,
    Reducer,
    RunRow,
    ScoredPrediction,
    check_lower_is_better,
    is_lower_better,
    mean_text,
    metric_names,
    reducer_of,
    rows,
    single_number,
)
from modelyard.domain.evaluation.objects import same_scheme
from modelyard.domain.evaluation.run import Outcome
from modelyard.domain.evaluation.running_totals import Latency, NSmallest, RoleUsage, UsageSummary, total_cost
from modelyard.domain.evaluation.statistics import (
    CONFIDENCE,
    Distribution,
    Interval,
    Numbers,
    bounded_mean,
    clustered_rate,
    describe,
    student,
    wilson,
)
from modelyard.domain.record import EMPTY, in_notebook
from modelyard.errors import InvalidInput

# ---- options -----------------------------------------------------------------------------------------------------


def _known(_: object, __: object, reducer: str) -> None:
    reducer_of(reducer)


def _sensible(_: object, __: object, confidence: float) -> None:
    if not isinstance(confidence, float) or not 0.5 <= confidence < 1:
        raise InvalidInput.at("confidence", msg="must be at least 0.5 and below 1, such as 0.95")


def _names(names: str | Iterable[str]) -> frozenset[str]:
    return frozenset([names] if isinstance(names, str) else names)


@attrs.frozen
class ReportOptions:
    """The trials of a row are reduced first, by `reducer`: "mean", "median", "min", "max", "pass@5" or "pass^5".

    The last two, for any number k, are the expected best and worst of k trials: of bools, the chances that one of k
    passes, and that all k do. Every row must have so many. `cluster_by` names an input that related rows have in
    common, such as the text that several questions are about: standard errors, intervals and p then allow for it.
    `confidence` is that of the intervals. `lower_is_better` names the metrics of which lower values are better, such as
    a length; the name of a scorer stands for all of its metrics. Raises `InvalidInput`.
    """

    reducer: str = attrs.field(default="mean", validator=_known)
    cluster_by: str | None = None
    confidence: float = attrs.field(default=CONFIDENCE, validator=_sensible)
    lower_is_better: frozenset[str] = attrs.field(default=frozenset(), converter=_names)

    @property
    def reduce(self) -> Reducer:
        return reducer_of(self.reducer)

    def check_trials(self, count: int) -> None:
        """Raise `InvalidInput` if a row has too few trials for the reducer."""
        if count < self._drawn:
            msg = f"{self.reducer} draws {self._drawn} trials of each row, and a row has {count}"
            raise InvalidInput.at("reducer", msg=msg)

    @cached_property
    def _drawn(self) -> int:
        return int(self.reducer[5:]) if self.reducer.startswith("pass") else 0

    @property
    def policy(self) -> str:
        """How the pessimistic mean counts trials that have no value."""
        low = "a missing value counts as 0 (false), or as the lowest value where that is below 0"
        high = "where lower is better, as 1 (true), or as the highest value where that is above 1"
        return f"{low}; {high}" if self.lower_is_better else low


class ReportKeywords(TypedDict, total=False):
    reducer: str
    cluster_by: str | None
    confidence: float
    lower_is_better: str | Iterable[str]


# ---- numbers -----------------------------------------------------------------------------------------------------


@attrs.frozen
class RowNote:
    """A row to look at, its inputs and the first trial's output shortened. `value` is the row's value of a metric;
    `detail` is what went wrong; `comment` is what the scorer says of its value."""

    digest: str
    inputs: str
    output: str
    value: float | None = None
    detail: str = ""
    comment: str = ""

    @classmethod
    def of(cls, row: RunRow, value: float | None = None, detail: str = "") -> "RowNote":
        return cls(row.digest, shortened(row.inputs), shortened(row.output), value, detail)


@attrs.frozen
class MetricSummary:
    """One metric of a run: `scored + unscored + scorer_errors + model_errors = trials`.

    `numbers` are over the rows that have a value, trials reduced first, bools as 0 and 1; None if no row has one.
    `interval` is that of their mean: Wilson's for bools (of a rate of trials `statistics.clustered_rate`), of numbers
    from 0 to 1 `statistics.bounded_mean`, else Student's. `pessimistic` is the mean over all rows, by
    `ReportOptions.policy`. `texts` counts answers that are text, the most frequent first; `reasons` why trials are
    unscored. `worst` are the rows with the worst values, the worst first.
    """

    metric: Metric
    name: str
    kind: MetricKind | None
    scored: int
    unscored: int
    scorer_errors: int
    model_errors: int
    numbers: Numbers | None = None
    interval: Interval | None = None
    pessimistic: float | None = None
    texts: Mapping[str, int] = EMPTY
    reasons: Mapping[str, int] = EMPTY
    distribution: Distribution | None = None
    worst: tuple[RowNote, ...] = ()
    lower_is_better: bool = False

    _repr_html_ = in_notebook

    def __str__(self) -> str:
        value = "no value" if self.mean is None else mean_text(self.mean, self.kind)
        ends = (self.interval.low, self.interval.high) if self.interval else ()
        between = " to ".join(mean_text(end, self.kind) for end in ends)
        between = f" ({between})" if between else ""
        return f"{self.name} {value}{between}, {self.scored} of {self.trials} scored"

    @property
    def trials(self) -> int:
        return self.scored + self.unscored + self.scorer_errors + self.model_errors

    @property
    def mean(self) -> float | None:
        """The headline: the mean over the rows that have a value, of bools the rate; None when no row has one."""
        return None if self.numbers is None else self.numbers.mean


@attrs.frozen
class Aggregate:
    """A run in numbers. `failed` is how many rows there are on which the model or a scorer failed, and `failures` the
    first of them.

    `possibly_repeated` counts calls that a kill may have caused to be made twice, `omitted` values of metrics beyond
    the first `MAX_METRICS`, and `equal_rows` the rows that equal another one and are counted as trials of it.
    """

    rows: int
    trials: int
    model_errors: int
    options: ReportOptions
    metrics: tuple[MetricSummary, ...]
    latency: Latency | None
    usage: tuple[RoleUsage, ...]
    failed: int = 0
    failures: tuple[RowNote, ...] = ()
    possibly_repeated: int = 0
    omitted: int = 0
    equal_rows: int = 0

    @property
    def cost(self) -> Decimal | None:
        """USD that this run cost, judges included and inherited cost left out; None when nothing was reported."""
        return total_cost(self.usage)


# ---- what is stored with a run -----------------------------------------------------------------------------------


def run_summary(found: Aggregate, scorers: Mapping[str, str]) -> Mapping[str, Any]:
    """Summarise a run: the counts and the mean of each metric, the headline before them, and the usage by role.
    `scorers` are the references of the scorers' versions by name; the first is the headline. A scorer that returns
    objects has an entry for each leaf, "judge.tone", and no mean as a headline."""
    entries = {name: entry for item in scorers.items() for name, entry in _entries(found, *item).items()}
    headline = next(iter(scorers), None)
    return {
        **({} if headline is None else {"scorer": headline, "trials": found.trials, "mean": None}),
        **entries.get(headline or "", {}),
        "scorers": entries,
        "usage": {role: _used(found, role) for role in ("model", "judge")},
        "possibly_repeated": found.possibly_repeated,
    }


def _entries(found: Aggregate, name: str, scorer: str) -> Mapping[str, Mapping[str, Any]]:
    whole = Metric(same_scheme(scorer))
    known = [one for one in found.metrics if one.metric.scorer == whole.scorer]
    silent = MetricSummary(whole, name, None, 0, found.trials - found.model_errors, 0, found.model_errors)
    return {".".join((name, *one.metric.path)): _entry(one) for one in known or [silent]}


def _entry(one: MetricSummary) -> Mapping[str, Any]:
    return {
        "trials": one.trials,
        "scored": one.scored,
        "unscored": one.unscored,
        "scorer_errors": one.scorer_errors,
        "model_errors": one.model_errors,
        "mean": one.mean,
        "kind": one.kind and one.kind.value,
    }


def _used(found: Aggregate, role: str) -> Mapping[str, Any]:
    used = [one for one in found.usage if one.role == role and not one.inherited]
    costs = [one.cost for one in used if one.cost is not None]
    return {
        "prompt_tokens": _total(one.prompt_tokens for one in used),
        "completion_tokens": _total(one.completion_tokens for one in used),
        "cost": f"{money.add(costs):f}" if costs else None,
    }


def _total(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


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
    column: MetricColumn
    worst: NSmallest[tuple[RunRow, float]]
    texts: Counter[str] = attrs.field(factory=Counter)
    reasons: Counter[str] = attrs.field(factory=Counter)

    def take(self, number: int, row: RunRow, values: Sequence[float]) -> None:
        value = self.column.put(number, values, len(row.trials) - len(values))
        self.worst.offer(-value if self.column.lower_is_better else value, (row, value))

    def take_text(self, text: str) -> None:
        """Count a string; when there are many different ones, count a new one among the others."""
        label = shortened(text, MAX_LABEL)
        self.texts[label if label in self.texts or len(self.texts) < MAX_TEXTS else OTHERS] += 1

    @property
    def kinds(self) -> dict[MetricKind, int]:
        counts = {self.column.kind: self.column.trials, MetricKind.TEXT: self.texts.total()}
        found = sorted((kind for kind in counts if counts[kind]), key=lambda kind: -counts[kind])
        return {kind: counts[kind] for kind in found}


_WithNumbers = Callable[[MetricSummary, _Leaf], MetricSummary]


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
        self.options.check_trials(len(row.trials))
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
            leaf.take(self.rows, row, found[1:])
        return True

    def _take_any(self, row: RunRow) -> None:
        self.equal_rows += row.copies
        errors = [f"model: {error}" for error in row.failures]
        self.model_errors += len(errors)
        numbers: dict[Metric, list[float]] = {}
        for reading in row.readings:
            self._take(reading, numbers, errors)
        for metric, values in numbers.items():
            self.leaves[metric].take(self.rows, row, values)
        self._note_errors(row, errors)

    def _take(self, reading: Reading, numbers: dict[Metric, list[float]], errors: list[str]) -> None:
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
            numbers.setdefault(reading.metric, []).append(reading.value)

    def _leaf(self, metric: Metric) -> _Leaf | None:
        found = self.leaves.get(metric)
        if found is None and len(self.leaves) < MAX_METRICS:
            found = self._new_leaf(metric)
        return found

    def _new_leaf(self, metric: Metric) -> _Leaf:
        lower = is_lower_better(metric, self.options.lower_is_better)
        found = self.leaves[metric] = _Leaf(MetricColumn(self.options.reduce, lower), NSmallest(self.keep))
        return found

    def _note_errors(self, row: RunRow, errors: Sequence[str]) -> None:
        if errors:
            self.failed += 1
        if errors and len(self.failures) < self.keep:
            self.failures.append(RowNote.of(row, detail=shortened("; ".join(errors))))

    # ---- the numbers

    def result(self, metrics: tuple[MetricSummary, ...], latency: Latency | None) -> Aggregate:
        of = self.rows, self.trials, self.model_errors, self.options, metrics, latency, self.spending.usage
        notes = self.failed, tuple(self.failures), self.possibly_repeated, self.omitted, self.equal_rows
        return Aggregate(*of, *notes)

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
        return with_numbers(MetricSummary(metric, name, kind, *counts, reasons=reasons), leaf)

    def with_mean(self, summary: MetricSummary, leaf: _Leaf) -> MetricSummary:
        values = leaf.column.present
        return attrs.evolve(summary, numbers=Numbers(len(values), math.fsum(values) / len(values)))

    def with_numbers(self, summary: MetricSummary, leaf: _Leaf) -> MetricSummary:
        column, confidence = leaf.column, self.options.confidence
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
            interval=_interval(column.kind, values, numbers, column.trials, groups, confidence),
            pessimistic=math.fsum(column.pessimistic(column.worst)) / self.rows,
            distribution=Distribution.of(values),
            worst=tuple(RowNote.of(row, float(value)) for row, value in leaf.worst.items),
            lower_is_better=column.lower_is_better,
        )


def _interval(
    kind: MetricKind, values: Sequence[float], numbers: Numbers, trials: int, groups: int, confidence: float
) -> Interval | None:
    """Return the interval of the mean of row values, of which so many `groups` are independent."""
    if kind is not MetricKind.BINARY:
        bounded = values and min(values) >= 0 and max(values) <= 1
        return (bounded_mean if bounded else student)(numbers, groups, confidence)
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
