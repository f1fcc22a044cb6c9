"""Totals that are added up row by row: of a run in progress, and the usage of all its calls. The summary of a finished
run comes from its aggregate, like every other number (`run_summary`)."""

import heapq
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Generic, TypeVar

import attrs

from modelyard.domain import usage as money
from modelyard.domain.evaluation.metrics import readings
from modelyard.domain.evaluation.objects import same_scheme
from modelyard.domain.evaluation.run import Outcome, Prediction, PredictionView, Score, ScoreView
from modelyard.domain.evaluation.statistics import quantile

RATE = "rows/s"

VALUE = "value"


def outcome_of(prediction: Prediction | PredictionView, score: Score | ScoreView | None) -> Outcome:
    if prediction.error is not None:
        return Outcome.MODEL_ERROR
    if score is None:
        return Outcome.UNSCORED
    outcomes = [reading.outcome for reading in readings([score])]
    return Outcome.SCORED if Outcome.SCORED in outcomes else outcomes[0]


class RunningTotals:
    """The totals of a run. `scorers` are the references of its scorers' versions by name; the first is the headline."""

    def __init__(self, scorers: Mapping[str, str]) -> None:
        self._headline = next(iter(scorers.values()), None)
        self.rows: int = 0
        self.failed: int = 0
        self.cost: Decimal | None = None
        self._numbers = 0
        self._sum: int | Fraction = 0

    def add(self, prediction: Prediction, scores: Sequence[Score]) -> None:
        self.rows += 1
        self.failed += prediction.error is not None or any(VALUE not in score.value for score in scores)
        if prediction.copied_from is None:
            self._spend(prediction.cost)
        for score in scores:
            self._spend(score.judge_cost)
            if score.scorer == self._headline and prediction.error is None:
                self._count(score.value.get(VALUE))

    @property
    def data(self) -> Mapping[str, Any]:
        cost = None if self.cost is None else f"{self.cost:f}"
        return {"done": self.rows, "score": self.mean, "scored": self._numbers, "failed": self.failed, "cost": cost}

    def restore(self, data: Mapping[str, Any]) -> None:
        if not {"done", "score", "scored", "failed", "cost"} <= data.keys():
            return
        self.rows, self.failed, self._numbers = data["done"], data["failed"], data["scored"]
        self._sum = Fraction(data["score"] or 0) * self._numbers
        self.cost = None if data["cost"] is None else Decimal(data["cost"])

    def _spend(self, cost: Decimal | None) -> None:
        if cost is not None:
            self.cost = money.EXACT.add(self.cost or Decimal(0), cost)

    def _count(self, value: object) -> None:
        if isinstance(value, int | float):
            self._numbers += 1
            self._sum += Fraction(value) if isinstance(value, float) else value

    @property
    def mean(self) -> float | None:
        return float(self._sum / self._numbers) if self._numbers else None

    def numbers(self, rows: int, seconds: float) -> Mapping[str, float]:
        known = {
            "score": self.mean,
            "failed": self.failed if self.rows else None,
            RATE: rows / seconds if seconds > 0 else None,
            "cost": self.cost,
        }
        return {name: float(value) for name, value in known.items() if value is not None}


class ProgressReporter:
    def __init__(self, show: Callable[[int, int | None, Mapping[str, float]], None] | None) -> None:
        self._show = show
        self._totals: RunningTotals | None = None
        self._before: int | None = None
        self._shown = -1

    @property
    def shows(self) -> bool:
        return self._show is not None

    def begin(self, totals: RunningTotals) -> None:
        self._totals = totals

    def report(self, total: int | None, seconds: float) -> None:
        if self._show is None or self._totals is None:
            return
        rows = self._totals.rows
        self._before = rows if self._before is None else self._before
        if rows > self._shown:
            self._shown = rows
            self._show(rows, total, self._totals.numbers(rows - self._before, seconds))


T = TypeVar("T")


