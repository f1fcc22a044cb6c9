"""The events of a job, read in pages."""

from collections.abc import Iterator, Sequence
from functools import partial

from modelyard.domain.job import JobEvent
from modelyard.domain.record import Order
from modelyard.domain.training import TrainingEvent
from modelyard.errors import NotFound
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.paging import cursor_at, index_listing
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

EVENTS_AT_ONCE = 100


def event_listing(runtime: Runtime, job_id: str, order: Order = "asc") -> Listing[TrainingEvent]:
    place = partial(event_place, job_id)
    return index_listing(runtime, JobEvent, "by_job", job_id, place=place, order=order, shown=_faces)


def iter_events(runtime: Runtime, job_id: str, after: str | None) -> Iterator[TrainingEvent]:
    while True:
        page = event_listing(runtime, job_id).page(EVENTS_AT_ONCE, after)
        yield from page
        if not page.has_more:
            return
        after = page.items[-1].id


def event_place(job_id: str, event_id: str, snapshot: Snapshot) -> Cursor:
    event = snapshot.find(JobEvent, "id", job_id, event_id)
    if event is None:
        raise NotFound("Event", event_id)
    return cursor_at(JobEvent, "by_job", event)


def _faces(_: Snapshot, events: Sequence[JobEvent]) -> Sequence[TrainingEvent]:
    return [TrainingEvent(event.id, event.seq, event.type, event.data, event.created_at) for event in events]
