"""Compare rows of one trial and one number 128 at a time: without it, a comparison takes thrice the CPU.

The rows of a run are read as columns, and what is another kind of row is compared by itself.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, groupby, islice
from math import isnan
from operator import attrgetter, eq, itemgetter, lt
from typing import Any

import attrs

from modelyard.domain.evaluation.metrics import LARGEST, Metric, MetricKind, RunRow, ScoredPrediction, metric_of, rows
from modelyard.domain.evaluation.run import Score, ScoreView
from modelyard.domain.record import EMPTY

MANY = 128
_FEW = 16
"""In so many rows, if one is of another kind, each is read by itself."""

_PAGE = 1000
_EXACT = 2**53
"""Up to here whole numbers differ from each other, and from floats, by what their difference as floats is."""


@attrs.frozen
class ScorePage:
    """Consecutive predictions of a run, column by column: the scorer and the value of the one score of each. If a
    prediction has another number of scores, the value is empty. `scored` makes the prediction at a position, with its
    scores."""

    digests: Sequence[str]
    errors: Sequence[str | None]
    scorers: Sequence[str]
    values: Sequence[Mapping[str, Any]]
    scored: Callable[[int], ScoredPrediction]

    @classmethod
    def of(cls, scored: Sequence[ScoredPrediction]) -> "ScorePage":
        predictions, scores = zip(*scored, strict=True)
        if all(map((1).__eq__, map(len, scores))):
            ones: Sequence[Score | ScoreView] = list(chain.from_iterable(scores))
        else:
            ones = [several[0] if len(several) == 1 else _NONE for several in scores]
        return cls(
            list(map(_digest, predictions)),
            list(map(_error, predictions)),
            list(map(_scorer, ones)),
            list(map(_value, ones)),
            scored.__getitem__,
        )


_digest, _error = attrgetter("row_digest"), attrgetter("error")
_scorer, _value = attrgetter("scorer"), attrgetter("value")
_NONE = ScoreView("", "", 0, "", 0, "", EMPTY, None, None, None, None)


def pages(scored: Iterable[ScoredPrediction]) -> Iterator[ScorePage]:
    rest = iter(scored)
    while page := list(islice(rest, _PAGE)):
        yield ScorePage.of(page)


@attrs.frozen
class NumberRows:
    """Consecutive rows of a run with one trial and one number each, of the same metric. Binary ones are all bools.
    `row` makes the row at a position."""

    metric: Metric
    kind: MetricKind
    digests: Sequence[str]
    values: Sequence[float]
    row: Callable[[int], RunRow]

    @property
    def digest(self) -> str:
        return self.digests[0]

    def part(self, start: int, end: int) -> "NumberRows":
        if end - start == len(self.digests):
            return self
        digests, values = self.digests[start:end], self.values[start:end]
        return NumberRows(self.metric, self.kind, digests, values, lambda at: self.row(start + at))


def row_blocks(found: Iterable[ScorePage]) -> Iterator[RunRow | NumberRows]:
    parts = chain.from_iterable(map(_parts, found))
    for many, group in groupby(parts, key=lambda part: isinstance(part, NumberRows)):
        if many:
            yield from group  # type: ignore[misc]  # the key tells the type
        else:
            yield from rows(group)  # type: ignore[arg-type]


def _parts(page: ScorePage) -> Iterator[NumberRows | ScoredPrediction]:
    last = len(page.digests) - 1
    yield page.scored(0)
    for start in range(1, last, MANY):
        yield from _part(page, start, min(start + MANY, last))
    if last:
        yield page.scored(last)


def _part(page: ScorePage, start: int, end: int) -> Iterator[NumberRows | ScoredPrediction]:
    found = _number_rows(page, start, end)
    if found is not None:
        yield found
    elif end - start > _FEW:
        middle = (start + end) // 2
        yield from _part(page, start, middle)
        yield from _part(page, middle, end)
    else:
        yield from map(page.scored, range(start, end))


def _number_rows(page: ScorePage, start: int, end: int) -> NumberRows | None:
    """Return these predictions as rows, if each has one trial with one number, and all are of one metric. The
    page has a prediction before and after them."""
    digests, scorers = page.digests[start - 1 : end + 1], page.scorers[start:end]
    if page.errors[start:end].count(None) < end - start or scorers.count(scorers[0]) < end - start:
        return None
    try:
        values = list(map(_number, page.values[start:end]))
    except KeyError:
        return None
    kind = _kind_of_all(values)
    if kind is None or not all(map(lt, digests, digests[1:])):
        return None
    numbered = digests[1:-1]
    return NumberRows(
        metric_of(scorers[0]),
        kind,
        numbered,
        values,
        lambda at: RunRow(numbered[at], (page.scored(start + at),)),
    )


_number: Callable[[Mapping[str, Any]], Any] = itemgetter("value")


def _kind_of_all(values: Sequence[Any]) -> MetricKind | None:
    """Return the kind of the values if all are numbers and their differences exact enough to rank by."""
    types = set(map(type, values))
    if types == {bool}:
        return MetricKind.BINARY
    if not types <= {int, float, bool}:
        return None
    most = _EXACT if int in types else LARGEST
    fits = -most <= min(values) and max(values) <= most and not isnan(sum(values))
    return MetricKind.CONTINUOUS if fits else None


# ---- two runs ----------------------------------------------------------------------------------------------------


@attrs.frozen
class NumberPairs:
    baseline: NumberRows
    candidate: NumberRows

    @property
    def size(self) -> int:
        return len(self.baseline.digests)


PairedRows = NumberPairs | tuple[RunRow | None, RunRow | None]


def paired_rows(
    baseline: Iterator[RunRow | NumberRows], candidate: Iterator[RunRow | NumberRows]
) -> Iterator[PairedRows]:
    one, other = next(baseline, None), next(candidate, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.digest < other.digest):
            yield _first(one), None
            one = _after(one, 1, baseline)
        elif one is None or other.digest < one.digest:
            yield None, _first(other)
            other = _after(other, 1, candidate)
        elif isinstance(one, NumberRows) and isinstance(other, NumberRows) and one.metric == other.metric:
            size = _common(one.digests, other.digests)
            yield NumberPairs(one.part(0, size), other.part(0, size))
            one, other = _after(one, size, baseline), _after(other, size, candidate)
        else:
            yield _first(one), _first(other)
            one, other = _after(one, 1, baseline), _after(other, 1, candidate)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    if all(map(eq, one, other)):
        return min(len(one), len(other))
    return next(at for at in count() if one[at] != other[at])


def _first(found: RunRow | NumberRows | None) -> RunRow | None:
    return found.row(0) if isinstance(found, NumberRows) else found


def _after(
    found: RunRow | NumberRows | None, size: int, rest: Iterator[RunRow | NumberRows]
) -> RunRow | NumberRows | None:
    if isinstance(found, NumberRows) and len(found.digests) > size:
        return found.part(size, len(found.digests))
    return next(rest, None)
