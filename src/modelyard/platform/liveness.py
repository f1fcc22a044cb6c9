"""How long other processes have been idle, measured on this platform's own monotonic clock. No decision about another
process compares wall clocks: a heartbeat that grows while its owner lives is read again and again, and the time since
it last changed counts. Time in which the store could not be read does not: nothing could be written to it either."""

import threading
from collections.abc import Hashable, Mapping
from typing import Any

import attrs


@attrs.define
class _Seen:
    heartbeat: Hashable
    since: float
    looked: float


@attrs.define(eq=False)
class LivenessMonitor:
    """Remembers the heartbeats of several groups, such as all workers. Thread-safe.

    >>> monitor = LivenessMonitor()
    >>> monitor.idle_seconds("workers", {"w": 7}, now=10.0), monitor.idle_seconds("workers", {"w": 7}, now=15.0)
    ({'w': 0.0}, {'w': 5.0})
    """

    _groups: dict[str, dict[Hashable, _Seen]] = attrs.field(factory=dict, init=False)
    _lock: Any = attrs.field(factory=threading.Lock, init=False)

    def leave_out(self, begun: float, ended: float) -> None:
        with self._lock:
            for one in (one for group in self._groups.values() for one in group.values()):
                one.since = min(one.since + ended - begun, ended)

    def idle_seconds(
        self, group: str, heartbeats: Mapping[str, Hashable], now: float, remembered: float = 0.0
    ) -> Mapping[str, float]:
        """Return how many seconds each heartbeat has not changed. The others of the group are forgotten when they were
        given more than `remembered` seconds ago."""
        with self._lock:
            before = self._groups.get(group, {})
            seen: dict[Hashable, _Seen] = {
                key: _observed(before.get(key), heartbeat, now) for key, heartbeat in heartbeats.items()
            }
            others = {key: one for key, one in before.items() if now - one.looked < remembered and key not in seen}
            self._groups[group] = {**others, **seen}
            return {key: max(0.0, now - seen[key].since) for key in heartbeats}

    def idle(self, group: str, key: str, now: float) -> float:
        seen = self._groups.get(group, {}).get(key)
        return 0.0 if seen is None else max(0.0, now - seen.since)


def _observed(seen: _Seen | None, heartbeat: Hashable, now: float) -> _Seen:
    since = now if seen is None or seen.heartbeat != heartbeat else seen.since
    return _Seen(heartbeat, since, now)
