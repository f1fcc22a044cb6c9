"""The results of runs joined by row, and their summary."""

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any, Generic, Literal, TypedDict, TypeVar

import attrs

from modelyard.domain.evaluation.filters import Expression, Field, scorer_keys, truth
from modelyard.domain.evaluation.metrics import (
    NUMERIC,
    Metric,
    MetricKind,
    Path,
    RunRow,
    ScoredPrediction,
    kind_of,
    trial_readings,
)
from modelyard.domain.evaluation.objects import same_scheme
from modelyard.domain.usage import add
from modelyard.errors import CallerError, InvalidInput

# ---- rows --------------------------------------------------------------------------------------------------------


J = TypeVar("J", bound=ScoredPrediction)


@attrs.frozen
class ResultRow(Generic[J]):
    """A row of several runs, with its trials in each."""

    digest: str
    runs: Mapping[str, Sequence[J]]

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The row: what the models were given."""
        return next(iter(self.trials(None)))[0].inputs

    def trials(self, run_id: str | None) -> Iterable[J]:
        if run_id is not None:
            return self.runs.get(run_id, ())
        return (trial for trials in self.runs.values() for trial in trials)


def joined(runs: Mapping[str, Iterable[RunRow]]) -> Iterator[ResultRow[ScoredPrediction]]:
    streams = [_tagged(at, run_id, rows) for at, (run_id, rows) in enumerate(runs.items())]
    for digest, group in groupby(merge(*streams, key=itemgetter(0, 1)), key=itemgetter(0)):
        yield ResultRow(digest, {run_id: row.trials for _, _, run_id, row in group})


def _tagged(at: int, run_id: str, rows: Iterable[RunRow]) -> Iterator[tuple[str, int, str, RunRow]]:
    for row in rows:
        yield row.digest, at, run_id, row


# ---- which rows --------------------------------------------------------------------------------------------------


def _as_field(field: str | Expression) -> Field:
    found = Field(field) if isinstance(field, str) else field
    if not isinstance(found, Field):
        raise InvalidInput.at("sort", msg="must be a field, such as scores.right or inputs.prompt")
    return found


@attrs.frozen
class Sort:
    """An order by a field of one run, or (None) of all: by its value or, with `difference`, by how much the runs
    differ. Rows without a value come last, in both directions. Raises `CallerError` for a difference of a field that is
    not a score."""

    field: Field = attrs.field(converter=_as_field, eq=False)
    descending: bool = False
    run_id: str | None = None
    difference: bool = False

    def __attrs_post_init__(self) -> None:
        if self.difference and not self.field.is_score:
            raise CallerError("only scores can be sorted by their difference: name a field that begins with scores.")


Where = Expression | Mapping[str | None, Expression]


def _by_run(where: Where | None) -> Mapping[str | None, Expression]:
    every_run: Mapping[str | None, Expression] = {} if where is None or isinstance(where, Mapping) else {None: where}
    by_run = where if isinstance(where, Mapping) else every_run
    for condition in by_run.values():
        if not isinstance(condition, Expression):
            raise InvalidInput.at("where", msg='must be a condition, such as field("scores.right") == True')
    return by_run


def _orders(sort: str | Expression | Sort | Sequence[str | Expression | Sort]) -> tuple[Sort, ...]:
    several = [sort] if isinstance(sort, str | Expression | Sort) else sort
    return tuple(one if isinstance(one, Sort) else Sort(one) for one in several)


def _each_once(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ids))


class QueryOptions(TypedDict, total=False):
    where: Where | None
    match: Literal["all", "any"]
    sort: str | Expression | Sort | Sequence[str | Expression | Sort]
    in_all_runs: bool
    limit: int | None
    offset: int
    summarise: bool
    summary_in_all_runs: bool | None


@attrs.frozen
class ResultQuery:
    """Which rows of which runs to return, and in which order; by default by digest. A row fits a condition on a run if
    some trial of the run does. With `match` "all" it must fit the conditions of all runs, and a condition without a run
    in every run; with "any" those of one run. `in_all_runs` keeps the rows that all runs have; `summary_in_all_runs`
    does so in the summary, and None means the same as `in_all_runs`. Without `summarise` there is no summary. Raises
    `InvalidInput`."""

    run_ids: tuple[str, ...] = attrs.field(converter=_each_once)
    where: Mapping[str | None, Expression] = attrs.field(converter=_by_run, default=None, eq=False)
    match: Literal["all", "any"] = attrs.field(default="all")
    sort: tuple[Sort, ...] = attrs.field(converter=_orders, default=())
    in_all_runs: bool = False
    summary_in_all_runs: bool | None = None
    limit: int | None = None
    offset: int = 0
    summarise: bool = True

    @match.validator
    def _check_match(self, _: object, match: str) -> None:
        if match not in ("all", "any"):
            raise InvalidInput.at("match", msg="must be 'all' or 'any'")

    @property
    def fields(self) -> Iterator[Field]:
        for condition in self.where.values():
            yield from condition.fields
        yield from (sort.field for sort in self.sort)

    @property
    def by_digest_alone(self) -> bool:
        return not (self.where or self.sort or self.summarise)

    @property
    def looks_inside(self) -> bool:
        return not all(field.is_score for field in self.fields)

    def is_in_all(self, runs: int) -> bool:
        return runs == len(self.run_ids)

    def keeps(self, row: ResultRow[ScoredPrediction]) -> bool:
        if not self.where:
            return True
        combine = all if self.match == "all" else any
        return combine(
            combine(_some(row.runs.get(one, ()), condition) for one in (self.run_ids if run_id is None else (run_id,)))
            for run_id, condition in self.where.items()
        )

    def order(self, found: list[tuple[tuple[Any, ...], str]]) -> list[str]:
        for at in reversed(range(len(self.sort))):
            found.sort(key=_ranking(at, self.sort[at].descending), reverse=self.sort[at].descending)
        return [digest for _, digest in found]

    def sort_values(self, row: ResultRow[ScoredPrediction]) -> tuple[Any, ...]:
        return tuple(_sort_value(sort, row) for sort in self.sort)

    def window(self, at: int) -> bool:
        return at >= self.offset and (self.limit is None or at < self.offset + self.limit)


def _some(trials: Iterable[ScoredPrediction], condition: Expression) -> bool:
    return any(truth(condition.of(trial)) for trial in trials)


def _ranking(at: int, descending: bool) -> Callable[[tuple[tuple[Any, ...], str]], Any]:
    """Return the key of a sort: numbers before strings before nothing, in both directions."""

    def rank(found: tuple[tuple[Any, ...], str]) -> Any:
        value = found[0][at]
        place = 2 if value is None else 1 if isinstance(value, str) else 0
        return (-place if descending else place, 0 if value is None else value)

    return rank


def _sort_value(sort: Sort, row: ResultRow[ScoredPrediction]) -> float | str | None:
    if sort.difference:
        means = [mean for trials in row.runs.values() if (mean := _mean(sort.field, trials)) is not None]
        return max(means) - min(means) if len(means) > 1 else None
    if sort.field.is_score:
        return _mean(sort.field, row.trials(sort.run_id))
    for trial in row.trials(sort.run_id):
        value = sort.field.of(trial)
        if isinstance(value, str | int | float):
            return value
    return None


def _mean(field: Field, trials: Iterable[ScoredPrediction]) -> float | None:
    values = [value for trial in trials if kind_of(value := field.of(trial)) in NUMERIC]
    return math.fsum(values) / len(values) if values else None


@attrs.frozen
class LeafStats:
    """One leaf of the values of a scorer, over the trials of a run that have it.

    `numeric_mean` is over numbers, beside which a bool counts as 0 or 1; `pass_rate`, the share of those that are true,
    over bools. Each is None without any. `pass_signal_coverage` is the share of bools among the values.
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
    values: "array[float]" = attrs.field(factory=lambda: array("d"))

    def add(self, kind: MetricKind, value: Any) -> None:
        self.kinds[kind] += 1
        if kind in NUMERIC:
            self.values.append(value)
        if kind is MetricKind.BINARY:
            self.passed += value

    def stats(self, key: str, path: Path) -> LeafStats:
        numbers = MetricKind.CONTINUOUS if self.kinds[MetricKind.CONTINUOUS] else MetricKind.BINARY
        most = MetricKind.TEXT if self.kinds[MetricKind.TEXT] > len(self.values) else numbers
        count = len(self.values) if numbers is MetricKind.CONTINUOUS else 0
        mean = math.fsum(self.values) / count if count else None
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
