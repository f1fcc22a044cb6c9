"""The few lowest of any number of things."""

import heapq
from typing import Generic, TypeVar

import attrs

T = TypeVar("T")


@attrs.define
class Lowest(Generic[T]):
    """At most `keep` items: those with the lowest rank that were offered, of equal ones the first.

    >>> lowest = Lowest(2)
    >>> for rank in (3.0, 1.0, 2.0):
    ...     lowest.offer(rank, f"rank {rank:g}")
    >>> lowest.items
    ('rank 1', 'rank 2')
    """

    keep: int
    _heap: list[tuple[float, int, T]] = attrs.field(factory=list)
    _offered: int = 0

    def offer(self, rank: float, item: T) -> None:
        """Keep an item as long as fewer than `keep` others rank lower."""
        self._offered += 1
        if len(self._heap) < self.keep:
            heapq.heappush(self._heap, (-rank, -self._offered, item))
        elif self._heap and -rank > self._heap[0][0]:
            heapq.heapreplace(self._heap, (-rank, -self._offered, item))

    @property
    def items(self) -> tuple[T, ...]:
        """What is kept, the lowest first."""
        return tuple(item for _, _, item in sorted(self._heap, key=lambda entry: (-entry[0], -entry[1])))
