"""The comparison of two runs over the same rows, as values, and the tests that decide it (specification 4.5)."""

from collections.abc import Sequence
from enum import StrEnum

import attrs

from modelyard.domain.canonical import shortened
from modelyard.domain.evaluation.aggregate import ReportOptions
from modelyard.domain.evaluation.metrics import Metric, MetricKind, RunRow
from modelyard.domain.evaluation.statistics import (
    Distribution,
    Paired,
    describe,
    difference_interval,
    holm,
    is_constant,
    mcnemar,
    paired,
    sample_size,
    spread,
    t_tail,
)
from modelyard.errors import InvalidInput

# ---- paired tests


def shown(found: Paired, p: float | None) -> bool:
    """Return whether a difference is shown: the interval leaves out 0, and p, at the same confidence, agrees."""
    interval = found.interval
    return interval is not None and 0 not in interval and p is not None and p <= 1 - interval.confidence


def paired_values(pairs: Sequence[tuple[float, float]], clusters: Sequence[str], confidence: float) -> Paired:
    """Compare pairs (of A, of B) as `statistics.paired` does, but with

    * McNemar's test also for numbers that are all 0 or 1, and as a sign test if all differences are the same, but
      for rounding, which leaves the t-test without a spread to judge by;
    * the clustered standard error if there are clusters.
    """
    found = paired(pairs, confidence)
    if clusters:
        return _clustered(found, pairs, clusters, confidence)
    if pairs and (_same(pairs) or all(value in (0.0, 1.0) for pair in pairs for value in pair)):
        return attrs.evolve(found, p=mcnemar(found.wins, found.losses))
    return found


def _same(pairs: Sequence[tuple[float, float]]) -> bool:
    return len(pairs) > 1 and is_constant(describe([b - a for a, b in pairs]))


def _clustered(
    found: Paired, pairs: Sequence[tuple[float, float]], clusters: Sequence[str], confidence: float
) -> Paired:
    numbers, groups = describe([b - a for a, b in pairs], clusters), len(set(clusters))
    interval = difference_interval(pairs, numbers, groups, confidence)
    if numbers.mean is None or not numbers.error:
        return attrs.evolve(found, interval=interval, p=None)
    return attrs.evolve(found, interval=interval, p=2 * t_tail(abs(numbers.mean) / numbers.error, groups - 1))


def rows_needed(differences: Sequence[float], confidence: float) -> int | None:
    """Return how many rows would show a mean difference of this size in four of five cases; None for no difference."""
    mean, deviation = spread(differences)
    return None if not mean or deviation is None else sample_size(mean, deviation, confidence=confidence)


def holm_of_some(ps: Sequence[float | None]) -> list[float | None]:
    corrected = holm({str(at): p for at, p in enumerate(ps) if p is not None})
    return [corrected.get(str(at)) for at in range(len(ps))]


ONLY_BASELINE = "only the baseline has values of it"
ONLY_CANDIDATE = "only the candidate has values of it"

Pair = tuple[RunRow, RunRow]


