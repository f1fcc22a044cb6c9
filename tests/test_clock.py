"""The system's random bytes are the system's, and each piece of them is given once; ids grow with time."""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count, pairwise
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.clock import PIECES, SystemClock, system_randomness, uuid7_from, uuid7_ids


def test_no_two_threads_get_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count()

    def numbered(size: int) -> bytes:
        return b"".join(next(numbers).to_bytes(8, "big") for _ in range(size // 8))

    monkeypatch.setattr(os, "urandom", numbered)
    read = system_randomness()
    with ThreadPoolExecutor(4) as threads:
        drawn = [*threads.map(lambda _: [read(8) for _ in range(PIECES)], range(8))]
    pieces = [piece for some in drawn for piece in some]
    assert {len(piece) for piece in pieces} == {8}
    assert len(set(pieces)) == len(pieces) == 8 * PIECES


def test_other_sizes_are_read_from_the_system_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def noted(size: int) -> bytes:
        asked.append(size)
        return bytes(size)

    monkeypatch.setattr(os, "urandom", noted)
    read = system_randomness()
    assert [len(read(size)) for size in (32, 8, 8, 16, 0)] == [32, 8, 8, 16, 0]
    assert asked == [32, 8 * PIECES, 16, 0]


def test_the_time_is_in_utc() -> None:
    before = datetime.now(UTC)
    assert before <= SystemClock().now() <= datetime.now(UTC)
    assert SystemClock().now().tzinfo is UTC


def test_sources_share_nothing() -> None:
    first, second = system_randomness(), system_randomness()
    assert not {first(8) for _ in range(4)} & {second(8) for _ in range(4)}


@given(
    st.integers(-5, 5) | st.integers(5, 2**47),
    st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2**64 - 1)), min_size=1),
)
def test_an_id_has_the_latest_time_and_the_random_bits(begun: int, steps: list[tuple[int, int]]) -> None:
    now, drawn = begun, 0
    make = uuid7_ids(lambda: now, lambda size: drawn.to_bytes(size, "big"))
    made: list[UUID] = []
    latest = 0  # the epoch is the earliest
    for step, drawn in steps:
        now += step
        latest = max(latest, now)
        made.append(UUID(text := make()))
        assert (str(made[-1]), made[-1].version, made[-1].variant) == (text, 7, RFC_4122)
        assert (made[-1].int >> 80, made[-1].int % 2**62) == (latest, drawn % 2**62)
    assert all(before < after for before, after in pairwise(made))


def test_more_ids_than_a_millisecond_has_grow_into_the_next_ones() -> None:
    make = uuid7_ids(lambda: 7, bytes)
    made = [UUID(make()) for _ in range(3 * 4096)]
    assert [id_.int >> 80 for id_ in made[::4096]] == [7, 8, 9]
    assert {id_.version for id_ in made} == {7}
    assert all(before < after for before, after in pairwise(made))


def test_ids_begin_where_those_of_their_time_do() -> None:
    moment = datetime(2026, 11, 24, 3, 0, 0, 123_000, tzinfo=UTC)
    make = uuid7_ids(lambda: int(moment.timestamp() * 1000), bytes)
    assert make() == f"{uuid7_from(moment)}-7000-8000-000000000000"
    assert make() == f"{uuid7_from(moment)}-7001-8000-000000000000"
