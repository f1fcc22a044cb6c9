"""A watch over the workers of a fleet while it is hit: a job that is claimed comes on, and a free worker takes jobs.

Its clock are their own heartbeats, so that neither the speed of the machine nor an outage changes what it finds.
"""

from collections.abc import Hashable

import attrs

from modelyard import Platform
from modelyard.domain.job import Job, JobProgress, QueueState
from modelyard.domain.worker import WorkerProcess, WorkerRecord
from modelyard.errors import StoreError
from modelyard.platform.jobs.runner import BEATS_PER_LEASE
from modelyard.protocols import Snapshot

LATE = 10 * BEATS_PER_LEASE
"""Heartbeats in which a claimed job comes on, and a free worker takes one that is ready."""


@attrs.frozen
class _Look:
    held: list[JobProgress]
    ready: bool
    workers: list[WorkerRecord]
    beats: dict[str, int]


def _look(snapshot: Snapshot) -> _Look:
    return _Look(
        snapshot.page(JobProgress, "by_held", True),
        bool(snapshot.page(Job, "by_place", QueueState.READY, limit=1)),
        snapshot.page(WorkerRecord, "all", "worker"),
        {process.id: process.beat for process in snapshot.page(WorkerProcess, "all")},
    )


@attrs.define
class _Idle:
    """How many beats of a heart there were while nothing else happened."""

    beat: int
    beats: int = 0


@attrs.define
class Hearts:
    """What was seen so far. `beats` grows while any worker lives."""

    opened: Platform
    broken: list[str]
    beats: int = 0
    _last: dict[str, int] = attrs.field(factory=dict)
    _claims: dict[Hashable, _Idle] = attrs.field(factory=dict)
    _free: dict[Hashable, _Idle] = attrs.field(factory=dict)

    def look(self, calm: bool) -> None:
        """Look once. Beats since the last look do not count unless it is `calm`: what jobs need may be away."""
        try:
            seen = self.opened._runtime.store.read(_look)
        except StoreError:
            return
        self.beats += sum(max(0, beat - self._last.get(id, beat)) for id, beat in seen.beats.items())
        self._last = seen.beats
        claims = {
            (one.job_id, one.epoch, one.worker_id, one.gain.value, one.last_seq, one.step): one.beat
            for one in seen.held
        }
        busy = {one.worker_id for one in seen.held}
        free = [one for one in seen.workers if seen.ready and one.id not in busy and one.process_id in seen.beats]
        self._claims = counted(self._claims, claims, calm)
        self._free = counted(self._free, {one.id: seen.beats[one.process_id] for one in free}, calm)
        self._say("is held by a worker that lives, and does not come on (job, epoch, worker, …)", self._claims)
        self._say("lives, and takes none of the jobs that are ready (worker)", self._free)

    def _say(self, what: str, idle: dict[Hashable, _Idle]) -> None:
        late = [f"{of} {what}" for of, one in idle.items() if one.beats >= LATE]
        self.broken += [line for line in late if line not in self.broken]


def counted(before: dict[Hashable, _Idle], now: dict[Hashable, int], calm: bool) -> dict[Hashable, _Idle]:
    """Return how long each of these hearts has beaten for nothing, with what was counted before."""
    idle = {of: before.get(of, _Idle(beat)) for of, beat in now.items()}
    return {of: _Idle(now[of], one.beats + (now[of] - one.beat if calm else 0)) for of, one in idle.items()}