class Verdict(StrEnum):
    """The verdict on a metric: how the candidate compares with the baseline."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference shown"
    UNCLEAR = "unclear: rows without a value"
    NOT_COMPARED = "nothing to compare"


# ---- values


@attrs.frozen
class RowDifference:
    """A row of both runs, its inputs and first outputs shortened, and its values of a metric. `baseline` or `candidate`
    is None if the row has no value; `detail` is what went wrong."""

    digest: str
    inputs: str
    baseline_output: str
    candidate_output: str
    baseline: float | None = None
    candidate: float | None = None
    detail: str = ""

    @classmethod
    def of(
        cls, pair: Pair, baseline: float | None = None, candidate: float | None = None, detail: str = ""
    ) -> "RowDifference":
        before, after = (shortened(row.output) for row in pair)
        return cls(pair[0].digest, shortened(pair[0].inputs), before, after, baseline, candidate, detail)


@attrs.frozen
class MetricComparison:
    """One metric on the rows of both runs.

    `paired` is over the rows that have a value in both, candidate minus baseline, so a win is a row on which the
    candidate is better; `baseline` and `candidate` are the means over these rows. Its `p` is that of the exact McNemar
    test if all values are 0 or 1, else of the paired t-test; `corrected` is the same, corrected by Holm for the number
    of metrics. `all_rows` is over all rows of both runs, and a missing value counts as the worst
    (`ReportOptions.policy`, over both runs). `only_baseline`, `only_candidate` and `neither` count the rows that
    `paired` leaves out. `rows_needed` is how many rows would show a difference of this size, four times out of five.
    `worst` are the rows on which the candidate loses most, `best` those on which it wins most, `lost` those of which
    only the baseline has a value, the best first.
    """

    metric: Metric
    name: str
    kind: MetricKind
    paired: Paired
    all_rows: Paired
    baseline: float | None
    candidate: float | None
    only_baseline: int
    only_candidate: int
    neither: int
    rows_needed: int | None
    corrected: float | None = None
    corrected_all_rows: float | None = None
    distribution: Distribution | None = None
    worst: tuple[RowDifference, ...] = ()
    best: tuple[RowDifference, ...] = ()
    lost: tuple[RowDifference, ...] = ()
    lower_is_better: bool = False

    @property
    def verdict(self) -> Verdict:
        """Better or worse if the interval leaves out 0 and the corrected p agrees; else no difference is shown. It is
        unclear if all rows show the opposite, because many have no value in one of the runs."""
        if self.paired.difference is None:
            return Verdict.NOT_COMPARED
        if not shown(self.paired, self.corrected):
            return Verdict.NO_DIFFERENCE
        higher = self.paired.difference > 0
        everywhere = self.all_rows.difference or 0.0
        if shown(self.all_rows, self.corrected_all_rows) and (everywhere < 0 if higher else everywhere > 0):
            return Verdict.UNCLEAR
        return Verdict.BETTER if higher is not self.lower_is_better else Verdict.WORSE

    def worse_by(self, margin: float) -> Paired | None:
        """Return what shows that the candidate is worse by more than `margin`; None when nothing does. First the rows
        with a value in both are compared, then all rows, with a missing value counted as the worst."""
        for found, p in ((self.paired, self.corrected), (self.all_rows, self.corrected_all_rows)):
            if not shown(found, p) or found.interval is None:
                continue
            if found.interval.low > margin if self.lower_is_better else found.interval.high < -margin:
                return found
        return None


@attrs.frozen
class Regression:
    """A metric on which the candidate is shown to be worse, and by which rows: `metric.paired` or `metric.all_rows`."""

    metric: MetricComparison
    rows: Paired


@attrs.frozen
class NotWorseCheck:
    """Whether a candidate is shown to be worse than a baseline by more than `margin`. `not_compared` are the reasons
    why nothing can be decided; the check fails then, too."""

    margin: float
    not_compared: tuple[str, ...]
    regressions: tuple[Regression, ...]

    @property
    def passed(self) -> bool:
        """Whether rows were compared, and no metric is shown to be worse."""
        return not self.not_compared and not self.regressions

    def __bool__(self) -> bool:
        return self.passed


@attrs.frozen(repr=False)
class Comparison:
    """A candidate compared with a baseline, row by row. Rows are paired by their digests: `rows` are in both runs.
    `uncompared` names metrics that cannot be compared, and why. `failures` are the first rows on which a model failed
    in one run, `baseline_failed` and `candidate_failed` how many there are in each."""

    rows: int
    only_baseline: int
    only_candidate: int
    options: ReportOptions
    metrics: tuple[MetricComparison, ...]
    uncompared: dict[str, str] = attrs.field(factory=dict)
    baseline_failed: int = 0
    candidate_failed: int = 0
    failures: tuple[RowDifference, ...] = ()

    def __repr__(self) -> str:
        verdicts = [f"{one.name} {one.verdict}" for one in self.metrics]
        return f"<Comparison of {self.rows} rows: {', '.join(verdicts) or 'nothing to compare'}>"

    def metric(self, name: str) -> MetricComparison:
        """Return the metric of this name. Raises `InvalidInput` naming those that exist."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        known = ", ".join(metric.name for metric in self.metrics) or "none"
        why = f"; {self.uncompared[name]}" if name in self.uncompared else ""
        raise InvalidInput.at("metric", msg=f"must be a metric of both runs: {known}{why}")

    def check_not_worse(self, metric: str | None = None, margin: float = 0.0) -> NotWorseCheck:
        """Check that the candidate is not shown to be worse by more than `margin`, on all metrics or on one. Raises
        `InvalidInput` for a wrong margin, and for a metric that neither run has."""
        if not is_number(margin) or not margin >= 0:
            raise InvalidInput.at("margin", msg="must be at least 0: by how much the candidate may be worse")
        not_compared = self._not_compared(metric)
        if not_compared:
            return NotWorseCheck(margin, not_compared, ())
        metrics = self.metrics if metric is None else (self.metric(metric),)
        found = [(one, rows) for one in metrics if (rows := one.worse_by(margin)) is not None]
        return NotWorseCheck(margin, (), tuple(Regression(*pair) for pair in found))

    def _not_compared(self, metric: str | None) -> tuple[str, ...]:
        """Return what keeps the runs from being compared. A metric that only the baseline has is one reason, unless
        another metric is named."""
        if metric is None and not self.metrics and not self.uncompared:
            return ("no metric has a value in both runs",)
        reasons = {one.name: "no row has a value in both runs" for one in self.metrics if one.paired.count == 0}
        reasons.update((name, why) for name, why in self.uncompared.items() if name == metric or why == ONLY_BASELINE)
        if not self.metrics:
            reasons.update(self.uncompared)
        return tuple(f"{name}, {why}" for name, why in reasons.items() if metric in (None, name))


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
