"""The running count of an evaluation: what came of its rows so far, what they score and cost.

What a finished run says of itself comes from its aggregate, like every other number (`run_summary`).
"""

import heapq
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Generic, TypeVar

import attrs

from modelyard.domain.evaluation.metrics import readings
from modelyard.domain.evaluation.prediction import Prediction, PredictionView, Score, ScoreView
from modelyard.domain.evaluation.run import Outcome
from modelyard.domain.usage import EXACT

VALUE = "value"
"""The name under which a prediction holds its output, and a score its value."""


def outcome_of(prediction: Prediction | PredictionView, score: Score | ScoreView | None) -> Outcome:
    """What came of a row, as one scorer sees it."""
    if prediction.error is not None:
        return Outcome.MODEL_ERROR
    if score is None:
        return Outcome.UNSCORED
    outcomes = [reading.outcome for reading in readings([score])]
    return Outcome.SCORED if Outcome.SCORED in outcomes else outcomes[0]


class RunningTotals:
    """The count of a run. `scorers` are the references of its scorers' versions by name; the first is the headline."""

    def __init__(self, scorers: Mapping[str, str]) -> None:
        self._headline = next(iter(scorers.values()), None)
        self.rows = self.failed = 0
        self.cost: Decimal | None = None
        self._numbers = 0
        self._sum: int | Fraction = 0

    def add(self, prediction: Prediction, scores: Sequence[Score]) -> None:
        """Count a row that is done."""
        self.rows += 1
        self.failed += prediction.error is not None or any(VALUE not in score.value for score in scores)
        if prediction.copied_from is None:
            self._spend(prediction.cost)
        for score in scores:
            self._spend(score.judge_cost)
            if score.scorer == self._headline and prediction.error is None:
                self._count(score.value.get(VALUE))

    @property
    def told(self) -> Mapping[str, Any]:
        """The count in plain values: rows `done` and `failed`, the `score` over `scored` values so far, USD as text."""
        cost = None if self.cost is None else f"{self.cost:f}"
        return {"done": self.rows, "score": self.mean, "scored": self._numbers, "failed": self.failed, "cost": cost}

    def go_on(self, told: Mapping[str, Any]) -> None:
        """Go on where a count was when it told this, or at nothing where something of it is missing."""
        if not {"done", "score", "scored", "failed", "cost"} <= told.keys():
            return
        self.rows, self.failed, self._numbers = told["done"], told["failed"], told["scored"]
        self._sum = Fraction(told["score"] or 0) * self._numbers
        self.cost = None if told["cost"] is None else Decimal(told["cost"])

    def _spend(self, cost: Decimal | None) -> None:
        if cost is not None:
            self.cost = EXACT.add(self.cost or Decimal(0), cost)

    def _count(self, value: object) -> None:
        if isinstance(value, int | float):
            self._numbers += 1
            self._sum += Fraction(value) if isinstance(value, float) else value

    @property
    def mean(self) -> float | None:
        """The running score: the mean of what the first scorer said, bools as 0 and 1; None while there is none."""
        return float(self._sum / self._numbers) if self._numbers else None


T = TypeVar("T")


@attrs.define
class NSmallest(Generic[T]):
    """At most `keep` items: those with the lowest rank that were offered, of equal ones the first.

    >>> lowest = Lowest(2)
    >>> for rank in (3.0, 1.0, 2.0):
    ...     lowest.offer(rank, f"rank {rank:g}")
    >>> lowest.items
    ('rank 1', 'rank 2')
    """

    keep: int
    _heap: list[tuple[float, int, T]] = attrs.field(factory=list)
    _offered: int = 0

    def offer(self, rank: float, item: T) -> None:
        """Keep an item as long as fewer than `keep` others rank lower."""
        self._offered += 1
        if len(self._heap) < self.keep:
            heapq.heappush(self._heap, (-rank, -self._offered, item))
        elif self._heap and -rank > self._heap[0][0]:
            heapq.heapreplace(self._heap, (-rank, -self._offered, item))

    @property
    def items(self) -> tuple[T, ...]:
        """What is kept, the lowest first."""
        return tuple(item for _, _, item in sorted(self._heap, key=lambda entry: (-entry[0], -entry[1])))
