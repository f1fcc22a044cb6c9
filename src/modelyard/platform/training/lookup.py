"""Training jobs and their events, as a principal may see them."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobEvent, JobProgress, JobStatus, QueueState
from modelyard.domain.training import GRADIENT_STEP, TrainingJob
from modelyard.errors import NotFound
from modelyard.platform.jobs.announced import live_workers, waiting_for
from modelyard.platform.listing import Cursor
from modelyard.platform.paging import cursor_at, get_or_none, listed_index
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.methods import METHODS
from modelyard.protocols import Snapshot
from modelyard.report.line_plot import Panel, Plot, Point, Series

MAX_AHEAD = 100


def visible(principal: Principal) -> Callable[[Job], bool]:
    """Return whether a job is a training job in the principal's scope."""
    return lambda job: job.kind in METHODS and principal.scope.covers(job.entity, job.project)


def found_job(snapshot: Snapshot, principal: Principal, job_id: str) -> Job:
    """Return the training job. Raises `NotFound`."""
    job = get_or_none(snapshot, Job, job_id)
    if job is None or not visible(principal)(job):
        raise NotFound("Training job", job_id)
    return job


def shown(runtime: Runtime, snapshot: Snapshot, jobs: Iterable[Job], now: datetime) -> tuple[TrainingJob, ...]:
    """Jobs as their owner sees them; one that was read just before its entity was erased looks untouched."""
    jobs = tuple(jobs)
    queued = any(job.status is JobStatus.QUEUED for job in jobs)
    head, workers = (_queue_head(snapshot), live_workers(runtime, snapshot)) if queued else ((), ())
    return tuple(
        TrainingJob.of(
            job,
            get_or_none(snapshot, JobProgress, job.id) or JobProgress(job.id, job.created_at),
            now,
            _position(head, job),
            waiting_for(job, workers),
        )
        for job in jobs
    )


def _queue_head(snapshot: Snapshot) -> Sequence[Cursor]:
    """Return the places of the first `MAX_AHEAD` jobs that wait, in the order in which one worker would run them."""
    places = [
        cursor_at(Job, "by_place", job)
        for place in (QueueState.READY, QueueState.WAITING)
        for job in snapshot.page(Job, "by_place", place, limit=MAX_AHEAD)
    ]
    return sorted(places)[:MAX_AHEAD]


def _position(head: Sequence[Cursor], job: Job) -> int | None:
    """Return how many jobs of the queue's head come before a job that waits; None for one that does not."""
    return bisect_left(head, cursor_at(Job, "by_place", job)) if job.status is JobStatus.QUEUED else None


def shown_job(runtime: Runtime, principal: Principal, job_id: str) -> TrainingJob:
    """Return the training job as it is now. Raises `NotFound`."""
    now = runtime.clock.now()
    return runtime.store.read(
        lambda snapshot: shown(runtime, snapshot, [found_job(snapshot, principal, job_id)], now)[0]
    )


def narrowest_index(
    entity: str | None, project: str | None, lane: str | None, status: JobStatus | None
) -> tuple[str, ...]:
    """Return the narrowest index for a listing, and the values to look up in it."""
    if lane is not None:
        return "of_lane", lane
    if status is not None and entity is not None:
        return "by_status", entity, status
    return listed_index(entity, project)


SHOWN = tuple(dict.fromkeys(name for method in METHODS.values() for name in method.plotted))
_PAGE = 500


def job_plot(runtime: Runtime, job: TrainingJob, title: str) -> Plot:
    """Plot the metrics of each optimizer step of a job that its method names for it."""
    return _plot(title, runtime, [job.id], METHODS[job.kind].plotted)


def model_plot(runtime: Runtime, model_id: str, title: str) -> Plot:
    """Plot all jobs that made a checkpoint of the model, in their order, steps counted on from job to job."""
    return _plot(title, runtime, _jobs_behind(runtime, model_id), SHOWN)


def _plot(title: str, runtime: Runtime, job_ids: Iterable[str], names: Sequence[str]) -> Plot:
    """Read once for each line: the lines are as short as the plot is wide, the events may be millions."""
    ids = tuple(job_ids)
    lines = [Series.of(name, _points(runtime, ids, name)) for name in names]
    drawn = [Panel(line.name, (line,)) for line in lines if line.points or line.name == SHOWN[0]]
    return Plot(title, "optimizer step", tuple(drawn))


def _points(runtime: Runtime, job_ids: Iterable[str], name: str) -> Iterator[Point]:
    before = 0
    for job_id in job_ids:
        last = 0
        for event in _steps(runtime, job_id):
            last = event.step
            if name in event.data:
                yield before + event.step, event.data[name]
        before += last


def _steps(runtime: Runtime, job_id: str) -> Iterator[JobEvent]:
    """Yield the gradient steps of a job, a page at a time."""
    seq = 0
    while page := runtime.store.read(lambda snapshot, seq=seq: _behind(snapshot, job_id, seq)):  # type: ignore[misc]
        yield from (event for event in page if event.type == GRADIENT_STEP)
        seq = page[-1].seq


def _behind(snapshot: Snapshot, job_id: str, seq: int) -> list[JobEvent]:
    return snapshot.page(JobEvent, "by_job", job_id, after=(seq,), limit=_PAGE)


def _jobs_behind(runtime: Runtime, model_id: str) -> list[str]:
    """Return the jobs of a model that have made a checkpoint, oldest first."""
    found: list[str] = []
    after = None
    while page := runtime.store.read(
        lambda snapshot, after=after: snapshot.page(Job, "of_lane", model_id, after=after, limit=_PAGE)  # type: ignore[misc]
    ):
        found += [job.id for job in page if "checkpoint_id" in job.result]
        after = cursor_at(Job, "of_lane", page[-1])
    return found
