"""Training jobs as a principal may see them, and the handle of one: wait for it, watch it, cancel it."""

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from datetime import datetime
from functools import partial
from typing import Self

from modelyard import report
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobProgress, JobStatus, QueueState
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.training import TrainingEvent, TrainingJob
from modelyard.errors import NotFound
from modelyard.platform.jobs.announced import waits_of
from modelyard.platform.jobs.events import event_listing, iter_events
from modelyard.platform.jobs.queue import announce, request_pause, resume_paused
from modelyard.platform.jobs.service import cancel_found
from modelyard.platform.jobs.waiting import Followed, afollowed, follow, followed, wait_for_end, wait_for_success
from modelyard.platform.paging import get_or_none, listed_index
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.metrics import SHOWN, MetricRows, metric_rows
from modelyard.platform.training.submission import continue_job, going_child
from modelyard.platform.training.trajectories import TrajectorySummary
from modelyard.protocols import Snapshot, Tx
from modelyard.report.terminal import Show, progress_bar

MAX_AHEAD = 100


class JobHandle:
    """One training job.

    While some worker is alive, `wait` and `events` wait for it. Without one they run the queue in the calling thread,
    as far as this job.

        job = platform.training.sft("bots/support", examples)
        for event in job.events():
            print(event.type, event.data)
        checkpoint = job.result()
    """

    def __init__(self, runtime: Runtime, principal: Principal, job_id: str) -> None:
        self.id: str = job_id
        self._runtime, self._principal = runtime, principal

    def __repr__(self) -> str:
        return f"<JobHandle {self.id}>"

    def refresh(self) -> TrainingJob:
        return shown_job(self._runtime, self._principal, self.id)

    @property
    def status(self) -> JobStatus:
        return self.refresh().status

    @property
    def step(self) -> int | None:
        """The step of its checkpoint, once it has made one."""
        return self.refresh().step

    @property
    def stop_reason(self) -> str | None:
        """Why it has ended, in words: the error, what ended a loop, or an early stop. None of what went to its end."""
        return self.refresh().stop_reason

    def cancel(self) -> TrainingJob:
        """End it: at once while it waits, at its next step while it runs. Idempotent; one that has ended stays so."""
        return cancel_job(self._runtime, self._principal, self.id)

    def pause(self) -> TrainingJob:
        """Stop it at its next step, or keep it waiting, until `training.resume`. Raises `Conflict` if it has ended."""
        pause_job(self._runtime, self._principal, self.id)
        return self.refresh()

    # ---- waiting

    def wait(self, timeout: float | None = None, *, progress: bool = False) -> Self:
        """Wait until the job has succeeded, and return this. `progress` shows a bar, in a terminal or a notebook.
        Raises `JobFailed`; and TimeoutError after `timeout` seconds."""
        with progress_bar(self._name()) if progress else nullcontext() as bar:
            show = None if bar is None else partial(self._show, bar)
            wait_for_success(self._runtime, self._look, timeout, show)
        return self

    def result(self, timeout: float | None = None, *, progress: bool = False) -> Checkpoint:
        """Return its checkpoint. Raises `JobFailed`, TimeoutError, and `NotFound` if the checkpoint was deleted."""
        job = self.wait(timeout, progress=progress).refresh()
        found = self._runtime.store.read(lambda snapshot: snapshot.find(Checkpoint, "step", job.model_id, job.step))
        if found is None:
            raise NotFound("Checkpoint", f"step {job.step}")
        return found

    # ---- looking at it

    def plot(self) -> "report.Plot":
        """Plot all that it recorded, step by step, the reward first: to `save`, or to show in a notebook."""
        return report.job_plot(self._runtime, self.refresh())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page of it, to look at without this platform; its name ends in .html. Raises `InvalidInput`."""
        report.save_job(self._runtime, self.refresh(), path)

    def metrics(self, most: int | None = None) -> MetricRows:
        """Return what it recorded with its steps, in order; at most about `most` of them, evenly spaced. The rows are a
        list that a notebook shows as a table, and `to_pandas` turns into a data frame."""
        self.refresh()
        return metric_rows(self._runtime, self.id, most)

    def trajectories(self) -> TrajectorySummary | None:
        """Return what an RL job learns from, in short; None before it begins, and for jobs of other kinds."""
        return self._runtime.store.read(
            lambda snapshot: TrajectorySummary.of(found_job(self._runtime, snapshot, self._principal, self.id))
        )

    def _repr_html_(self) -> str:
        return report.job_notebook(self._runtime, self.refresh(), self.plot())

    def _name(self) -> str:
        job = self.refresh()
        model = self._runtime.store.read(lambda snapshot: get_or_none(snapshot, Model, job.model_id))
        return f"{job.kind.upper()} {job.model_id if model is None else f'{model.project}/{model.name}'}"

    def _show(self, show: Show) -> None:
        job = self.refresh()
        latest = event_listing(self._runtime, self.id, "desc").page(1).items
        numbers = latest[0].data if latest else {}
        show(job.progress, job.total, {name: numbers[name] for name in SHOWN if name in numbers})

    # ---- watching

    def events(self, after: str | None = None, *, follow: bool = True) -> Iterator[TrainingEvent]:
        """Yield its events, live, until it has ended; those after the id `after`, or all. If this runs the job itself,
        leaving the loop gives the job back to the queue. Without `follow`, only those recorded so far."""
        return followed(self._follow(after, follow))

    def aevents(self, after: str | None = None, *, follow: bool = True) -> AsyncIterator[TrainingEvent]:
        """Yield its events on an event loop, which it never blocks. Between two polls it occupies no thread."""
        threads = self._runtime.threads.backends.of(self._principal.entity)
        return afollowed(self._follow(after, follow), threads)

    # ---- how it is waited for

    def _follow(self, after: str | None, live: bool = True) -> Followed:
        turns = wait_for_end(self._runtime, self._look) if live else None
        return follow(turns, partial(iter_events, self._runtime, self.id), after)

    def _look(self) -> Job:
        return self._runtime.store.read(lambda snapshot: found_job(self._runtime, snapshot, self._principal, self.id))


def cancel_job(runtime: Runtime, principal: Principal, job_id: str) -> TrainingJob:
    now = runtime.clock.now()
    find = partial(found_job, runtime, principal=principal, job_id=job_id)
    return cancel_found(runtime, principal, find, lambda tx, job: shown(runtime, tx, [job], now)[0])


def pause_job(runtime: Runtime, principal: Principal, job_id: str) -> Job:
    """Pause a training job in the principal's name, and the job of a loop's round with it. Raises `NotFound`,
    `Conflict` for one that has ended."""

    def step(tx: Tx) -> Job:
        job = found_job(runtime, tx, principal, job_id)
        for child in going_child(tx, job):
            request_pause(tx, child.id, principal.name)
        return request_pause(tx, job.id, principal.name)

    return runtime.store.transact(step)


def resume_job(runtime: Runtime, principal: Principal, job_id: str) -> Job:
    """Continue a training job that was paused, or as a new job one that a budget has ended. Raises `NotFound`,
    `Conflict` for any other, `BudgetExceeded`."""
    ids, now, most = (runtime.ids(), runtime.ids()), runtime.clock.now(), runtime.settings.max_queued_jobs

    def step(tx: Tx) -> Job:
        job = found_job(runtime, tx, principal, job_id)
        resumed = resume_paused(tx, job)
        if resumed is None:
            return continue_job(tx, job, ids, now, most)
        for child in going_child(tx, job):
            resume_paused(tx, child)
        return resumed

    return announce(runtime, runtime.store.transact(step))


# ---- jobs as their owner sees them -----------------------------------------------------------------------------------


def visible(runtime: Runtime, principal: Principal) -> Callable[[Job], bool]:
    types = runtime.job_types
    return lambda job: types[job.kind].trains and principal.scope.covers(job.entity, job.project)


def found_job(runtime: Runtime, snapshot: Snapshot, principal: Principal, job_id: str) -> Job:
    job = get_or_none(snapshot, Job, job_id)
    if job is None or not visible(runtime, principal)(job):
        raise NotFound("Training job", job_id)
    return job


def shown(runtime: Runtime, snapshot: Snapshot, jobs: Iterable[Job], now: datetime) -> tuple[TrainingJob, ...]:
    """Return jobs as shown to their owner; a job of an entity that was erased meanwhile looks as if it had not
    begun."""
    jobs = tuple(jobs)
    queued = any(job.status is JobStatus.QUEUED for job in jobs)
    ranks, waits = _queue_head(snapshot) if queued else {}, waits_of(runtime, snapshot, jobs)
    return tuple(
        TrainingJob.of(
            job,
            get_or_none(snapshot, JobProgress, job.id) or JobProgress(job.id, job.created_at),
            now,
            _position(ranks, job),
            waits(job),
        )
        for job in jobs
    )


def _queue_head(snapshot: Snapshot) -> Mapping[int, int]:
    """Return the number and the rank of queued jobs; one has no better rank than those before it in its lane."""
    places = (QueueState.READY, QueueState.HELD_BACK, QueueState.WAITING)
    jobs = [job for place in places for job in snapshot.page(Job, "by_place", place, limit=MAX_AHEAD)]
    lanes: dict[str, int] = {}
    ranks: dict[int, int] = {}
    for job in sorted(jobs, key=lambda job: job.seq):
        ranks[job.seq] = lanes[job.lane] = max(job.rank, lanes.get(job.lane, job.rank))
    return ranks


def _position(ranks: Mapping[int, int], job: Job) -> int | None:
    if job.status is not JobStatus.QUEUED or job.place is QueueState.PAUSED:
        return None
    own = (ranks.get(job.seq, job.rank), job.seq)
    return min(MAX_AHEAD, sum((rank, seq) < own for seq, rank in ranks.items()))


def shown_job(runtime: Runtime, principal: Principal, job_id: str) -> TrainingJob:
    now = runtime.clock.now()
    return runtime.store.read(
        lambda snapshot: shown(runtime, snapshot, [found_job(runtime, snapshot, principal, job_id)], now)[0]
    )


def narrowest_index(
    entity: str | None, project: str | None, lane: str | None, status: JobStatus | None
) -> tuple[str, ...]:
    if lane is not None:
        return "of_lane", lane
    if status is not None and entity is not None:
        return "by_status", entity, status
    if status is not None:
        return "by_state", status
    return listed_index(entity, project)
