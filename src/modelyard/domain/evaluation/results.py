"""The results of runs joined by row: which rows are kept, in which order, and what they say in short.

Pure: what is read comes as `ResultRow`s, in the order of their digests.
"""

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any, Generic, TypeVar

import attrs

from modelyard.domain.evaluation.filters import Expression, Field, fields_in, scorer_keys, truth
from modelyard.domain.evaluation.metrics import (
    Metric,
    MetricKind,
    Path,
    RunRow,
    ScoredPrediction,
    kind_of,
    trial_readings,
)
from modelyard.domain.evaluation.references import same_scheme
from modelyard.domain.usage import add
from modelyard.errors import CallerError

# ---- rows --------------------------------------------------------------------------------------------------------


J = TypeVar("J", bound=ScoredPrediction)


@attrs.frozen
class ResultRow(Generic[J]):
    """A row of several runs: its trials in each run that has it."""

    digest: str
    runs: Mapping[str, Sequence[J]]

    def trials(self, run_id: str | None) -> Iterable[J]:
        """Return the trials of one run, or of all."""
        if run_id is not None:
            return self.runs.get(run_id, ())
        return (trial for trials in self.runs.values() for trial in trials)


def joined(runs: Mapping[str, Iterable[RunRow]]) -> Iterator[ResultRow[ScoredPrediction]]:
    """Join the rows of runs by their digests; each run is given in the order of its digests."""
    streams = [_tagged(at, run_id, rows) for at, (run_id, rows) in enumerate(runs.items())]
    for digest, group in groupby(merge(*streams, key=itemgetter(0, 1)), key=itemgetter(0)):
        yield ResultRow(digest, {run_id: row.trials for _, _, run_id, row in group})


def _tagged(at: int, run_id: str, rows: Iterable[RunRow]) -> Iterator[tuple[str, int, str, RunRow]]:
    for row in rows:
        yield row.digest, at, run_id, row


# ---- which rows --------------------------------------------------------------------------------------------------


@attrs.frozen
class Filter:
    """A condition on the trials of one run, or (None) of any."""

    condition: Expression
    run_id: str | None = None


@attrs.frozen
class Sort:
    """An order by a field of one run, or (None) of all: by its value or, with `difference`, by how far the runs lie
    apart. Rows without a value come last, in both directions.

    Raises `CallerError` for a difference of what is no score.
    """

    field: Field
    descending: bool = False
    run_id: str | None = None
    difference: bool = False

    def __attrs_post_init__(self) -> None:
        if self.difference and not self.field.is_score:
            raise CallerError("only scores can be sorted by their difference: name a field that begins with scores.")


def _each_once(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ids))


@attrs.frozen
class ResultQuery:
    """Which rows of which runs are wanted, and in which order; without one by digest.

    With `match_all` a row must fit every filter, and one without a run in every run; else it must fit all filters of
    one run, or all of those without a run in some one run. `require_intersection` keeps the rows that all runs have;
    `summary_require_intersection` does so in the summary, and is the same where it is None. Without `summarise` there
    is none.
    """

    run_ids: tuple[str, ...] = attrs.field(converter=_each_once)
    filters: tuple[Filter, ...] = ()
    match_all: bool = False
    sorts: tuple[Sort, ...] = ()
    require_intersection: bool = False
    summary_require_intersection: bool | None = None
    limit: int | None = None
    offset: int = 0
    summarise: bool = True

    @property
    def by_digest_alone(self) -> bool:
        """Whether the digests of the rows alone decide which rows are on the page."""
        return not (self.filters or self.sorts or self.summarise)

    @property
    def looks_inside(self) -> bool:
        """Whether a filter or a sort goes by inputs or outputs, and not by scores alone."""
        return not all(field.is_score for field in fields_in((*self.filters, *self.sorts)))

    def in_all(self, runs: int) -> bool:
        """Return whether a row that so many runs have is in every one."""
        return runs == len(self.run_ids)

    def keeps(self, row: ResultRow[ScoredPrediction]) -> bool:
        """Return whether the row fits the filters."""
        if not self.filters:
            return True
        groups: dict[str | None, list[Expression]] = {}
        for one in self.filters:
            groups.setdefault(one.run_id, []).append(one.condition)
        fits = (self._fits(row, run_id, conditions) for run_id, conditions in groups.items())
        return all(fits) if self.match_all else any(fits)

    def _fits(self, row: ResultRow[ScoredPrediction], run_id: str | None, conditions: Sequence[Expression]) -> bool:
        """Return whether in the run, or in some or every run, some trial fits all conditions."""
        if run_id is not None:
            return _some(row.runs.get(run_id, ()), conditions)
        in_runs = (_some(row.runs.get(one, ()), conditions) for one in self.run_ids)
        return all(in_runs) if self.match_all else any(in_runs)

    def order(self, found: list[tuple[tuple[Any, ...], str]]) -> list[str]:
        """Return the digests of rows in the requested order. They are given with their `sort_values`, by digest."""
        for at in reversed(range(len(self.sorts))):
            found.sort(key=_ranking(at, self.sorts[at].descending), reverse=self.sorts[at].descending)
        return [digest for _, digest in found]

    def sort_values(self, row: ResultRow[ScoredPrediction]) -> tuple[Any, ...]:
        """Return the value of each sort key, None where the row has none."""
        return tuple(_sort_value(sort, row) for sort in self.sorts)

    def window(self, at: int) -> bool:
        """Return whether the row at a place of the order is on the page."""
        return at >= self.offset and (self.limit is None or at < self.offset + self.limit)


