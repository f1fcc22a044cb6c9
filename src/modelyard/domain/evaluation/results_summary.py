"""The summary of the results of a run: counts and means of each leaf of its scores, tokens and cost."""

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import attrs

from modelyard.domain.evaluation.filters import scorer_keys
from modelyard.domain.evaluation.metrics import Metric, MetricKind, Path, ScoredPrediction, trial_readings
from modelyard.domain.evaluation.references import same_scheme
from modelyard.domain.usage import add


@attrs.frozen
class LeafStats:
    """One leaf of the values of a scorer, over the trials of a run that have it.

    A bool is not a number: `numeric_mean` is over numbers, `pass_rate`, the share of those that are true, over bools;
    each is None without any. `pass_signal_coverage` is the share of bools among the values.
    """

    scorer_key: str
    path: str | None
    value_type: MetricKind
    trial_count: int
    numeric_count: int
    numeric_mean: float | None
    pass_true_count: int
    pass_known_count: int
    pass_rate: float | None
    pass_signal_coverage: float


@attrs.frozen
class RunSummary:
    """The summary of a run. Tokens and `cost` (USD) are of the model's calls only, None when none was reported."""

    run_id: str
    trial_count: int
    stats: tuple[LeafStats, ...]
    tokens: int | None
    cost: Decimal | None


@attrs.define
class _Leaf:
    kinds: Counter[MetricKind] = attrs.field(factory=Counter)
    passed: int = 0
    numbers: "array[float]" = attrs.field(factory=lambda: array("d"))

    def add(self, kind: MetricKind, value: Any) -> None:
        self.kinds[kind] += 1
        if kind is MetricKind.CONTINUOUS:
            self.numbers.append(value)
        elif kind is MetricKind.BINARY:
            self.passed += value

    def stats(self, key: str, path: Path) -> LeafStats:
        count = len(self.numbers)
        most = max(MetricKind, key=lambda kind: self.kinds[kind])
        mean = math.fsum(self.numbers) / count if count else None
        known, total = self.kinds[MetricKind.BINARY], self.kinds.total()
        passed = (self.passed, known, self.passed / known if known else None, known / total)
        return LeafStats(key, ".".join(path) or None, most, total, count, mean, *passed)


@attrs.define
class RunTotals:
    run_id: str
    trials: int = 0
    scorers: dict[str, None] = attrs.field(factory=dict)
    _leaves: defaultdict[Metric, _Leaf] = attrs.field(factory=lambda: defaultdict(_Leaf))
    _tokens: int | None = None
    _cost: Decimal | None = None

    def note(self, scorers: Iterable[str]) -> None:
        for scorer in scorers:
            self.scorers[scorer] = None

    def add(self, trial: ScoredPrediction) -> None:
        prediction = trial[0]
        self.trials += 1
        tokens = tokens_of(trial)
        if tokens is not None:
            self._tokens = (self._tokens or 0) + tokens
        if prediction.cost is not None:
            self._cost = add([self._cost or Decimal(0), prediction.cost])
        for reading in trial_readings(trial):
            if reading.kind is not None:
                self._leaves[reading.metric].add(reading.kind, reading.value)

    def names(self) -> Mapping[str, str]:
        short = Counter(scorer_keys(scorer)[0] for scorer in self.scorers)
        return {scorer: _name(scorer, short) for scorer in self.scorers}

    def summary(self) -> RunSummary:
        names = {same_scheme(scorer): name for scorer, name in self.names().items()}
        stats = [leaf.stats(names[metric.scorer], metric.path) for metric, leaf in self._leaves.items()]
        ordered = sorted(stats, key=lambda one: (one.scorer_key, one.path or ""))
        return RunSummary(self.run_id, self.trials, tuple(ordered), self._tokens, self._cost)


def _name(scorer: str, short: Counter[str]) -> str:
    name, versioned = scorer_keys(scorer)
    return name if short[name] == 1 else versioned


def tokens_of(trial: ScoredPrediction) -> int | None:
    counts = (trial[0].prompt_tokens, trial[0].completion_tokens)
    return None if counts == (None, None) else sum(count or 0 for count in counts)
