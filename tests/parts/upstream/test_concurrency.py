"""The door before a server: so many inside, so many waiting, first come, first served."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.errors import Overloaded
from modelyard.parts.upstream.concurrency import ConcurrencyLimiter, Place


@given(st.integers(1, 3), st.integers(0, 3), st.lists(st.none() | st.integers(0, 20), max_size=40))
def test_the_limiter_keeps_its_order_as_callers_come_and_go(room: int, queue: int, moves: list[int | None]) -> None:
    """None is a caller that comes; a number is a caller, inside or waiting, that goes."""
    limiter, there, woken = ConcurrencyLimiter(room, queue), list[Place](), list[Place]()
    for move in moves:
        if move is None and len(there) < room + queue:
            place = limiter.acquire(lambda: None)
            place.wake = lambda place=place: woken.append(place)
            there.append(place)
            assert place.inside is (len(there) <= room)
        elif move is None:
            with pytest.raises(Overloaded):
                limiter.acquire(lambda: None)
        elif there:
            waiting = [place for place in there if not place.inside]
            gone = there.pop(move % len(there))
            was_inside = gone.inside
            limiter.release(gone)
            assert woken == (waiting[:1] if was_inside else [])
            woken.clear()
        assert [place.inside for place in there] == [at < room for at in range(len(there))]


def test_a_place_that_is_left_twice_is_left_once() -> None:
    limiter = ConcurrencyLimiter(1, 0)
    place = limiter.acquire(lambda: None)
    limiter.release(place)
    limiter.release(place)
    assert limiter.acquire(lambda: None).inside
    with pytest.raises(Overloaded):
        limiter.acquire(lambda: None)
