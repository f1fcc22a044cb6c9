"""Two runs compared, and the rows of a run, as clients of the evaluation interface know them (specification 4.5)."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import attrs

from modelyard.domain.evaluation.comparison import Comparison, MetricComparison
from modelyard.domain.evaluation.metrics import MetricKind
from modelyard.domain.evaluation.prediction import Source
from modelyard.domain.evaluation.statistics import Paired
from modelyard.http.message import answer_from


@attrs.frozen
class ComparisonRequest:
    """The body that compares two runs, by their ids.

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

    @classmethod
    def of(cls, found: Paired) -> Self:
        """Describe paired values."""
        ends = None if found.interval is None else (found.interval.low, found.interval.high)
        return answer_from(cls, found, interval=ends)


@attrs.frozen
class MetricComparisonObject:
    """One metric: over the rows that have a value in both runs, and over all rows, a missing value counted as worst.

    `corrected_p` is corrected for the number of metrics (Holm).
    """

    scorer: str
    path: Sequence[str]
    name: str
    value_type: MetricKind
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

    @classmethod
    def of(cls, one: MetricComparison) -> Self:
        """Describe the comparison of one metric."""
        return answer_from(
            cls,
            one,
            scorer=one.metric.scorer,
            path=one.metric.path,
            value_type=one.kind,
            paired=PairedObject.of(one.paired),
            corrected_p=one.corrected,
            all_rows=PairedObject.of(one.all_rows),
        )


@attrs.frozen
class ComparisonObject:
    """A candidate compared with a baseline. `not_compared` gives the reason for each metric that cannot be compared."""

    rows: int
    only_baseline: int
    only_candidate: int
    baseline_failed: int
    candidate_failed: int
    reducer: str
    confidence: float
    metrics: Sequence[MetricComparisonObject]
    not_compared: Mapping[str, str]

    @classmethod
    def of(cls, found: Comparison) -> Self:
        """Describe a comparison."""
        return answer_from(
            cls,
            found,
            reducer=found.options.reducer,
            confidence=found.options.confidence,
            metrics=tuple(map(MetricComparisonObject.of, found.metrics)),
            not_compared=found.uncompared,
        )


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
