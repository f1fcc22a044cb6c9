"""The numbers of a run as values, and the summary that is stored with the run."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, TypedDict

import attrs

from modelyard.domain import usage as money
from modelyard.domain.canonical import shortened
from modelyard.domain.evaluation.metrics import Metric, MetricKind, RunRow
from modelyard.domain.evaluation.reducers import Reducer, reducer_of
from modelyard.domain.evaluation.references import same_scheme
from modelyard.domain.evaluation.running_totals import Latency, RoleUsage, total_cost
from modelyard.domain.evaluation.statistics import CONFIDENCE, Distribution, Interval, Numbers
from modelyard.domain.record import EMPTY
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
    passes, and that all k do. `cluster_by` names an input that related rows have in common, such as the text that
    several questions are about: standard errors, intervals and p then allow for it. `confidence` is that of the
    intervals. `lower_is_better` names the metrics of which lower values are better, such as a length; the name of a
    scorer stands for all of its metrics. Raises `InvalidInput`.
    """

    reducer: str = attrs.field(default="mean", validator=_known)
    cluster_by: str | None = None
    confidence: float = attrs.field(default=CONFIDENCE, validator=_sensible)
    lower_is_better: frozenset[str] = attrs.field(default=frozenset(), converter=_names)

    @property
    def reduce(self) -> Reducer:
        return reducer_of(self.reducer)

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
    `interval` is that of their mean: Wilson's for bools (also of a rate of trials, `statistics.clustered_rate`), else
    Student's. `pessimistic` is the mean over all rows, by `ReportOptions.policy`. `texts` counts answers that are text,
    the most frequent first; `reasons` why trials are unscored. `worst` are the rows with the worst values, the worst
    first.
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
