"""What a run consists of, read back."""

from collections.abc import Iterator
from functools import partial

from modelyard.domain.metric import Judged
from modelyard.domain.prediction import Prediction, Score
from modelyard.protocols import Snapshot
from modelyard.service.listing import BATCH, Cursor, cursor_at, every
from modelyard.service.ports import Ports


def read_judged(ports: Ports, run_id: str) -> Iterator[Judged]:
    """The predictions of a run with their scores, by row digest, read a page at a time."""
    after: Cursor | None = None
    while page := ports.store.read(partial(_judged_page, run_id, after)):
        yield from page
        after = cursor_at(Prediction, "by_row", page[-1][0])


def _judged_page(run_id: str, after: Cursor | None, snapshot: Snapshot) -> list[Judged]:
    found = snapshot.page(Prediction, "by_row", run_id, after=after, limit=BATCH)
    return [(prediction, tuple(every(snapshot, Score, "by_prediction", prediction.id))) for prediction in found]
