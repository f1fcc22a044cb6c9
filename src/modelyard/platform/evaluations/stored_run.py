"""What a run consists of, read back."""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

import attrs

from modelyard.domain.evaluation.metrics import FullScoredPrediction, ScoredPrediction
from modelyard.domain.evaluation.prediction import Prediction, PredictionView, Score, ScoreView
from modelyard.platform.paging import BATCH, MANY, Cursor, cursor_at, get_or_none, iter_columns, iter_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

P = TypeVar("P", bound=Prediction | PredictionView)
S = TypeVar("S", bound=Score | ScoreView)


@attrs.frozen
class StoredRun:
    """The predictions of a run with their scores, by row digest, read a page at a time, as often as is asked.

    Scores are in the order in which they were made.
    """

    runtime: Runtime
    run_id: str

    def whole(self) -> Iterator[FullScoredPrediction]:
        """With everything that is known of them."""
        return self._judged(WHOLE, BATCH)

    def numbers(self, looking: bool = False) -> Iterator[ScoredPrediction]:
        """As much as numbers need. Inputs and outputs are looked up one by one where they are asked for; when
        `looking`, they are read along, so that those of the rows at hand are there.
        """
        return self._judged(Depth(_Views(self.runtime, looking), _score_views), BATCH)

    def values(self) -> Iterator[ScoredPrediction]:
        """As much as a comparison needs, which a store has in its indexes: values and errors, not what they took."""
        return self._judged(Depth(_Views(self.runtime, looking=False).glances, _score_glances), MANY)

    def digests(self) -> Iterator[str]:
        """The digests of its rows, each once, in their order."""
        for digest, _ in groupby(
            iter_columns(self.runtime, Prediction, ("row_digest",), "by_row", self.run_id), key=_first
        ):
            yield digest

    def scorers(self) -> Iterator[str]:
        """The scorer of each of its scores, in the order in which they were made."""
        return map(_first, iter_columns(self.runtime, Score, ("scorer",), "by_run", self.run_id))

    def _judged(self, depth: "Depth[P, S]", size: int) -> Iterator[tuple[P, Sequence[S]]]:
        after: Cursor | None = None
        while page := self.runtime.store.read(partial(_page, depth, self.run_id, after, size)):
            yield from page
            after = _behind(page[-1])


_first: Callable[[tuple[Any, ...]], str] = itemgetter(0)


# ---- how much of a record is read ----------------------------------------------------------------------------------


@attrs.frozen
class Depth(Generic[P, S]):
    """How much is read of predictions and scores: each reads a page of an index `by_row`.

    They take a snapshot, the run's id, a cursor and a limit.
    """

    predictions: Callable[[Snapshot, str, Cursor | None, int], list[P]]
    scores: Callable[[Snapshot, str, Cursor | None, int], list[S]]


def _records(cls: type[Any], snapshot: Snapshot, run_id: str, after: Cursor | None, limit: int) -> list[Any]:
    return snapshot.page(cls, "by_row", run_id, after=after, limit=limit)


WHOLE: Depth[Prediction, Score] = Depth(partial(_records, Prediction), partial(_records, Score))
"""Whole records."""

_new = tuple.__new__
"""Makes a named tuple without counting its values, which takes half the time; there is one for every record."""

_GLANCED = ("id", "row_digest", "trial", "error")
_SCORE_GLANCED = ScoreView._fields[:-3]
_VIEWED = PredictionView._fields[:-1]
_values = attrgetter(*_VIEWED)


@attrs.define
class _Views:
    """Reads views of predictions, and looks up what they leave out: in the page at hand, else in the store."""

    runtime: Runtime
    looking: bool
    _at_hand: dict[str, Prediction | None] = attrs.field(factory=dict, init=False)

    def __call__(self, snapshot: Snapshot, run_id: str, after: Cursor | None, limit: int) -> list[PredictionView]:
        if not self.looking:
            found = snapshot.select(Prediction, _VIEWED, "by_row", run_id, after=after, limit=limit)
        else:
            page = snapshot.page(Prediction, "by_row", run_id, after=after, limit=limit)
            self._at_hand = {one.id: one for one in page}
            found = list(map(_values, page))
        return [_new(PredictionView, (*values, self.whole)) for values in found]

    def glances(self, snapshot: Snapshot, run_id: str, after: Cursor | None, limit: int) -> list[PredictionView]:
        """The same without what predictions took."""
        found = snapshot.select(Prediction, _GLANCED, "by_row", run_id, after=after, limit=limit)
        rest = (None, None, None, None, None, 0, self.whole)
        return [_new(PredictionView, (key, row, trial, "", error, *rest)) for key, row, trial, error in found]

    def whole(self, prediction_id: str) -> Prediction | None:
        """A prediction, or None once it is deleted; it stays at hand until there are more than in a page."""
        if prediction_id not in self._at_hand:
            if len(self._at_hand) > BATCH:
                self._at_hand = {}
            found = self.runtime.store.read(lambda snapshot: get_or_none(snapshot, Prediction, prediction_id))
            self._at_hand[prediction_id] = found
        return self._at_hand[prediction_id]


