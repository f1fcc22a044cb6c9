"""Two runs compared, and the rows of a run, as clients of the evaluation interface know them (specification 4.5)."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from modelyard.domain.evaluation.comparison import Comparison, MetricComparison
from modelyard.domain.evaluation.metrics import Kind
from modelyard.domain.evaluation.prediction import Source
from modelyard.domain.evaluation.statistics import Interval, Paired


@attrs.frozen
class ComparisonRequest:
    """Which runs to compare, by their ids, and how.

    `reducer` makes one value of the trials of a row, `cluster_by` names an input that rows which go together have in
    common, and `confidence` is that of the intervals.
    """

    baseline: str
    candidate: str
    reducer: Literal["mean", "median", "min", "max"] = "mean"
    cluster_by: str | None = None
    confidence: float = 0.95


@attrs.frozen
class PairedObject:
    """Paired values, candidate minus baseline. `interval` is its two ends; null for fewer than two rows."""

    count: int
    wins: int
    ties: int
    losses: int
    difference: float | None
    interval: Sequence[float] | None
    p: float | None


@attrs.frozen
class MetricComparisonObject:
    """One metric: over the rows that have a value in both runs, and over all rows, a missing value counted as worst.

    `corrected_p` is corrected for the number of metrics (Holm).
    """

    scorer: str
    path: Sequence[str]
    name: str
    value_type: Kind
    verdict: Literal["better", "worse", "no difference shown", "nothing to compare"]
    baseline: float | None
    candidate: float | None
    paired: PairedObject
    corrected_p: float | None
    all_rows: PairedObject
    only_baseline: int
    only_candidate: int
    neither: int
    rows_needed: int | None


@attrs.frozen
class ComparisonObject:
    """A candidate beside a baseline. `not_compared` says of other metrics why they cannot be compared."""

    rows: int
    only_baseline: int
    only_candidate: int
    baseline_failed: int
    candidate_failed: int
    reducer: str
    confidence: float
    metrics: Sequence[MetricComparisonObject]
    not_compared: Mapping[str, str]


@attrs.frozen
class ExportedPrediction:
    """A prediction with its scores. `scores` are objects with `scorer`, `outcome` (scored, unscored, scorer_errors or
    model_errors), `value`, `error`, `prompt_tokens`, `completion_tokens` and `judge_cost`.
    """

    row_digest: str
    index: int | None
    trial: int
    prediction_id: str
    model: str
    inputs: Mapping[str, Any]
    output: Any
    error: str | None
    latency: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cost: str | None
    price: Mapping[str, Any]
    checkpoint_step: int | None
    source: Source
    copied_from: str | None
    possibly_repeated: int
    scores: Sequence[Mapping[str, Any]]


def comparison_object(found: Comparison) -> dict[str, Any]:
    """A comparison as plain JSON data, in the members of `ComparisonObject`."""
    return {
        "rows": found.rows,
        "only_baseline": found.only_baseline,
        "only_candidate": found.only_candidate,
        "baseline_failed": found.baseline_failed,
        "candidate_failed": found.candidate_failed,
        "reducer": found.terms.reducer,
        "confidence": found.terms.confidence,
        "metrics": [_metric(one) for one in found.metrics],
        "not_compared": found.uncompared,
    }


def _metric(one: MetricComparison) -> dict[str, Any]:
    return {
        "scorer": one.metric.scorer,
        "path": list(one.metric.path),
        "name": one.name,
        "value_type": one.kind.value,
        "verdict": one.verdict.value,
        "baseline": one.baseline,
        "candidate": one.candidate,
        "paired": _paired(one.paired),
        "corrected_p": one.corrected,
        "all_rows": _paired(one.all_rows),
        "only_baseline": one.only_baseline,
        "only_candidate": one.only_candidate,
        "neither": one.neither,
        "rows_needed": one.rows_needed,
    }


def _paired(found: Paired) -> dict[str, Any]:
    return {**attrs.asdict(found, recurse=False), "interval": _ends(found.interval)}


def _ends(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]
