"""The events of a job, in pages."""

from collections.abc import Iterator
from functools import partial

from modelyard.domain.job import JobEvent
from modelyard.domain.paging import Order, Page
from modelyard.domain.training import TrainingEvent
from modelyard.errors import NotFound
from modelyard.platform.paging import Cursor, cursor_at, read_page
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

EVENTS_AT_ONCE = 100


def events_page(
    runtime: Runtime, job_id: str, after: str | None, limit: int, order: Order = "asc"
) -> Page[TrainingEvent]:
    """Events of a job by `seq`, behind the event with the id `after`. Raises `NotFound` for an unknown `after`."""
    cursor = None if after is None else partial(_place, job_id, after)
    return read_page(runtime, JobEvent, "by_job", job_id, after=cursor, limit=limit, order=order).map(_face)


def events_behind(runtime: Runtime, job_id: str, after: str | None) -> Iterator[TrainingEvent]:
    """The same, all that there are now, read as they are asked for."""
    while True:
        page = events_page(runtime, job_id, after, EVENTS_AT_ONCE)
        yield from page
        if not page.has_more:
            return
        after = page.items[-1].id


def _place(job_id: str, event_id: str, snapshot: Snapshot) -> Cursor:
    event = snapshot.find(JobEvent, "id", event_id)
    if event is None or event.job_id != job_id:
        raise NotFound("Event", event_id)
    return cursor_at(JobEvent, "by_job", event)


def _face(event: JobEvent) -> TrainingEvent:
    return TrainingEvent(event.id, event.seq, event.type, event.data, event.created_at)