def _score_views(snapshot: Snapshot, run_id: str, after: Cursor | None, limit: int) -> list[ScoreView]:
    found = snapshot.select(Score, ScoreView._fields, "by_row", run_id, after=after, limit=limit)
    return [_new(ScoreView, values) for values in found]


def _score_glances(snapshot: Snapshot, run_id: str, after: Cursor | None, limit: int) -> list[ScoreView]:
    found = snapshot.select(Score, _SCORE_GLANCED, "by_row", run_id, after=after, limit=limit)
    return [_new(ScoreView, (*values, None, None, None)) for values in found]


# ---- a page --------------------------------------------------------------------------------------------------------


def _behind(judged: ScoredPrediction) -> Cursor:
    return cursor_at(Prediction, "by_row", judged[0])


def _page(
    depth: Depth[P, S], run_id: str, after: Cursor | None, limit: int, snapshot: Snapshot
) -> list[tuple[P, Sequence[S]]]:
    found = depth.predictions(snapshot, run_id, after, limit)
    scores = _scores(depth, snapshot, run_id, found)
    return [(prediction, scores.get(prediction.id, ())) for prediction in found]


def _scores(depth: Depth[P, S], snapshot: Snapshot, run_id: str, found: Sequence[P]) -> dict[str, list[S]]:
    """The scores of predictions that follow each other `by_row`, for those that have any."""
    scores: dict[str, list[S]] = {}
    for batch in _scores_between(depth, snapshot, run_id, found):
        for score in batch:
            scores.setdefault(score.prediction_id, []).append(score)
    for several in scores.values():
        if len(several) > 1:
            several.sort(key=_made)
    return scores


_made = attrgetter("created_at", "id")
_place = attrgetter("row_digest", "trial", "prediction_id")


def _scores_between(depth: Depth[P, S], snapshot: Snapshot, run_id: str, found: Sequence[P]) -> Iterator[Sequence[S]]:
    """All scores from those of the first prediction to those of the last, in batches.

    These are one longer than there are predictions: where all have equally many scores, hardly one is read that is not
    wanted.
    """
    if not found:
        return
    first, last = (cursor_at(Prediction, "by_row", one) for one in (found[0], found[-1]))
    after, size = (*first, ""), len(found) + 1
    while batch := depth.scores(snapshot, run_id, after, size):
        ended = len(batch) < size or _place(batch[-1]) > last
        yield batch[: bisect_right(batch, last, key=_place)] if ended else batch
        if ended:
            return
        after = cursor_at(Score, "by_row", batch[-1])


def scores_of(snapshot: Snapshot, prediction: Prediction) -> list[Score]:
    """The scores of one prediction, in the order in which they were made."""
    place = (prediction.run_id, prediction.row_digest, prediction.trial, prediction.id)
    return sorted(iter_index(snapshot, Score, "by_prediction", *place), key=_made)


# ---- single rows ---------------------------------------------------------------------------------------------------

FEW = 2
"""How many predictions are read of a row that is looked up: its one trial, and that there is no other."""


@attrs.define
class RowFinder:
    """Finds rows of a run by their digests.

    As long as one row after the other is asked for, more and more of what follows is read at once.
    """

    runtime: Runtime
    run_id: str
    _ahead: deque[FullScoredPrediction] = attrs.field(factory=deque, init=False)
    _after: Cursor | None = attrs.field(default=None, init=False)
    _limit: int = attrs.field(default=FEW, init=False)
    _asked: str = attrs.field(default="", init=False)

    def trials(self, digest: str) -> tuple[FullScoredPrediction, ...]:
        """The trials of a row; none where the run does not have it."""
        self._go_to(digest)
        found: list[FullScoredPrediction] = []
        while self._ahead and self._ahead[0][0].row_digest == digest:
            found.append(self._ahead.popleft())
            if not self._ahead:
                self._read_on()
        return tuple(found)

    def _go_to(self, digest: str) -> None:
        """Have the first trial of the row ahead, or else what comes behind it."""
        back, self._asked = digest <= self._asked, digest
        while self._ahead and self._ahead[0][0].row_digest < digest:
            self._ahead.popleft()
        if back or not self._ahead:
            self._after, self._limit = (digest, -1, ""), FEW
            self._read_on()

    def _read_on(self) -> None:
        page = self.runtime.store.read(partial(_page, WHOLE, self.run_id, self._after, self._limit))
        self._ahead = deque(page)
        if page:
            self._after, self._limit = _behind(page[-1]), min(2 * self._limit, BATCH)
