"""Adapters share a few slots: those in use stay, of the others the one used last the longest ago makes room."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from modelyard.errors import Overloaded
from modelyard.parts.torch.serving.adapter_slots import AdapterSlots

ENOUGH = 60.0
"""Seconds after which a wait is taken for endless."""


class Loads:
    """What was loaded into which slot, in order."""

    def __init__(self, count: int) -> None:
        self.slots, self.made = AdapterSlots(count), list[tuple[str, int]]()

    def use(self, *checkpoints: str) -> list[int]:
        found = []
        for checkpoint in checkpoints:
            with self.slots.pinned(
                checkpoint, lambda slot, checkpoint=checkpoint: self.made.append((checkpoint, slot))
            ) as slot:  # type: ignore[misc]
                found.append(slot)
        return found


def test_an_adapter_is_loaded_once_and_slot_0_is_the_base() -> None:
    loads = Loads(3)
    assert loads.use("a", "b", "a", "a") == [1, 2, 1, 1]
    assert loads.made == [("a", 1), ("b", 2)]


def test_the_one_used_longest_ago_makes_room() -> None:
    loads = Loads(2)
    loads.use("a", "b", "a", "c", "a", "b")
    assert loads.made == [("a", 1), ("b", 2), ("c", 2), ("b", 2)]


def test_one_in_use_stays_and_where_all_are_in_use_more_are_refused() -> None:
    loads = Loads(2)
    with ExitStack() as stack:
        for checkpoint in ("a", "a", "b"):
            stack.enter_context(loads.slots.pinned(checkpoint, lambda slot: None))
        with pytest.raises(Overloaded, match="every adapter slot"):
            loads.use("c")
        loads.use("a")
    assert loads.use("c", "b") == [2, 1]  # the slots of b, and then of a


def test_a_slot_whose_loading_failed_is_free_and_the_next_caller_tries_again() -> None:
    loads = Loads(1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), loads.slots.pinned("a", lambda slot: 1 // 0):
            pass
    assert loads.use("a") == [1]


def test_many_who_ask_at_once_load_it_once() -> None:
    loads, together = Loads(2), threading.Barrier(8)

    def ask(_: int) -> list[int]:
        together.wait(ENOUGH)
        return loads.use("a")

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(8), timeout=ENOUGH)) == [[1]] * 8
    assert loads.made == [("a", 1)]


def test_who_waits_for_a_loading_that_fails_loads_itself() -> None:
    slots, entered, fail = AdapterSlots(1), threading.Event(), threading.Event()

    def failing(slot: int) -> None:
        entered.set()
        fail.wait(ENOUGH)
        raise OSError("unreadable")

    def use(load: object) -> int:
        with slots.pinned("a", load) as slot:  # type: ignore[arg-type]
            return slot

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(use, failing)
        assert entered.wait(ENOUGH)
        second = threads.submit(use, lambda slot: None)
        fail.set()
        assert second.result(ENOUGH) == 1
        with pytest.raises(OSError, match="unreadable"):
            first.result(ENOUGH)
