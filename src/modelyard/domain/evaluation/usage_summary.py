"""What the answers of a run took: latencies, tokens and costs, added up one by one."""

import math
from array import array
from collections.abc import Iterable
from decimal import Decimal

import attrs

from modelyard.domain import usage as money
from modelyard.domain.evaluation.prediction import Prediction, PredictionView, Score, ScoreView
from modelyard.domain.evaluation.references import same_scheme
from modelyard.domain.evaluation.statistics import quantile


@attrs.frozen
class Latency:
    """Seconds that a model took to answer, over the predictions that have an answer and say so.

    `inherited` of them are the source run's, whose answers this run shares.
    """

    count: int
    mean: float
    p50: float
    p95: float
    inherited: int = 0


@attrs.frozen
class RoleUsage:
    """What one model used, or the judge of one scorer. A sum is None when nothing was reported.

    `role` is "model" or "judge", `name` the reference of the model or of the scorer. `inherited` tells that the source
    run used it, not this one.
    """

    role: str
    name: str
    inherited: bool
    calls: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cost: Decimal | None


def total_cost(usage: Iterable[RoleUsage]) -> Decimal | None:
    """USD of all that was not inherited, judges among it; None when nothing was reported."""
    known = [one.cost for one in usage if not one.inherited and one.cost is not None]
    return money.add(known) if known else None


@attrs.define
class UsageSummary:
    """What predictions and scores took, added up one by one."""

    _latencies: "array[float]" = attrs.field(factory=lambda: array("d"))
    _inherited: int = 0
    _sums: "dict[tuple[str, str, bool], _Sum]" = attrs.field(factory=dict)

    def add(self, prediction: Prediction | PredictionView, scores: Iterable[Score | ScoreView]) -> None:
        """Add a prediction and its scores."""
        copied = prediction.copied_from is not None
        if prediction.latency is not None and prediction.error is None:
            self._latencies.append(prediction.latency)
            self._inherited += copied
        self._sum("model", prediction.model, copied).add(
            prediction.prompt_tokens, prediction.completion_tokens, prediction.cost
        )
        for score in scores:
            used = (score.prompt_tokens, score.completion_tokens, score.judge_cost)
            if used != (None, None, None):
                self._sum("judge", score.scorer, False).add(*used)

    def _sum(self, role: str, name: str, inherited: bool) -> "_Sum":
        key = (role, same_scheme(name), inherited)
        found = self._sums.get(key)
        if found is None:
            found = self._sums[key] = _Sum()
        return found

    @property
    def latency(self) -> Latency | None:
        """None when no latency was reported."""
        values = self._latencies
        if not values:
            return None
        p50, p95 = quantile(values, 0.5), quantile(values, 0.95)
        assert p50 is not None
        assert p95 is not None
        return Latency(len(values), math.fsum(values) / len(values), p50, p95, self._inherited)

    @property
    def usage(self) -> tuple[RoleUsage, ...]:
        """Models before judges."""
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
            self.cost = money.add((self.cost or Decimal(0), cost))

    def usage(self, role: str, name: str, inherited: bool) -> RoleUsage:
        return RoleUsage(role, name, inherited, self.calls, self.prompt_tokens, self.completion_tokens, self.cost)
