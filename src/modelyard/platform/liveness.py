"""Who has gone still, judged by what this platform itself has seen on its own monotonic clock.

No decision about another process compares wall clocks: a mark that grows while its owner lives is looked at again and
again, and the time since it last changed is what counts.
"""

import threading
from collections.abc import Hashable, Mapping
from typing import Any

import attrs


@attrs.define
class _Seen:
    mark: Hashable
    since: float


@attrs.define(eq=False)
class LivenessMonitor:
    """Remembers marks of several groups, such as the beats of all workers. Thread-safe.

    >>> monitor = LivenessMonitor()
    >>> monitor.idle_seconds("workers", {"w": 7}, now=10.0), monitor.idle_seconds("workers", {"w": 7}, now=15.0)
    ({'w': 0.0}, {'w': 5.0})
    """

    _groups: dict[str, dict[Hashable, _Seen]] = attrs.field(factory=dict, init=False)
    _lock: Any = attrs.field(factory=threading.Lock, init=False)

    def idle_seconds(self, group: str, marks: Mapping[str, Hashable], now: float) -> Mapping[str, float]:
        """How long each mark has stood still. `marks` are all of the group: what is not among them is forgotten."""
        with self._lock:
            before = self._groups.get(group, {})
            seen: dict[Hashable, _Seen] = {key: _looked_at(before.get(key), mark, now) for key, mark in marks.items()}
            self._groups[group] = seen
            return {key: max(0.0, now - seen[key].since) for key in marks}


def _looked_at(seen: _Seen | None, mark: Hashable, now: float) -> _Seen:
    return seen if seen is not None and seen.mark == mark else _Seen(mark, now)
