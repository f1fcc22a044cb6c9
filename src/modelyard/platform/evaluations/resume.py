"""What a run that goes on has left to do, without reading again what it has done.

Every event that tells of progress says, of the moment at which it was stored, how many rows had been begun and which
of these were not done. Rows begin in order, as many at a time as the concurrency at most; so what was stored since is
found by looking up those that were open, and then one row after the other, until as many are missing as can be under
way.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from modelyard.domain.evaluation.prediction import Prediction, Score
from modelyard.domain.job import Job, JobEvent
from modelyard.domain.record import EMPTY
from modelyard.platform.evaluations.stored_run import scores_of
from modelyard.platform.paging import iter_index
from modelyard.protocols import Snapshot

PROGRESS = "evaluation_progress"

RowKey = tuple[int, int]
"""Index and trial of a row."""


@attrs.frozen
class RemainingRows:
    """What is to be done: the rows from the number `begun` on, in the order of their beginning, and `open` ones."""

    begun: int = 0
    open: frozenset[RowKey] = frozenset()

    def has(self, number: int, place: RowKey) -> bool:
        """Whether a row is to be done."""
        return number >= self.begun or place in self.open


def last_told(snapshot: Snapshot, run_id: str) -> Mapping[str, Any]:
    """The data of a run's last event that tells of progress; empty where there is none."""
    for job in iter_index(snapshot, Job, "of_lane", run_id, descending=True):
        for event in iter_index(snapshot, JobEvent, "by_job", job.id, size=4, descending=True):
            if event.type == PROGRESS:
                return event.data
    return EMPTY


def remaining_rows(
    snapshot: Snapshot,
    run_id: str,
    told: Mapping[str, Any],
    places_from: Callable[[int], Iterable[RowKey]],
    width: int,
    count: Callable[[Prediction, list[Score]], None],
) -> RemainingRows:
    """What is left of a run, and to `count`, what was stored since it was `told` how far it had come.

    `width` is how many rows may be under way; `places_from` gives the places of all rows from a number on.
    """

    def stored(place: RowKey) -> bool:
        prediction = snapshot.find(Prediction, "place", run_id, *place)
        if prediction is not None:
            count(prediction, scores_of(snapshot, prediction))
        return prediction is not None

    begun = told.get("begun", 0)
    still_open = [place for place in map(_place, told.get("open", ())) if not stored(place)]
    missing: list[RowKey] = []
    for number, place in enumerate(places_from(begun), begun):
        if not stored(place):
            missing.append(place)
        else:
            still_open += missing
            missing, begun = [], number + 1
        if len(missing) == width:
            break
    return RemainingRows(begun, frozenset(still_open))


def _place(told: Iterable[int]) -> RowKey:
    index, trial = told
    return index, trial
