"""Comparing two runs, row by row: pairing their rows, and collecting values by metric."""

import math
from array import array
from collections.abc import Iterable, Sequence
from operator import sub
from typing import Unpack

import attrs

from modelyard.domain.canonical import shortened
from modelyard.domain.evaluation.aggregate import KEEP, MAX_METRICS, ReportKeywords, ReportOptions
from modelyard.domain.evaluation.comparison import (
    ONLY_BASELINE,
    ONLY_CANDIDATE,
    Comparison,
    MetricComparison,
    Pair,
    RowDifference,
    holm_of_some,
    paired_values,
    rows_needed,
)
from modelyard.domain.evaluation.metrics import (
    NUMERIC,
    Metric,
    MetricColumn,
    MetricKind,
    RunRow,
    ScoredPrediction,
    check_lower_is_better,
    is_lower_better,
    metric_names,
)
from modelyard.domain.evaluation.number_rows_fast import NumberPairs, ScorePage, pages, paired_rows, row_blocks
from modelyard.domain.evaluation.running_totals import NSmallest
from modelyard.domain.evaluation.statistics import Distribution, Paired


def compare(
    baseline: Iterable[ScoredPrediction],
    candidate: Iterable[ScoredPrediction],
    *,
    keep: int = KEEP,
    **options: Unpack[ReportKeywords],
) -> Comparison:
    """Compare two runs, each in the order of its row digests (see `metrics.rows`). Options are the fields of
    `ReportOptions`. Memory holds two numbers a row and metric, `keep` rows, and a page of each run. Raises
    `InvalidInput`."""
    return compare_pages(pages(baseline), pages(candidate), keep=keep, **options)


def compare_pages(
    baseline: Iterable[ScorePage],
    candidate: Iterable[ScorePage],
    *,
    keep: int = KEEP,
    **options: Unpack[ReportKeywords],
) -> Comparison:
    pairing = _Pairing(ReportOptions(**options), keep)
    for found in paired_rows(row_blocks(baseline), row_blocks(candidate)):
        if isinstance(found, NumberPairs):
            pairing.add_numbers(found)
        else:
            pairing.add(*found)
    check_lower_is_better(pairing.options.lower_is_better, (*pairing.seen[0], *pairing.seen[1]))
    compared, uncompared = pairing.compared()
    return Comparison(
        pairing.rows,
        pairing.alone[0],
        pairing.alone[1],
        pairing.options,
        _corrected(compared),
        uncompared,
        pairing.failed[0],
        pairing.failed[1],
        tuple(pairing.failures),
    )


def _corrected(found: Sequence[MetricComparison]) -> tuple[MetricComparison, ...]:
    corrected = holm_of_some([one.paired.p for one in found])
    everywhere = holm_of_some([one.all_rows.p for one in found])
    return tuple(
        attrs.evolve(one, corrected=p, corrected_all_rows=p_all)
        for one, p, p_all in zip(found, corrected, everywhere, strict=True)
    )


# ---- collecting --------------------------------------------------------------------------------------------------


_Difference = tuple[Pair, float, float]


@attrs.define
class _Both:
    columns: tuple[MetricColumn, MetricColumn]
    worst: NSmallest[_Difference]
    best: NSmallest[_Difference]
    lost: NSmallest[tuple[Pair, float]]
    lower_is_better: bool

    def _put(self, side: int, number: int, row: RunRow, values: Sequence[float]) -> float | None:
        return self.columns[side].put(number, values, len(row.trials) - len(values)) if values else None

    def take(self, number: int, pair: Pair, values: Sequence[Sequence[float]]) -> None:
        self._rank(pair, self._put(0, number, pair[0], values[0]), self._put(1, number, pair[1], values[1]))

    def take_numbers(self, number: int, found: NumberPairs) -> None:
        before, after = found.baseline.values, found.candidate.values
        self.columns[0].put_singles(number, before, found.baseline.kind)
        self.columns[1].put_singles(number, after, found.candidate.kind)
        down, up = (self.best, self.worst) if self.lower_is_better else (self.worst, self.best)
        least, most = min(down.bound, 0.0), max(-up.bound, 0.0)
        differences = list(map(sub, after, before))
        if min(differences) < least or max(differences) > most:
            for at, difference in enumerate(differences):
                if difference < least or difference > most:
                    self._rank_both((found.baseline.row(at), found.candidate.row(at)), before[at], after[at])

    def _rank(self, pair: Pair, before: float | None, after: float | None) -> None:
        if before is not None and after is None:
            self.lost.offer(before if self.lower_is_better else -before, (pair, float(before)))
        if before is not None and after is not None:
            self._rank_both(pair, before, after)

    def _rank_both(self, pair: Pair, before: float, after: float) -> None:
        if before != after:
            side = self.best if (after < before) is self.lower_is_better else self.worst
            side.offer(-abs(after - before), (pair, float(before), float(after)))


