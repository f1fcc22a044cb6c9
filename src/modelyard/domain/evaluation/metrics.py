"""Metrics: the scores of each row of a run, leaf by leaf, with the trials of a row reduced to one value."""

import math
import re
import statistics
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import attrs

from modelyard.domain.canonical import canonical_json
from modelyard.domain.evaluation.objects import ObjectRef, same_scheme
from modelyard.domain.evaluation.run import Outcome, Prediction, PredictionView, Score, ScoreView
from modelyard.domain.frozen_fast import maker, quick_init
from modelyard.errors import InvalidInput, nearest

Reducer = Callable[[Sequence[float]], float]

REDUCERS: Mapping[str, Reducer] = {
    "mean": lambda values: math.fsum(values) / len(values),
    "median": statistics.median,
    "min": min,
    "max": max,
}
"""Reducers without a number. Of bools, `max` is "passed in some trial", `min` "passed in every one"."""

PATTERN = r"mean|median|min|max|pass[@^][1-9][0-9]{0,3}"
"""`pass@5` and `pass^5` take a number."""


EXPECTED = f"must be one of {', '.join(REDUCERS)}, pass@k, pass^k, such as pass@5"


@lru_cache(maxsize=64)
def reducer_of(name: str) -> Reducer:
    """Return the reducer of this name. Raises `InvalidInput`.

    `pass@k` is the expected best of k trials of the row, drawn without repetition: of bools the chance that one of k
    passes. `pass^k` is the expected worst: the chance that all k pass. Of a row with fewer values all are drawn.

    >>> reducer_of("pass@2")([True, False, False]), reducer_of("pass^2")([True, True, False])
    (0.6666666666666666, 0.3333333333333333)
    """
    if not isinstance(name, str) or not re.fullmatch(PATTERN, name):
        raise InvalidInput.at("reducer", msg=f"{EXPECTED}{nearest(str(name), REDUCERS)}")
    if name in REDUCERS:
        return REDUCERS[name]
    count, best = int(name[5:]), name[4] == "@"
    return lambda values: _expected_extreme(values, count, best)


def _expected_extreme(values: Sequence[float], count: int, best: bool) -> float:
    drawn = min(count, len(values))
    ordered = sorted(values, reverse=not best)
    ways = (math.comb(at, drawn - 1) for at in range(len(ordered)))  # in which a value is the last of those drawn
    return math.fsum(value * way for value, way in zip(ordered, ways, strict=True)) / math.comb(len(ordered), drawn)


LARGEST = 1e150
"""Larger scores are not accepted, so that no sum of squares overflows."""

ScoredPrediction = tuple[Prediction | PredictionView, Sequence[Score | ScoreView]]
FullScoredPrediction = tuple[Prediction, Sequence[Score]]
Path = tuple[str, ...]


# ---- what is measured --------------------------------------------------------------------------------------------


class MetricKind(StrEnum):
    """What a metric's values are: bools alone are binary; beside a number they count as 0 and 1."""

    BINARY = "binary"
    CONTINUOUS = "continuous"
    TEXT = "text"


NONE = "–"


def mean_text(value: float | None, kind: MetricKind | None) -> str:
    """Format a mean; of bools, a share in per cent.

    >>> mean_text(0.8125, Kind.BINARY), mean_text(0.8125, Kind.CONTINUOUS), mean_text(None, None)
    ('81.2 %', '0.8125', '–')
    """
    if value is None:
        return NONE
    return f"{value * 100:.1f} %" if kind is MetricKind.BINARY else f"{value:.4g}"


class Metric(NamedTuple):
    """One leaf of the values of a scorer's version: the scorer's reference, and the path into its values."""

    scorer: str
    path: Path = ()


def metric_names(metrics: Iterable[Metric]) -> dict[Metric, str]:
    """Return the display name of each metric: the scorer's name and the path, `judge.tone`. If two versions of one
    scorer would have the same name, the name includes the version: `judge:v1.tone`."""
    wanted = tuple(dict.fromkeys(metrics))
    short = {metric: ".".join((_scorer_name(metric.scorer), *metric.path)) for metric in wanted}
    taken = list(short.values())
    return {metric: short[metric] if taken.count(short[metric]) == 1 else _long_name(metric) for metric in wanted}


def _scorer_name(scorer: str) -> str:
    ref = ObjectRef.parse(scorer)
    return scorer if ref is None else ref.name


