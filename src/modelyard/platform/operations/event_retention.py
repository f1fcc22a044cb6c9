"""Let go of the events of jobs that ended long ago, in small steps, after they were written to a file."""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from functools import partial
from typing import BinaryIO

import attrs

from modelyard.disk import sync, sync_folder
from modelyard.domain.job import Job, JobEvent, SupersededEvent
from modelyard.errors import InvalidInput
from modelyard.platform.listing import Cursor
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

JOBS, EVENTS = 500, 200
"""How many jobs one query looks at, and how many events one step removes: the store is held for milliseconds."""

_Found = tuple[Sequence[JobEvent], Sequence[SupersededEvent]]


@attrs.frozen
class RemovedEvents:
    """How many events were removed, and of how many jobs."""

    events: int
    jobs: int


def keep_events(runtime: Runtime, days: float, export: str | os.PathLike[str] | None) -> RemovedEvents:
    """Remove the events of jobs that ended more than so many days ago, after they were appended to `export`.

    Each step can be repeated after a crash; its events may then be in the file twice. Raises `InvalidInput`.
    """
    if not days > 0:
        raise InvalidInput.at("days", msg="must be more than 0")
    until = runtime.clock.now() - timedelta(days=days)
    events = jobs = 0
    with nullcontext() if export is None else open(export, "ab") as file:
        if export is not None:
            sync_folder(os.path.dirname(os.path.abspath(export)))  # before any event that a new file holds is removed
        for job_id in _ended_before(runtime, until):
            removed = _remove_events(runtime, job_id, file)
            events, jobs = events + removed, jobs + bool(removed)
    return RemovedEvents(events, jobs)


def _ended_before(runtime: Runtime, until: datetime) -> Iterator[str]:
    """Yield the ids of the jobs that ended before a time, the oldest first."""
    after: Cursor | None = None
    while page := runtime.store.read(partial(_jobs_after, after)):
        yield from (job_id for job_id, ended_at, _ in page if ended_at is not None and ended_at < until)
        after = (page[-1][2],)


def _jobs_after(after: Cursor | None, snapshot: Snapshot) -> list[tuple[str, datetime | None, int]]:
    return snapshot.select(Job, ("id", "ended_at", "seq"), "all", after=after, limit=JOBS)


def _remove_events(runtime: Runtime, job_id: str, file: BinaryIO | None) -> int:
    removed = 0
    while (found := runtime.store.read(partial(_events_of, job_id)))[0]:
        if file is not None:
            _append(file, *found)
        runtime.store.transact(partial(_remove, *found))
        removed += len(found[0])
    return removed


def _events_of(job_id: str, snapshot: Snapshot) -> _Found:
    events = snapshot.page(JobEvent, "by_job", job_id, limit=EVENTS)
    repeated = (event.id for event in events if event.epoch > 1)
    return events, [old for event_id in repeated for old in snapshot.page(SupersededEvent, "by_event", event_id)]


def _append(file: BinaryIO, events: Sequence[JobEvent], superseded: Sequence[SupersededEvent]) -> None:
    records: list[JobEvent | SupersededEvent] = [*events, *superseded]
    for record in records:
        line = json.dumps(attrs.asdict(record, recurse=False), default=_plain, ensure_ascii=False)
        file.write(f"{line}\n".encode())
    file.flush()
    sync(file.fileno())


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else dict(value)  # type: ignore[call-overload]


def _remove(events: Sequence[JobEvent], superseded: Sequence[SupersededEvent], tx: Tx) -> None:
    for old in superseded:
        if tx.find(SupersededEvent, "key", old.event_id, old.epoch) is not None:
            tx.remove(SupersededEvent, old.event_id, old.epoch)
    for event in events:
        if tx.find(JobEvent, "key", event.job_id, event.seq) is not None:
            tx.remove(JobEvent, event.job_id, event.seq)
