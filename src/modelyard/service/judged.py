"""What a run consists of, read back."""

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial

import attrs

from modelyard.domain.metric import Judged
from modelyard.domain.prediction import Prediction, Score
from modelyard.protocols import Snapshot
from modelyard.service.listing import BATCH, Cursor, cursor_at, every
from modelyard.service.ports import Ports


def read_judged(ports: Ports, run_id: str) -> Iterator[Judged]:
    """The predictions of a run with their scores, by row digest, read a page at a time.

    Scores are in the order in which they were made.
    """
    after: Cursor | None = None
    while page := ports.store.read(partial(_page, run_id, after, BATCH)):
        yield from page
        after = _behind(page[-1])


FEW = 2
"""How many predictions are read of a row that is looked up: its one trial, and that there is no other."""


@attrs.define
class RowFinder:
    """Finds rows of a run by their digests.

    As long as one row after the other is asked for, more and more of what follows is read at once.
    """

    ports: Ports
    run_id: str
    _ahead: deque[Judged] = attrs.field(factory=deque, init=False)
    _after: Cursor | None = attrs.field(default=None, init=False)
    _limit: int = attrs.field(default=FEW, init=False)
    _asked: str = attrs.field(default="", init=False)

    def trials(self, digest: str) -> tuple[Judged, ...]:
        """The trials of a row; none where the run does not have it."""
        self._go_to(digest)
        found: list[Judged] = []
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
        page = self.ports.store.read(partial(_page, self.run_id, self._after, self._limit))
        self._ahead = deque(page)
        if page:
            self._after, self._limit = _behind(page[-1]), min(2 * self._limit, BATCH)


def _behind(judged: Judged) -> Cursor:
    return cursor_at(Prediction, "by_row", judged[0])


def _page(run_id: str, after: Cursor | None, limit: int, snapshot: Snapshot) -> list[Judged]:
    found = snapshot.page(Prediction, "by_row", run_id, after=after, limit=limit)
    scores = _scores(snapshot, run_id, found)
    return [(prediction, scores.get(prediction.id, ())) for prediction in found]


def _scores(snapshot: Snapshot, run_id: str, found: Sequence[Prediction]) -> dict[str, list[Score]]:
    """The scores of predictions that follow each other `by_row`, for those that have any."""
    scores: dict[str, list[Score]] = {}
    for score in _scores_between(snapshot, run_id, found):
        scores.setdefault(score.prediction_id, []).append(score)
    for several in scores.values():
        several.sort(key=_made)
    return scores


def _scores_between(snapshot: Snapshot, run_id: str, found: Sequence[Prediction]) -> Iterator[Score]:
    """All scores from those of the first prediction to those of the last.

    Batches are one longer than there are predictions: where all have equally many scores, hardly one is read that is
    not wanted.
    """
    if not found:
        return
    first, last = (cursor_at(Prediction, "by_row", one) for one in (found[0], found[-1]))
    for score in every(snapshot, Score, "by_row", run_id, after=(*first, ""), size=len(found) + 1):
        if (score.row_digest, score.trial, score.prediction_id) > last:
            return
        yield score


def scores_of(snapshot: Snapshot, prediction: Prediction) -> list[Score]:
    """The scores of one prediction, in the order in which they were made."""
    place = (prediction.run_id, prediction.row_digest, prediction.trial, prediction.id)
    return sorted(every(snapshot, Score, "by_prediction", *place), key=_made)


def _made(score: Score) -> tuple[object, ...]:
    return score.created_at, score.id
