"""Sorted entries answer as a sorted list does."""

from bisect import insort

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.stores import memory_tables
from modelyard.stores.memory_tables import SortedEntries

NUMBER = st.integers(-2, 30)
CHANGES = st.lists(st.integers(0, 28), max_size=80)
"""Each adds a number, or removes it where it is there."""


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_tables, "_LONGEST", 4)


def filled(changes: list[int]) -> tuple[SortedEntries, list[int]]:
    """Make these changes to entries that hold -1, and to a list."""
    entries, numbers = SortedEntries(((-1,), -1)), [-1]
    for number in changes:
        if number in numbers:
            numbers.remove(number)
            entries.remove((number,))
        else:
            insort(numbers, number)
            entries.add(((number,), number))
    return entries, numbers


@given(CHANGES, st.none() | NUMBER, st.integers(0, 40))
def test_pages_are_those_of_a_sorted_list(changes: list[int], cursor: int | None, limit: int) -> None:
    entries, numbers = filled(changes)
    place = None if cursor is None else (cursor,)
    assert entries.after(place, limit) == [n for n in numbers if cursor is None or n > cursor][:limit]
    assert entries.before(place, limit) == [n for n in reversed(numbers) if cursor is None or n < cursor][:limit]
    assert len(entries) == len(numbers)


@given(CHANGES)
def test_no_chunk_is_empty_or_long(changes: list[int]) -> None:
    entries, _ = filled(changes)
    assert all(0 < len(chunk) <= 4 for chunk in entries._chunks)
    assert entries._last is entries._chunks[-1]


def test_the_last_entry_of_all_is_dropped_with_the_object() -> None:
    entries = SortedEntries(((1,), 1))
    entries.remove((1,))
    assert not entries