def _long_name(metric: Metric) -> str:
    ref = ObjectRef.parse(metric.scorer)
    named = metric.scorer if ref is None else f"{ref.entity}/{ref.project}/{ref.name}:{ref.version or 'latest'}"
    return ".".join((named, *metric.path))


def is_lower_better(metric: Metric, names: Collection[str]) -> bool:
    name = _scorer_name(metric.scorer)
    return not {name, ".".join((name, *metric.path)), _long_name(metric)}.isdisjoint(names)


def check_lower_is_better(names: Collection[str], metrics: Iterable[Metric]) -> None:
    known = metric_names(metrics)
    for name in names if known else ():
        if not any(is_lower_better(metric, [name]) for metric in known):
            names_known = ", ".join(sorted(known.values()))
            msg = f"{name!r} must be one of the metrics: {names_known}{nearest(name, known.values())}"
            raise InvalidInput.at("lower_is_better", msg=msg)


# ---- one trial ---------------------------------------------------------------------------------------------------


class Reading(NamedTuple):
    """The value of one metric in one trial, with its kind; or the reason why there is none. If the scorer failed, the
    metric is the scorer as a whole."""

    metric: Metric
    outcome: Outcome
    kind: MetricKind | None = None
    value: Any = None
    reason: str = ""


def readings(scores: Sequence[Score | ScoreView]) -> list[Reading]:
    found: list[Reading] = []
    for score in scores if len(scores) < 2 else _last_of_each(scores):
        whole, value = metric_of(score.scorer), score.value.get("value")
        kind = kind_of(value)
        if kind is not None:
            found.append(Reading(whole, Outcome.SCORED, kind, value))
        elif score.error is not None and "value" not in score.value:
            found.append(Reading(whole, Outcome.SCORER_ERROR, None, None, score.error))
        else:
            found += [_reading(Metric(whole.scorer, path), leaf, score.error) for path, leaf in leaves(value)]
    return found


def _last_of_each(scores: Sequence[Score | ScoreView]) -> Iterable[Score | ScoreView]:
    return {metric_of(score.scorer): score for score in scores}.values()


@lru_cache(maxsize=256)
def metric_of(scorer: str) -> Metric:
    return Metric(same_scheme(scorer))


_KINDS = {bool: MetricKind.BINARY, int: MetricKind.CONTINUOUS, float: MetricKind.CONTINUOUS, str: MetricKind.TEXT}
NUMERIC = (MetricKind.BINARY, MetricKind.CONTINUOUS)


def single_number(row: "RunRow") -> tuple[Metric, float] | None:
    """Return the metric and the number of a row that has one trial with one score; None for another row. Most rows
    are such, and this is faster than `readings`."""
    if len(row.trials) != 1:
        return None
    prediction, scores = row.trials[0]
    if prediction.error is not None or len(scores) != 1:
        return None
    score = scores[0]
    value: Any = score.value.get("value")
    if type(value) not in (bool, int, float) or not -LARGEST <= value <= LARGEST:
        return None
    return metric_of(score.scorer), value


def trial_readings(scored: ScoredPrediction) -> list[Reading]:
    """Read the scores of a trial. If the model failed, its scores do not count."""
    return [] if scored[0].error is not None else readings(scored[1])


