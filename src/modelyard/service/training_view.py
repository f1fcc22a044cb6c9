"""Training jobs and their events, as a principal may see them."""

from collections.abc import Callable
from functools import partial

from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobEvent, JobKind, JobProgress
from modelyard.domain.page import Order, Page
from modelyard.domain.training import TrainingEvent, TrainingJob
from modelyard.errors import NotFound
from modelyard.protocols import Snapshot
from modelyard.service.listing import Cursor, cursor_at, maybe, read_page
from modelyard.service.ports import Ports

TRAINING_KINDS = frozenset({JobKind.SFT, JobKind.RL})


def visible(principal: Principal) -> Callable[[Job], bool]:
    """Whether a job is a training job in the principal's scope."""
    return lambda job: job.kind in TRAINING_KINDS and principal.scope.covers(job.entity, job.project)


def found_job(snapshot: Snapshot, principal: Principal, job_id: str) -> Job:
    """The training job. Raises `NotFound`."""
    job = maybe(snapshot, Job, job_id)
    if job is None or not visible(principal)(job):
        raise NotFound("Training job", job_id)
    return job


def shown(snapshot: Snapshot, job: Job) -> TrainingJob:
    """The job as its owner sees it; one that was read just before its entity was erased looks untouched."""
    return TrainingJob.of(job, maybe(snapshot, JobProgress, job.id) or JobProgress(job.id, job.created_at))


def shown_job(ports: Ports, principal: Principal, job_id: str) -> TrainingJob:
    """The training job as it is now. Raises `NotFound`."""
    return ports.store.read(lambda snapshot: shown(snapshot, found_job(snapshot, principal, job_id)))


def events_page(ports: Ports, job_id: str, after: str | None, limit: int, order: Order = "asc") -> Page[TrainingEvent]:
    """Events of a job by `seq`, behind the event with the id `after`. Raises `NotFound` for an unknown `after`."""
    cursor = None if after is None else partial(_place, job_id, after)
    return read_page(ports, JobEvent, "by_job", job_id, after=cursor, limit=limit, order=order).map(_face)


def _place(job_id: str, event_id: str, snapshot: Snapshot) -> Cursor:
    event = snapshot.find(JobEvent, "id", event_id)
    if event is None or event.job_id != job_id:
        raise NotFound("Event", event_id)
    return cursor_at(JobEvent, "by_job", event)


def _face(event: JobEvent) -> TrainingEvent:
    return TrainingEvent(event.id, event.seq, event.type, event.data, event.created_at)
