"""The running count of an evaluation: what came of its rows so far, what they score, what they used."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from modelyard.domain.evaluation import Outcome
from modelyard.domain.prediction import Prediction, Score
from modelyard.domain.usage import EXACT

VALUE = "value"
"""The name under which a prediction holds its output, and a score its value."""


def outcome_of(prediction: Prediction, score: Score | None) -> Outcome:
    """What came of a row, as one scorer sees it."""
    if prediction.error is not None:
        return Outcome.MODEL_ERROR
    if score is None:
        return Outcome.UNSCORED
    if VALUE not in score.value:
        return Outcome.SCORER_ERROR
    return Outcome.UNSCORED if score.value[VALUE] is None else Outcome.SCORED


class Used:
    """Tokens and USD in one role, None as long as nobody has reported any."""

    def __init__(self) -> None:
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.cost: Decimal | None = None

    def add(self, prompt_tokens: int | None, completion_tokens: int | None, cost: Decimal | None) -> None:
        """Count what was reported."""
        if prompt_tokens is not None:
            self.prompt_tokens = (self.prompt_tokens or 0) + prompt_tokens
        if completion_tokens is not None:
            self.completion_tokens = (self.completion_tokens or 0) + completion_tokens
        if cost is not None:
            self.cost = EXACT.add(self.cost or Decimal(0), cost)

    def plain(self) -> Mapping[str, Any]:
        """As JSON data; the cost is decimal text."""
        cost = None if self.cost is None else f"{self.cost:f}"
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens, "cost": cost}


class ScorerTally:
    """The counts of one scorer. Sums are exact, so the order of rows changes nothing."""

    def __init__(self) -> None:
        self.outcomes: Counter[Outcome] = Counter()
        self._numbers = 0
        self._passed = 0
        self._sum = Fraction(0)

    def add(self, prediction: Prediction, score: Score | None) -> None:
        """Count a row."""
        self.outcomes[outcome_of(prediction, score)] += 1
        value = None if score is None or prediction.error is not None else score.value.get(VALUE)
        if isinstance(value, bool):
            self._numbers += 1
            self._passed += value
        elif isinstance(value, int | float):
            self._numbers += 1
            self._sum += Fraction(value)

    @property
    def mean(self) -> float | None:
        """Over the rows that were scored with a bool or a number; None when there is none."""
        if not self._numbers:
            return None
        total = self._sum + self._passed if self._sum else self._passed
        return float(total / self._numbers)

    def plain(self) -> Mapping[str, Any]:
        """As JSON data: `scored + unscored + scorer_errors + model_errors = trials`."""
        counts = {outcome.value: self.outcomes[outcome] for outcome in Outcome}
        return {"trials": self.outcomes.total(), **counts, "mean": self.mean}


class Tally:
    """The counts of a run. `scorers` are the references of its scorers' versions by name; the first is the headline."""

    def __init__(self, scorers: Mapping[str, str]) -> None:
        self._refs = scorers
        self.scorers = {name: ScorerTally() for name in scorers}
        self.rows = self.failed = self.possibly_repeated = 0
        self.used, self.judge_used = Used(), Used()

    def add(self, prediction: Prediction, scores: Sequence[Score]) -> None:
        """Count a row that is done."""
        self.rows += 1
        self.possibly_repeated += prediction.possibly_repeated
        self.failed += prediction.error is not None or any(VALUE not in score.value for score in scores)
        if prediction.copied_from is None:
            self.used.add(prediction.prompt_tokens, prediction.completion_tokens, prediction.cost)
        for score in scores:
            self.judge_used.add(score.prompt_tokens, score.completion_tokens, score.judge_cost)
        by_ref = {score.scorer: score for score in scores}
        for name, scorer in self.scorers.items():
            scorer.add(prediction, by_ref.get(self._refs[name]))

    @property
    def mean(self) -> float | None:
        """The headline: the mean of the first scorer."""
        return next((scorer.mean for scorer in self.scorers.values()), None)

    @property
    def cost(self) -> Decimal | None:
        """USD spent by this run, for the model and the judges; None when nothing was reported."""
        return _sum(cost for cost in (self.used.cost, self.judge_used.cost) if cost is not None)

    def summary(self) -> Mapping[str, Any]:
        """What a finished run says of itself: the headline, the same for each scorer, and what was used by role."""
        headline = next(iter(self.scorers.items()), None)
        return {
            **({} if headline is None else {"scorer": headline[0], **headline[1].plain()}),
            "scorers": {name: scorer.plain() for name, scorer in self.scorers.items()},
            "usage": {"model": self.used.plain(), "judge": self.judge_used.plain()},
            "possibly_repeated": self.possibly_repeated,
        }


def _sum(amounts: Iterable[Decimal]) -> Decimal | None:
    total: Decimal | None = None
    for amount in amounts:
        total = amount if total is None else EXACT.add(total, amount)
    return total
