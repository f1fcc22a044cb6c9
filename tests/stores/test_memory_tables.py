"""Sorted entries answer as a sorted list does."""

from bisect import insort
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.errors import RecordNotFound
from modelyard.parts.contracts.store_values import CONTRACT_RECORDS, Task
from modelyard.stores import memory_tables
from modelyard.stores.memory import MemoryStore
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


STEPS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["open", "done", None]), st.booleans()), max_size=40)
"""Each adds or replaces a task, or removes it where it has no state; some are undone."""


def changed(steps: list[tuple[int, str | None, bool]], listed_before: bool) -> MemoryStore:
    """Make these changes to a store."""
    store = MemoryStore(CONTRACT_RECORDS)
    store.transact(lambda tx: tx.add(Task("first")))
    if listed_before:
        store.read(lambda snapshot: snapshot.count(Task, "by_state", ""))
    for number, state, undone in steps:

        def step(tx: Any, id: str = str(number), state: str | None = state, undone: bool = undone) -> None:
            if state is None:
                tx.remove(Task, id)
            elif tx.find(Task, "key", id) is None:
                tx.add(Task(id, state))
            else:
                tx.replace(Task(id, state))
            if undone:
                raise ZeroDivisionError

        with suppress(RecordNotFound, ZeroDivisionError):
            store.transact(step)
    return store


@given(STEPS)
def test_a_listing_is_the_same_whether_it_was_asked_for_before_the_changes_or_after(
    steps: list[tuple[int, str | None, bool]],
) -> None:
    kept, made = changed(steps, listed_before=True), changed(steps, listed_before=False)
    for state in ("", "open", "done"):
        pages = [
            store.read(
                lambda snapshot, state=state: [(task, task.seq) for task in snapshot.page(Task, "by_state", state)]
            )
            for store in (kept, made)
        ]
        assert pages[0] == pages[1]
