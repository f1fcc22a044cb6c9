"""How many requests a server is asked at once: a door with a bounded queue, for threads and event loops alike."""

import threading
from collections.abc import Callable

import attrs

from modelyard.errors import Overloaded


@attrs.define(eq=False)
class Place:
    """Somebody's place: inside, or in the queue until `wake` is called."""

    wake: Callable[[], object]
    inside: bool = False


class ConcurrencyLimiter:
    """Lets `room` in at once and `queue` wait, first come, first served. Thread-safe, and never waits itself."""

    def __init__(self, room: int, queue: int) -> None:
        self._lock = threading.Lock()
        self._room, self._free, self._queue = room, room, queue
        self._waiting: dict[Place, None] = {}

    def come(self, wake: Callable[[], object]) -> Place:
        """A place, which must be left. Its `wake` is called, from any thread, when its turn has come.

        Raises `Overloaded` when the queue is full.
        """
        with self._lock:
            place = Place(wake)
            if self._free:
                self._free -= 1
                place.inside = True
            elif len(self._waiting) < self._queue:
                self._waiting[place] = None
            else:
                raise Overloaded(
                    f"the upstream server is asked {self._room} things at once and {self._queue} more wait; try again"
                )
        return place

    def leave(self, place: Place) -> None:
        """Give the place to the next one, or give up waiting."""
        following = None
        with self._lock:
            if not place.inside:
                self._waiting.pop(place, None)
                return
            place.inside = False
            following = next(iter(self._waiting), None)
            if following is None:
                self._free += 1
            else:
                del self._waiting[following]
                following.inside = True
        if following is not None:
            following.wake()
