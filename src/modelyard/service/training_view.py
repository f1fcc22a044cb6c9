"""Training jobs and their events, as a principal may see them."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial

from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobEvent, JobKind, JobProgress, JobStatus, Place
from modelyard.domain.page import Order, Page
from modelyard.domain.training import TrainingEvent, TrainingJob
from modelyard.errors import NotFound
from modelyard.protocols import Snapshot
from modelyard.service.listing import Cursor, cursor_at, maybe, read_page
from modelyard.service.ports import Ports

TRAINING_KINDS = frozenset({JobKind.SFT, JobKind.RL})
MAX_AHEAD = 100
EVENTS_AT_ONCE = 100


def visible(principal: Principal) -> Callable[[Job], bool]:
    """Whether a job is a training job in the principal's scope."""
    return lambda job: job.kind in TRAINING_KINDS and principal.scope.covers(job.entity, job.project)


def found_job(snapshot: Snapshot, principal: Principal, job_id: str) -> Job:
    """The training job. Raises `NotFound`."""
    job = maybe(snapshot, Job, job_id)
    if job is None or not visible(principal)(job):
        raise NotFound("Training job", job_id)
    return job


def shown(snapshot: Snapshot, jobs: Iterable[Job], now: datetime) -> tuple[TrainingJob, ...]:
    """Jobs as their owner sees them; one that was read just before its entity was erased looks untouched."""
    jobs = tuple(jobs)
    head = _queue_head(snapshot) if any(job.status is JobStatus.QUEUED for job in jobs) else ()
    return tuple(
        TrainingJob.of(
            job, maybe(snapshot, JobProgress, job.id) or JobProgress(job.id, job.created_at), now, _position(head, job)
        )
        for job in jobs
    )


def _queue_head(snapshot: Snapshot) -> Sequence[Cursor]:
    """The places of the first `MAX_AHEAD` jobs that wait, in the order in which one worker would run them."""
    places = [
        cursor_at(Job, "by_place", job)
        for place in (Place.READY, Place.WAITING)
        for job in snapshot.page(Job, "by_place", place, limit=MAX_AHEAD)
    ]
    return sorted(places)[:MAX_AHEAD]


def _position(head: Sequence[Cursor], job: Job) -> int | None:
    """How many jobs of the queue's head come before a job that waits; None for one that does not."""
    return bisect_left(head, cursor_at(Job, "by_place", job)) if job.status is JobStatus.QUEUED else None


def shown_job(ports: Ports, principal: Principal, job_id: str) -> TrainingJob:
    """The training job as it is now. Raises `NotFound`."""
    now = ports.clock.now()
    return ports.store.read(lambda snapshot: shown(snapshot, [found_job(snapshot, principal, job_id)], now)[0])


def events_page(ports: Ports, job_id: str, after: str | None, limit: int, order: Order = "asc") -> Page[TrainingEvent]:
    """Events of a job by `seq`, behind the event with the id `after`. Raises `NotFound` for an unknown `after`."""
    cursor = None if after is None else partial(_place, job_id, after)
    return read_page(ports, JobEvent, "by_job", job_id, after=cursor, limit=limit, order=order).map(_face)


def events_behind(ports: Ports, job_id: str, after: str | None) -> Iterator[TrainingEvent]:
    """The same, all that there are now, read as they are asked for."""
    while True:
        page = events_page(ports, job_id, after, EVENTS_AT_ONCE)
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