def _some(trials: Iterable[ScoredPrediction], conditions: Sequence[Expression]) -> bool:
    return any(all(truth(condition.of(trial)) for condition in conditions) for trial in trials)


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
    """Return the mean of a score over trials, bools as 0 and 1."""
    values = [
        value for trial in trials if kind_of(value := field.of(trial)) in (MetricKind.BINARY, MetricKind.CONTINUOUS)
    ]
    return math.fsum(values) / len(values) if values else None


# ---- what they say in short --------------------------------------------------------------------------------------


@attrs.frozen
class LeafStats:
    """One leaf of what a scorer answers, over the trials of a run that have a value there.

    A bool is no number: `numeric_mean` is over numbers, `pass_rate` over bools. `pass_signal_coverage` is the share of
    bools among the values.
    """

    scorer_key: str
    path: str | None
    value_type: MetricKind
    trial_count: int
    numeric_count: int
    numeric_mean: float | None
    pass_true_count: int
    pass_known_count: int

    @property
    def pass_rate(self) -> float | None:
        """How many of the bools are true; None without any."""
        return self.pass_true_count / self.pass_known_count if self.pass_known_count else None

    @property
    def pass_signal_coverage(self) -> float:
        """How many of the values are bools."""
        return self.pass_known_count / self.trial_count


@attrs.frozen
class RunSummary:
    """A run in short. Tokens and `cost` (USD) are of the model's calls only, None when none was reported."""

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
        """Count a value."""
        self.kinds[kind] += 1
        if kind is MetricKind.CONTINUOUS:
            self.numbers.append(value)
        elif kind is MetricKind.BINARY:
            self.passed += value

    def stats(self, key: str, path: Path) -> LeafStats:
        """Return the totals."""
        count = len(self.numbers)
        most = max(MetricKind, key=lambda kind: self.kinds[kind])
        mean = math.fsum(self.numbers) / count if count else None
        known = self.kinds[MetricKind.BINARY]
        return LeafStats(key, ".".join(path) or None, most, self.kinds.total(), count, mean, self.passed, known)


@attrs.define
class RunTotals:
    """Counts the trials of one run, and which scorers it has."""

    run_id: str
    trials: int = 0
    scorers: dict[str, None] = attrs.field(factory=dict)
    _leaves: defaultdict[Metric, _Leaf] = attrs.field(factory=lambda: defaultdict(_Leaf))
    _tokens: int | None = None
    _cost: Decimal | None = None

    def note(self, scorers: Iterable[str]) -> None:
        """Take note of scorers."""
        for scorer in scorers:
            self.scorers[scorer] = None

    def add(self, trial: ScoredPrediction) -> None:
        """Count a trial."""
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
        """Return the name of each scorer in the results, with the version where two versions share it."""
        short = Counter(scorer_keys(scorer)[0] for scorer in self.scorers)
        return {scorer: _name(scorer, short) for scorer in self.scorers}

    def summary(self) -> RunSummary:
        """Return the totals."""
        names = {same_scheme(scorer): name for scorer, name in self.names().items()}
        stats = [leaf.stats(names[metric.scorer], metric.path) for metric, leaf in self._leaves.items()]
        ordered = sorted(stats, key=lambda one: (one.scorer_key, one.path or ""))
        return RunSummary(self.run_id, self.trials, tuple(ordered), self._tokens, self._cost)


def _name(scorer: str, short: Counter[str]) -> str:
    name, versioned = scorer_keys(scorer)
    return name if short[name] == 1 else versioned


def tokens_of(trial: ScoredPrediction) -> int | None:
    """Return the tokens of the model's call; None when none were reported."""
    counts = (trial[0].prompt_tokens, trial[0].completion_tokens)
    return None if counts == (None, None) else sum(count or 0 for count in counts)
