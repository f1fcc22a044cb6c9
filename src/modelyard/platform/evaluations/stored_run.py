"""Reading a stored run: its predictions with their scores, in the order of the row digests."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import attrs

from modelyard.domain.evaluation.metrics import FullScoredPrediction, ScoredPrediction
from modelyard.domain.evaluation.number_rows_fast import ScorePage
from modelyard.domain.evaluation.objects import same_scheme
from modelyard.domain.evaluation.run import Prediction, PredictionView, Score, ScoreView
from modelyard.platform.listing import BATCH, Cursor
from modelyard.platform.paging import cursor_at, get_or_none, iter_columns, iter_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

MOST_SCORERS = 100


@attrs.frozen
class StoredRun:
    """Reads the predictions of a run with their scores, by row digest, a page at a time, as often as it is called.
    Scores are in the order in which they were made."""

    runtime: Runtime
    run_id: str

    def full(self) -> Iterator[FullScoredPrediction]:
        return self._read(_FULL, BATCH)

    def columns(self) -> Iterator[ScoredPrediction]:
        return self._read(_Depth(_Views(self.runtime).page, _score_views), BATCH)

    def pages(self) -> Iterator[ScorePage]:
        """Yield pages like `columns`, without latencies, tokens and costs: a store has the rest in its indexes. Pages
        are small, because the garbage collector looks through all objects when many are made at once."""
        views, after = _Views(self.runtime), None
        while found := self.runtime.store.read(partial(_score_page, views, self.run_id, after)):
            page, after = found
            yield page

    def digests(self) -> Iterator[str]:
        for digest, _ in groupby(
            iter_columns(self.runtime, Prediction, ("row_digest",), "by_row", self.run_id), key=_first
        ):
            yield digest

    def scorers(self) -> Iterator[str]:
        return map(_first, iter_columns(self.runtime, Score, ("scorer",), "by_run", self.run_id))

    def comment(self, row_digest: str, scorer: str) -> str:
        """Return what a scorer, by its reference, says of its value in the first trial of a row; "" for nothing."""
        first = (row_digest, -1, "", "")
        found = self.runtime.store.read(
            lambda snapshot: snapshot.page(Score, "by_row", self.run_id, after=first, limit=MOST_SCORERS)
        )
        words = (one.comment for one in found if one.row_digest == row_digest and same_scheme(one.scorer) == scorer)
        return next(words, None) or ""

    def _read(self, depth: "_Depth", size: int) -> Iterator[tuple[Any, Sequence[Any]]]:
        return chain.from_iterable(self._pages(depth, size))

    def _pages(self, depth: "_Depth", size: int) -> Iterator[list[tuple[Any, Sequence[Any]]]]:
        after: Cursor | None = None
        while page := self.runtime.store.read(partial(_page, depth, self.run_id, after, size)):
            yield page
            after = _after(page[-1])


_first: Callable[[tuple[Any, ...]], str] = itemgetter(0)


# ---- how much of a record is read ----------------------------------------------------------------------------------

_ReadPage = Callable[[Snapshot, str, Cursor | None, int], list[Any]]
"""Reads a page of an index `by_row`, given a run's id, a cursor and a limit."""


class _Depth(NamedTuple):
    predictions: _ReadPage
    scores: _ReadPage


def _records(cls: type[Any], snapshot: Snapshot, run_id: str, after: Cursor | None, limit: int) -> list[Any]:
    return snapshot.page(cls, "by_row", run_id, after=after, limit=limit)


_FULL = _Depth(partial(_records, Prediction), partial(_records, Score))

_new = tuple.__new__
"""Makes a named tuple without counting its values, which takes half the time; there is one for every record."""

_VIEWED = PredictionView._fields[:-1]
_WITHOUT_USAGE = ("row_digest", "trial", "id", "error")
_SCORE_WITHOUT_USAGE = ScoreView._fields[:-3]
_ONE_SCORE = ("prediction_id", "scorer", "value", "error")


@attrs.define
class _Views:
    runtime: Runtime
    _found: dict[str, Prediction | None] = attrs.field(factory=dict, init=False)

    def page(self, snapshot: Snapshot, run_id: str, after: Cursor | None, limit: int) -> list[PredictionView]:
        found = snapshot.select(Prediction, _VIEWED, "by_row", run_id, after=after, limit=limit)
        return [_new(PredictionView, (*values, self.look_up)) for values in found]

    def page_without_usage(
        self, snapshot: Snapshot, run_id: str, after: Cursor | None, limit: int
    ) -> list[PredictionView]:
        found = snapshot.select(Prediction, _WITHOUT_USAGE, "by_row", run_id, after=after, limit=limit)
        return [self.without_usage(*values) for values in found]

    def without_usage(self, row: str, trial: int, key: str, error: str | None) -> PredictionView:
        return PredictionView(key, row, trial, "", error, None, None, None, None, None, 0, self.look_up)

    def look_up(self, prediction_id: str) -> Prediction | None:
        if prediction_id not in self._found:
            if len(self._found) > BATCH:
                self._found = {}
            found = self.runtime.store.read(lambda snapshot: get_or_none(snapshot, Prediction, prediction_id))
            self._found[prediction_id] = found
        return self._found[prediction_id]


def _score_views(snapshot: Snapshot, run_id: str, after: Cursor | None, limit: int) -> list[ScoreView]:
    found = snapshot.select(Score, ScoreView._fields, "by_row", run_id, after=after, limit=limit)
    return [_new(ScoreView, values) for values in found]