@attrs.define
class NSmallest(Generic[T]):
    """At most `keep` items: those with the lowest rank that were offered, of equal ones the first.

    >>> smallest = NSmallest(2)
    >>> for rank in (3.0, 1.0, 2.0):
    ...     smallest.offer(rank, f"rank {rank:g}")
    >>> smallest.items
    ('rank 1', 'rank 2')
    """

    keep: int
    _heap: list[tuple[float, int, T]] = attrs.field(factory=list)
    _offered: int = 0

    def offer(self, rank: float, item: T) -> None:
        self._offered += 1
        if len(self._heap) < self.keep:
            heapq.heappush(self._heap, (-rank, -self._offered, item))
        elif self._heap and -rank > self._heap[0][0]:
            heapq.heapreplace(self._heap, (-rank, -self._offered, item))

    @property
    def bound(self) -> float:
        if len(self._heap) < self.keep:
            return math.inf
        return -self._heap[0][0] if self._heap else -math.inf

    @property
    def items(self) -> tuple[T, ...]:
        return tuple(item for _, _, item in sorted(self._heap, key=lambda entry: (-entry[0], -entry[1])))


# ---- usage ----


@attrs.frozen
class Latency:
    """Seconds that a model took to answer, over the predictions with an output and a latency. `inherited` of them
    belong to the source run, if this run shares its answers."""

    count: int
    mean: float
    p50: float
    p95: float
    inherited: int = 0


@attrs.frozen
class RoleUsage:
    """The usage of one model, or of the judge of one scorer. A sum is None when nothing was reported. `role` is "model"
    or "judge", `name` the reference of the model or of the scorer. `inherited`: the source run used it, not this
    one."""

    role: str
    name: str
    inherited: bool
    calls: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cost: Decimal | None


def total_cost(usage: Iterable[RoleUsage]) -> Decimal | None:
    """USD of all that was not inherited, judges included; None when nothing was reported."""
    known = [one.cost for one in usage if not one.inherited and one.cost is not None]
    return money.add(known) if known else None


_NOTHING = (None, None, None)


@attrs.define
class UsageSummary:
    _latencies: "array[float]" = attrs.field(factory=lambda: array("d"))
    _inherited: int = 0
    _sums: "dict[tuple[str, str, bool], _Sum]" = attrs.field(factory=dict)

    def add(self, prediction: Prediction | PredictionView, scores: Iterable[Score | ScoreView]) -> None:
        copied = prediction.copied_from is not None
        if prediction.latency is not None and prediction.error is None:
            self._latencies.append(prediction.latency)
            self._inherited += copied
        self._sum("model", prediction.model, copied).add(
            prediction.prompt_tokens, prediction.completion_tokens, prediction.cost
        )
        for score in scores:
            used = (score.prompt_tokens, score.completion_tokens, score.judge_cost)
            if used != _NOTHING:
                self._sum("judge", score.scorer, False).add(*used)

    def _sum(self, role: str, name: str, inherited: bool) -> "_Sum":
        key = (role, same_scheme(name), inherited)
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = _Sum()
        return found

    @property
    def latency(self) -> Latency | None:
        values = self._latencies
        if not values:
            return None
        p50, p95 = quantile(values, 0.5), quantile(values, 0.95)
        assert p50 is not None
        assert p95 is not None
        return Latency(len(values), math.fsum(values) / len(values), p50, p95, self._inherited)

    @property
    def usage(self) -> tuple[RoleUsage, ...]:
        keys = sorted(self._sums, key=lambda key: (key[0] != "model", key))
        return tuple(self._sums[key].usage(*key) for key in keys)


@attrs.define
class _Sum:
    calls: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: Decimal | None = None

    def add(self, prompt_tokens: int | None, completion_tokens: int | None, cost: Decimal | None) -> None:
        self.calls += 1
        if prompt_tokens is not None:
            self.prompt_tokens = (self.prompt_tokens or 0) + prompt_tokens
        if completion_tokens is not None:
            self.completion_tokens = (self.completion_tokens or 0) + completion_tokens
        if cost is not None:
            self.cost = cost if self.cost is None else money.EXACT.add(self.cost, cost)

    def usage(self, role: str, name: str, inherited: bool) -> RoleUsage:
        return RoleUsage(role, name, inherited, self.calls, self.prompt_tokens, self.completion_tokens, self.cost)
