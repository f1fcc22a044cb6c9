"""The system's random bytes are the system's, and each piece of them is given once."""

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from modelyard.clock import PIECES, system_randomness


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


def test_sources_share_nothing() -> None:
    first, second = system_randomness(), system_randomness()
    assert not {first(8) for _ in range(4)} & {second(8) for _ in range(4)}