def _reading(metric: Metric, value: Any, error: str | None) -> Reading:
    kind = kind_of(value)
    if kind is None:
        return Reading(metric, Outcome.UNSCORED, reason=error or unscored_reason(value))
    return Reading(metric, Outcome.SCORED, kind, value)


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the leaves of nested objects with the path to each; a list is a leaf.

    >>> list(leaves({"tone": True, "facts": {"found": 2}}))
    [(('tone',), True), (('facts', 'found'), 2)]
    """
    if isinstance(value, Mapping) and value:
        for name, member in value.items():
            yield from leaves(member, (*path, name))
    else:
        yield path, value


def kind_of(value: Any) -> MetricKind | None:
    kind = _KINDS.get(type(value))
    return kind if kind is not MetricKind.CONTINUOUS or abs(value) <= LARGEST else None


def unscored_reason(value: Any) -> str:
    if value is None:
        return "the scorer gave no score"
    if isinstance(value, float) and not math.isfinite(value):
        return f"the score is {value}"
    if isinstance(value, int | float):
        return f"the score is beyond {LARGEST:g}"
    return "an empty object is not a score" if isinstance(value, Mapping) else "a list is not a score"


# ---- rows --------------------------------------------------------------------------------------------------------


@quick_init
@attrs.frozen(weakref_slot=False)
class RunRow:
    digest: str
    trials: tuple[ScoredPrediction, ...]

    @property
    def inputs(self) -> Mapping[str, Any]:
        return self.trials[0][0].inputs

    @property
    def output(self) -> Any:
        return self.trials[0][0].output.get("value")

    @property
    def copies(self) -> int:
        """How many further rows were equal to it: how often the number of its first trial comes again."""
        first = self.trials[0][0].trial
        return sum(1 for prediction, _ in self.trials if prediction.trial == first) - 1

    @property
    def failures(self) -> list[str]:
        return [prediction.error for prediction, _ in self.trials if prediction.error is not None]

    @property
    def readings(self) -> list[Reading]:
        return list(chain.from_iterable(map(trial_readings, self.trials)))

    def cluster(self, key: str) -> str:
        if key not in self.inputs:
            raise InvalidInput.at("cluster_by", msg=f"the row {self.digest} has no input {key!r}")
        return canonical_json(self.inputs[key])


def rows(scored: Iterable[ScoredPrediction]) -> Iterator[RunRow]:
    """Group the predictions of a run into rows; equal rows are trials of each other. Predictions must come in the order
    of the row digests, as the index `by_row` gives it, so that only one row is in memory. Raises `ValueError` if they
    do not."""
    last = ""
    trials: tuple[ScoredPrediction, ...] = ()
    for one in scored:
        digest = one[0].row_digest
        if digest == last and trials:
            trials = (*trials, one)
            continue
        if trials:
            yield _row(last, trials)
        if digest < last:
            raise ValueError("scored predictions must be in the order of the row digests")
        last, trials = digest, (one,)
    if trials:
        yield _row(last, trials)


_row = maker(RunRow)


# ---- row values --------------------------------------------------------------------------------------------------


def row_values(row: RunRow, metrics: Collection[Metric], reduce: Reducer) -> dict[Metric, float]:
    found: dict[Metric, list[float]] = {}
    for reading in row.readings:
        if reading.kind in NUMERIC and reading.metric in metrics:
            found.setdefault(reading.metric, []).append(reading.value)
    return {metric: values[0] if len(values) == 1 else reduce(values) for metric, values in found.items()}


NAN = math.nan


@attrs.define
class MetricColumn:
    """One number for each row, of one metric: NaN if the row has none. `trials` counts the values before they were
    reduced; `numbers` tells whether any of them is not a bool. `incomplete` has the rows that lack a value in some of
    their trials: the values that exist, and how many are missing."""

    reduce: Reducer
    lower_is_better: bool = False
    values: "array[float]" = attrs.field(factory=lambda: array("d"))
    incomplete: dict[int, tuple[Sequence[float], int]] = attrs.field(factory=dict)
    trials: int = 0
    numbers: bool = False

    @property
    def kind(self) -> MetricKind:
        return MetricKind.CONTINUOUS if self.numbers else MetricKind.BINARY

    def put(self, row: int, values: Sequence[float], missing: int) -> float:
        self.fill(row)
        self.numbers = self.numbers or set(map(type, values)) != {bool}
        reduced = values[0] if len(values) == 1 else self.reduce(values)
        self.values.append(reduced)
        self.trials += len(values)
        if missing:
            self.incomplete[row] = (values, missing)
        return reduced

    def put_singles(self, row: int, values: Sequence[float], kind: MetricKind) -> None:
        """Take the values of rows with one trial each, from this row on."""
        self.fill(row)
        self.numbers = self.numbers or kind is MetricKind.CONTINUOUS
        self.values.extend(values)
        self.trials += len(values)

    def fill(self, row: int) -> None:
        if row > len(self.values):
            self.values.extend([NAN] * (row - len(self.values)))

    @property
    def present(self) -> "array[float]":
        return array("d", (value for value in self.values if value == value))

    @property
    def worst(self) -> float:
        """How a missing value counts when all trials count: as 0 (False), or the lowest value if that is lower. If
        lower is better, it counts as 1 (True), or as the highest value if that is higher."""
        if self.lower_is_better:
            return max((value for value in self.values if value > 1), default=1.0)
        return min((value for value in self.values if value < 0), default=0.0)

    def pessimistic(self, worst: float) -> "array[float]":
        found = array("d", (worst if value != value else value for value in self.values))
        for row, (values, missing) in self.incomplete.items():
            found[row] = self.reduce([*values, *[worst] * missing])
        return found
