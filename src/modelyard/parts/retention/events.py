"""Let go of the events of jobs that ended long ago, after they were written to a file; the jobs stay.

A store that keeps months apart drops those in which all jobs have ended. Other events go in small steps. Each step can
be repeated after a crash; its events may then be in the file twice.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial

import attrs

from modelyard.clock import uuid7_from
from modelyard.domain.job import Job, JobEvent, SupersededEvent
from modelyard.parts.retention.retained import (
    AT_ONCE,
    Export,
    Path,
    exporting,
    months_before,
    pages_of,
    time_before,
)
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Month, MonthlyStore, Snapshot, Tx

_JOBS = 100
"""How many jobs one query looks at."""
_LAST = 2**62
_END = "\U0010ffff"

_Found = tuple[Sequence[JobEvent], Sequence[SupersededEvent]]
_Seen = tuple[str, bool]
"""The id of a job that has events, and whether these may go."""


@attrs.frozen
class RemovedEvents:
    """How many events were removed, and of how many jobs."""

    events: int
    jobs: int


def keep_events(runtime: Runtime, days: float, export: Path) -> RemovedEvents:
    """Remove the events of jobs that ended more than so many days ago, after they were appended to `export`.

    Raises `InvalidInput`.
    """
    until = time_before(runtime, days)
    events = jobs = 0
    with exporting(export) as file:
        for store, month in months_before(runtime, JobEvent, until):
            old = [may_go for _, may_go in _jobs_with_events(runtime, until, month.first, month.end)]
            if all(old):
                events, jobs = events + _drop(runtime, store, month, file), jobs + len(old)
        for first, end in _spans(runtime, until):
            for job_id, may_go in _jobs_with_events(runtime, until, first, end):
                if may_go:
                    events, jobs = events + _remove_events(runtime, job_id, file), jobs + 1
    return RemovedEvents(events, jobs)


def _spans(runtime: Runtime, until: datetime) -> Sequence[tuple[str, str]]:
    """Return where the ids of jobs lie that may have ended before a time: not those that were created since."""
    return ("", uuid7_from(until)), (uuid7_from(runtime.clock.now() + timedelta(days=1)), _END)


def _jobs_with_events(runtime: Runtime, until: datetime, first: str, end: str) -> Iterator[_Seen]:
    """Yield the jobs that have events, in the order of their ids: a probe of the key for each."""
    after = first, 0
    while page := runtime.store.read(partial(_next_jobs, until, after, end)):
        yield from page
        after = page[-1][0], _LAST


def _next_jobs(until: datetime, after: tuple[str, int], end: str, snapshot: Snapshot) -> list[_Seen]:
    found: list[_Seen] = []
    while len(found) < _JOBS:
        events = snapshot.select(JobEvent, ("job_id",), "all", after=after, limit=1)
        if not events or events[0][0] >= end:
            break
        job_id = events[0][0]
        job = get_or_none(snapshot, Job, job_id)
        found.append((job_id, job is None or (job.ended_at is not None and job.ended_at < until)))
        after = job_id, _LAST
    return found


def _drop(runtime: Runtime, store: MonthlyStore, month: Month, file: Export) -> int:
    """Export the events of a month, and drop it. Returns how many they were."""
    removed = 0
    for events in pages_of(store, JobEvent, month, ("job_id", "seq")):
        superseded = runtime.store.read(partial(_superseded, events))
        file.append([*events, *superseded])
        if superseded:
            runtime.store.transact(partial(_remove, (), superseded))
        removed += len(events)
    store.drop_month(JobEvent, month)
    return removed


def _remove_events(runtime: Runtime, job_id: str, file: Export) -> int:
    removed = 0
    while (found := runtime.store.read(partial(_events_of, job_id)))[0]:
        file.append([*found[0], *found[1]])
        runtime.store.transact(partial(_remove, *found))
        removed += len(found[0])
    return removed


def _events_of(job_id: str, snapshot: Snapshot) -> _Found:
    events = snapshot.page(JobEvent, "by_job", job_id, limit=AT_ONCE)
    return events, _superseded(events, snapshot)


def _superseded(events: Sequence[JobEvent], snapshot: Snapshot) -> list[SupersededEvent]:
    repeated = (event.id for event in events if event.epoch > 1)
    return [old for event_id in repeated for old in snapshot.page(SupersededEvent, "by_event", event_id)]


def _remove(events: Sequence[JobEvent], superseded: Sequence[SupersededEvent], tx: Tx) -> None:
    for old in superseded:
        if tx.find(SupersededEvent, "key", old.event_id, old.epoch) is not None:
            tx.remove(SupersededEvent, old.event_id, old.epoch)
    for event in events:
        if tx.find(JobEvent, "key", event.job_id, event.seq) is not None:
            tx.remove(JobEvent, event.job_id, event.seq)
