"""How many requests a server gets at once: a limiter with a bounded queue, for threads and event loops."""

import threading
from collections.abc import Callable

import attrs

from modelyard.errors import Overloaded


@attrs.define(eq=False)
class Place:
    """A place among the concurrent requests, or in the queue until `wake` is called."""

    wake: Callable[[], object]
    inside: bool = False


class ConcurrencyLimiter:
    """Lets `limit` requests in at once and `queue` wait, first come, first served. Thread-safe; never waits itself."""

    def __init__(self, limit: int, queue: int) -> None:
        self._lock = threading.Lock()
        self._limit, self._free, self._queue = limit, limit, queue
        self._waiting: dict[Place, None] = {}

    def acquire(self, wake: Callable[[], object]) -> Place:
        """Return a place, which must be released. Its `wake` is called, from any thread, when its turn has come.

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
                    f"the upstream server gets {self._limit} requests at once and {self._queue} more wait; try again"
                )
        return place

    def release(self, place: Place) -> None:
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