def _score_views_without_usage(snapshot: Snapshot, run_id: str, after: Cursor | None, limit: int) -> list[ScoreView]:
    found = snapshot.select(Score, _SCORE_WITHOUT_USAGE, "by_row", run_id, after=after, limit=limit)
    return [_new(ScoreView, (*values, None, None, None)) for values in found]


# ---- a page --------------------------------------------------------------------------------------------------------


def _after(scored: ScoredPrediction) -> Cursor:
    return cursor_at(Prediction, "by_row", scored[0])


def _page(
    depth: _Depth, run_id: str, after: Cursor | None, limit: int, snapshot: Snapshot
) -> list[tuple[Any, Sequence[Any]]]:
    found = depth.predictions(snapshot, run_id, after, limit)
    batches = list(_scores_between(depth.scores, snapshot, run_id, found))
    if list(map(_prediction_of, chain.from_iterable(batches))) == list(map(_id, found)):
        return list(zip(found, zip(chain.from_iterable(batches)), strict=True))  # one score each, as most runs have
    scores = _by_prediction(batches)
    return [(prediction, scores.get(prediction.id, ())) for prediction in found]


def _score_page(
    views: _Views, run_id: str, after: Cursor | None, snapshot: Snapshot
) -> tuple[ScorePage, Cursor] | None:
    """Read a page of predictions and their scores, and the cursor after it; None after the last one. The scores are
    read twice if a prediction has none or several, which few runs have."""
    found = snapshot.select(Prediction, _WITHOUT_USAGE, "by_row", run_id, after=after, limit=BATCH)
    if not found:
        return None
    first, last = (*found[0][:3], ""), found[-1][:3]
    digests, trials, ids, errors = zip(*found, strict=True)
    scores = snapshot.select(Score, _ONE_SCORE, "by_row", run_id, after=first, limit=len(found) + 1)
    scored, scorers, values, reasons = zip(*scores, strict=True) if scores else ((), (), (), ())
    if scored[: len(ids)] != ids or scored[len(ids) :] == ids[-1:]:
        depth = _Depth(views.page_without_usage, _score_views_without_usage)
        return ScorePage.of(_page(depth, run_id, after, BATCH, snapshot)), last

    def one(at: int) -> ScoredPrediction:
        place = digests[at], trials[at], ids[at]
        score = ScoreView("", *place, 0, scorers[at], values[at], reasons[at], None, None, None)
        return views.without_usage(*place, errors[at]), (score,)

    return ScorePage(digests, errors, scorers, values, one), last


def _by_prediction(batches: Iterable[Sequence[Any]]) -> dict[str, list[Any]]:
    scores: dict[str, list[Any]] = {}
    for score in chain.from_iterable(batches):
        scores.setdefault(score.prediction_id, []).append(score)
    for several in scores.values():
        if len(several) > 1:
            several.sort(key=_made)
    return scores


_made, _id, _prediction_of = attrgetter("seq"), attrgetter("id"), attrgetter("prediction_id")
_place = attrgetter("row_digest", "trial", "prediction_id")


def _scores_between(read: _ReadPage, snapshot: Snapshot, run_id: str, found: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield all scores from those of the first prediction to those of the last, in batches. A batch is one longer than
    there are predictions, so if all predictions have equally many scores, hardly any is read in vain."""
    if not found:
        return
    first, last = (cursor_at(Prediction, "by_row", one) for one in (found[0], found[-1]))
    after, size = (*first, ""), len(found) + 1
    while batch := read(snapshot, run_id, after, size):
        ended = len(batch) < size or _place(batch[-1]) > last
        yield batch[: bisect_right(batch, last, key=_place)] if ended else batch
        if ended:
            return
        after = cursor_at(Score, "by_row", batch[-1])


def scores_of(snapshot: Snapshot, prediction: Prediction) -> list[Score]:
    key = (prediction.run_id, prediction.row_digest, prediction.trial, prediction.id)
    return sorted(iter_index(snapshot, Score, "by_prediction", *key), key=_made)


# ---- single rows ---------------------------------------------------------------------------------------------------

FIRST_READ = 2


@attrs.define
class RowFinder:
    """Finds rows of a run by their digests. As long as the digests rise, it reads more and more rows ahead."""

    runtime: Runtime
    run_id: str
    _ahead: deque[FullScoredPrediction] = attrs.field(factory=deque, init=False)
    _after: Cursor | None = attrs.field(default=None, init=False)
    _limit: int = attrs.field(default=FIRST_READ, init=False)
    _last: str = attrs.field(default="", init=False)

    def trials(self, digest: str) -> tuple[FullScoredPrediction, ...]:
        self._go_to(digest)
        found: list[FullScoredPrediction] = []
        while self._ahead and self._ahead[0][0].row_digest == digest:
            found.append(self._ahead.popleft())
            if not self._ahead:
                self._read_on()
        return tuple(found)

    def _go_to(self, digest: str) -> None:
        back, self._last = digest <= self._last, digest
        while self._ahead and self._ahead[0][0].row_digest < digest:
            self._ahead.popleft()
        if back or not self._ahead:
            self._after, self._limit = (digest, -1, ""), FIRST_READ
            self._read_on()

    def _read_on(self) -> None:
        page = self.runtime.store.read(partial(_page, _FULL, self.run_id, self._after, self._limit))
        self._ahead = deque(page)
        if page:
            self._after, self._limit = _after(page[-1]), min(2 * self._limit, BATCH)
