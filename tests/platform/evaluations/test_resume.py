"""What a run that is resumed has left to do: found without reading again what it has done."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.domain.evaluation.run import Prediction, Score
from modelyard.domain.evaluation.running_totals import RunningTotals
from modelyard.platform.evaluations.shards import RemainingRows, RowKey
from modelyard.platform.evaluations.stored_rows import remaining_rows

NOW = datetime(2026, 11, 20, tzinfo=UTC)


class Stored:
    """A snapshot of what a run has stored: its predictions alone, which it counts how often it is asked for."""

    def __init__(self, places: Iterable[RowKey] = ()) -> None:
        self.places, self.requested = set(places), 0

    def find(self, cls: type, unique: str, run_id: str, *place: int) -> Prediction | None:
        assert (cls, unique, run_id) == (Prediction, "place", "run")
        self.requested += 1
        found = place in self.places
        index, trial = place
        made = Prediction("p", "e", "p", "m", {}, "d", NOW, "run", index, trial, error="no answer")
        return made if found else None

    def page(self, cls: type, *_: Any, **__: Any) -> list[Any]:
        assert cls is Score
        return []


def left_of(stored: Stored, reported: Any, trials: int, total: int, width: int) -> tuple[RemainingRows, RunningTotals]:
    tally = RunningTotals({"s": "ref"})
    tally.restore(reported)
    places = lambda first: (divmod(number, trials) for number in range(first, total))  # noqa: E731 - it is short
    return remaining_rows(stored, "run", reported, places, width, tally.add), tally  # type: ignore[arg-type]


@pytest.mark.slow
@examples(100)
@given(st.data(), st.integers(1, 40), st.integers(1, 3), st.integers(1, 5))
def test_whenever_it_is_killed_just_what_is_not_stored_is_left(
    data: st.DataObject, rows: int, trials: int, width: int
) -> None:
    total = rows * trials
    places = [divmod(number, trials) for number in range(total)]
    stored, reported = Stored(), dict[str, Any]()
    for _ in range(data.draw(st.integers(1, 4), "kills")):
        left, tally = left_of(stored, reported, trials, total, width)
        waiting = [(number, place) for number, place in enumerate(places) if left.has(number, place)]
        assert {place for _, place in waiting} == set(places) - stored.places
        assert (tally.rows, tally.failed) == (len(stored.places),) * 2
        begun, open_ = left.begun, list[tuple[int, RowKey]]()
        for _ in range(data.draw(st.integers(0, total), "rows until the kill")):
            while waiting and len(open_) < width:
                open_.append(waiting.pop(0))
                begun = max(begun, open_[-1][0] + 1)
            if not open_:
                break
            _, done = open_.pop(data.draw(st.integers(0, len(open_) - 1), "done"))
            stored.places.add(done)
            tally.add(Prediction("p", "e", "p", "m", {}, "d", NOW, error="no answer"), [])
            if data.draw(st.booleans(), "reported"):
                reported = {**tally.data, "begun": begun, "open": [list(place) for _, place in open_]}


def test_nothing_reported_as_done_is_looked_up_again() -> None:
    reported = {**RunningTotals({}).data, "begun": 99_990, "open": [[3, 0]]}
    stored = Stored([(index, 0) for index in range(99_995) if index != 3])
    left, tally = left_of(stored, reported, 1, 100_000, 8)
    assert left == RemainingRows(99_995, frozenset({(3, 0)}))
    assert tally.rows == 5
    assert stored.requested == 1 + 5 + 5  # the open one, those done since, and those up to the last


def test_without_a_word_everything_is_looked_up() -> None:
    left, tally = left_of(Stored([(0, 0), (2, 0)]), {"done": 2, "total": 9, "score": 0.5}, 1, 9, 2)
    assert left == RemainingRows(3, frozenset({(1, 0)}))
    assert tally.rows == 2