@attrs.define
class _Pairing:
    options: ReportOptions
    keep: int
    rows: int = 0
    alone: list[int] = attrs.field(factory=lambda: [0, 0])
    failed: list[int] = attrs.field(factory=lambda: [0, 0])
    seen: tuple[set[Metric], set[Metric]] = attrs.field(factory=lambda: (set(), set()))
    both: dict[Metric, _Both] = attrs.field(factory=dict)
    clusters: list[str] = attrs.field(factory=list)
    failures: list[RowDifference] = attrs.field(factory=list)

    def add(self, baseline: RunRow | None, candidate: RunRow | None) -> None:
        if baseline is None or candidate is None:
            self.alone[baseline is None] += 1
            return
        pair = (baseline, candidate)
        self.options.check_trials(min(len(baseline.trials), len(candidate.trials)))
        if self.options.cluster_by is not None:
            self.clusters.append(baseline.cluster(self.options.cluster_by))
        self._take(pair)
        self.rows += 1

    def add_numbers(self, found: NumberPairs) -> None:
        metric, cluster_by = found.baseline.metric, self.options.cluster_by
        self.options.check_trials(1)
        if cluster_by is not None:
            self.clusters += [found.baseline.row(at).cluster(cluster_by) for at in range(found.size)]
        for seen in self.seen:
            seen.add(metric)
        if metric in self.both or len(self.both) < MAX_METRICS:
            self._both(metric).take_numbers(self.rows, found)
        self.rows += found.size

    def _take(self, pair: Pair) -> None:
        self._note_failures(pair)
        for metric, values in self._numbers(pair).items():
            if metric in self.both or len(self.both) < MAX_METRICS:
                self._both(metric).take(self.rows, pair, values)

    def _numbers(self, pair: Pair) -> dict[Metric, tuple[list[float], list[float]]]:
        found: dict[Metric, tuple[list[float], list[float]]] = {}
        for side, seen in enumerate(self.seen):
            for metric, _, kind, value, _ in pair[side].readings:
                if kind is None:
                    continue
                seen.add(metric)
                if kind is not MetricKind.TEXT:
                    found.setdefault(metric, ([], []))[side].append(value)
        return found

    def _both(self, metric: Metric) -> _Both:
        if metric not in self.both:
            lower, keep = is_lower_better(metric, self.options.lower_is_better), self.keep
            columns = (MetricColumn(self.options.reduce, lower), MetricColumn(self.options.reduce, lower))
            self.both[metric] = _Both(columns, NSmallest(keep), NSmallest(keep), NSmallest(keep), lower)
        return self.both[metric]

    def _note_failures(self, pair: Pair) -> None:
        before, after = pair[0].failures, pair[1].failures
        if not before and not after:
            return
        self.failed[0] += bool(before)
        self.failed[1] += bool(after)
        errors = [*(f"baseline: {error}" for error in before), *(f"candidate: {error}" for error in after)]
        if len(self.failures) < self.keep:
            self.failures.append(RowDifference.of(pair, detail=shortened("; ".join(errors))))

    # ---- the numbers

    def compared(self) -> tuple[list[MetricComparison], dict[str, str]]:
        names = metric_names((*self.seen[0], *self.seen[1]))
        found, reasons = [], {}
        for metric in sorted(names, key=lambda metric: names[metric]):
            reason = self._why_not(metric)
            if reason is None:
                found.append(self._comparison(metric, names[metric]))
            else:
                reasons[names[metric]] = reason
        return found, reasons

    def _why_not(self, metric: Metric) -> str | None:
        if metric not in self.seen[0] or metric not in self.seen[1]:
            return ONLY_BASELINE if metric in self.seen[0] else ONLY_CANDIDATE
        both = self.both.get(metric)
        return None if both and all(column.trials for column in both.columns) else "it is not a number"

    def _comparison(self, metric: Metric, name: str) -> MetricComparison:
        both = self.both[metric]
        for column in both.columns:
            column.fill(self.rows)
        one, other = (column.values for column in both.columns)
        missing = [_missing(column) for column in (one, other)]
        either = missing[0] | missing[1]
        there = [at for at in range(self.rows) if at not in either] if either else range(self.rows)
        before, after = ([column[at] for at in there] if either else column.tolist() for column in (one, other))
        complete = not either and not any(column.incomplete for column in both.columns)
        differences = list(map(sub, after, before))
        found = self._paired(before, after, there, both.lower_is_better)
        return MetricComparison(
            metric,
            name,
            max((column.kind for column in both.columns), key=NUMERIC.index),
            found,
            found if complete else self._everywhere(both),
            _mean(before),
            _mean(after),
            len(missing[1] - missing[0]),
            len(missing[0] - missing[1]),
            len(missing[0] & missing[1]),
            rows_needed(differences, self.options.confidence),
            distribution=Distribution.of(differences),
            worst=tuple(RowDifference.of(*found) for found in both.worst.items),
            best=tuple(RowDifference.of(*found) for found in both.best.items),
            lost=tuple(
                RowDifference.of(pair, before, detail=_why_lost(pair[1], metric)) for pair, before in both.lost.items
            ),
            lower_is_better=both.lower_is_better,
        )

    def _everywhere(self, both: _Both) -> Paired:
        worst = (max if both.lower_is_better else min)(column.worst for column in both.columns)
        one, other = (column.pessimistic(worst) for column in both.columns)
        return self._paired(one, other, range(self.rows), both.lower_is_better)

    def _paired(self, one: Sequence[float], other: Sequence[float], at: Sequence[int], lower: bool) -> Paired:
        clusters = [self.clusters[row] for row in at] if self.clusters else []
        found = paired_values(list(zip(one, other, strict=True)), clusters, self.options.confidence)
        return attrs.evolve(found, wins=found.losses, losses=found.wins) if lower else found


def _why_lost(row: RunRow, metric: Metric) -> str:
    reasons = (reading.reason for reading in row.readings if reading.metric.scorer == metric.scorer)
    return shortened("; ".join(dict.fromkeys(filter(None, (*row.failures, *reasons)))) or "there is no score")


def _missing(values: "array[float]") -> set[int]:
    return {at for at, value in enumerate(values) if value != value} if math.isnan(sum(values)) else set()


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
