"""A cache of adapters in the bank's slots: the least recently used are replaced, and adapters in use are pinned."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from modelyard.errors import QueueFull

Load = Callable[[int], None]
"""Loads an adapter into the slot of this number."""


class AdapterSlots:
    """Slots 1 to `count`; slot 0 is the unchanged base model. Thread-safe."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = list(range(count, 0, -1))
        self._slots: OrderedDict[str, int] = OrderedDict()
        self._pins: dict[str, int] = {}
        self._loading: dict[str, threading.Event] = {}

    @contextmanager
    def pinned(self, checkpoint: str, load: Load) -> Iterator[int]:
        """Yield the slot of a checkpoint, which is loaded first if needed and stays there within the context.

        Concurrent callers load it once. Raises `QueueFull` if every slot is in use, and what `load` raises.
        """
        slot = self._pin(checkpoint, load)
        try:
            yield slot
        finally:
            with self._lock:
                self._pins[checkpoint] -= 1

    def _pin(self, checkpoint: str, load: Load) -> int:
        while True:
            with self._lock:
                waiting = self._loading.get(checkpoint)
                if waiting is None and checkpoint in self._slots:
                    self._slots.move_to_end(checkpoint)
                    self._pins[checkpoint] += 1
                    return self._slots[checkpoint]
                if waiting is None:
                    slot = self._taken()
                    self._loading[checkpoint] = threading.Event()
                    break
            waiting.wait()
        return self._loaded(checkpoint, slot, load)

    def _loaded(self, checkpoint: str, slot: int, load: Load) -> int:
        done = False
        try:
            load(slot)
            done = True
            return slot
        finally:
            with self._lock:
                if done:
                    self._slots[checkpoint], self._pins[checkpoint] = slot, 1
                else:
                    self._free.append(slot)
                self._loading.pop(checkpoint).set()

    def _taken(self) -> int:
        if self._free:
            return self._free.pop()
        for checkpoint, slot in self._slots.items():
            if not self._pins[checkpoint]:
                del self._slots[checkpoint], self._pins[checkpoint]
                return slot
        raise QueueFull("every adapter slot of this model is in use; try again later, or ask for a larger Room")
