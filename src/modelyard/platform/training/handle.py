"""A training job in the hands of the program that requested it: wait for it, watch it, cancel it."""

from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import closing, nullcontext
from functools import partial

from modelyard.domain.identity import Principal
from modelyard.domain.job import ENDED, Job, JobStatus
from modelyard.domain.models import Checkpoint
from modelyard.domain.training import TrainingEvent, TrainingJob
from modelyard.errors import JobFailed, NotFound
from modelyard.platform.jobs.events import event_listing, iter_events
from modelyard.platform.jobs.queue import announce, request_cancel
from modelyard.platform.jobs.waiting import Followed, afollowed, follow, followed, wait_for_end
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.lookup import SHOWN, found_job, job_plot, shown, shown_job
from modelyard.platform.training.metrics import MetricRow, metric_rows
from modelyard.protocols import Tx
from modelyard.report.line_plot import Plot
from modelyard.report.terminal import Show, progress_bar


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
        """Return the job as it is now. Raises `NotFound`."""
        return shown_job(self._runtime, self._principal, self.id)

    @property
    def status(self) -> JobStatus:
        """Where it stands now."""
        return self.refresh().status

    @property
    def step(self) -> int | None:
        """The step of the checkpoint that it made, if it has."""
        return self.refresh().step

    def cancel(self) -> TrainingJob:
        """End it: at once while it waits, at its next step while it runs. Idempotent; one that has ended stays so."""
        return cancel_job(self._runtime, self._principal, self.id)

    # ---- waiting

    def wait(self, timeout: float | None = None, *, progress: bool = False) -> TrainingJob:
        """Wait until the job has succeeded, and return it. `progress` shows a bar, in a terminal or a notebook.

        Raises `JobFailed`; and TimeoutError after `timeout` seconds.
        """
        until = None if timeout is None else self._runtime.clock.monotonic() + timeout
        with closing(self._turns()) as turns, progress_bar(self.id) if progress else nullcontext() as show:
            for pause in turns:
                if show is not None:
                    self._show(show)
                if until is not None and self._runtime.clock.monotonic() >= until:
                    break
                self._runtime.clock.sleep(pause)
        job = self.refresh()
        if job.status not in ENDED:
            raise TimeoutError(f"job {self.id} is still {job.status} after {timeout} seconds")
        if job.status is not JobStatus.SUCCEEDED:
            raise JobFailed(job.id, job.status, job.error_message or "")
        return job

    def result(self, timeout: float | None = None, *, progress: bool = False) -> Checkpoint:
        """Return its checkpoint. Raises `JobFailed`, TimeoutError, and `NotFound` if the checkpoint was deleted."""
        job = self.wait(timeout, progress=progress)
        found = self._runtime.store.read(lambda snapshot: snapshot.find(Checkpoint, "step", job.model_id, job.step))
        if found is None:
            raise NotFound("Checkpoint", f"step {job.step}")
        return found

    # ---- looking at it

    def plot(self) -> Plot:
        """Plot its loss and, for RL, its reward, step by step: to `save`, or to show in a notebook."""
        job = self.refresh()
        return job_plot(self._runtime, job, f"{job.kind.upper()} job {self.id}: {_standing(job)}")

    def metrics(self, most: int | None = None) -> Sequence[MetricRow]:
        """Return what it recorded with its steps, in order; at most about `most` of them, evenly spaced."""
        self.refresh()
        return metric_rows(self._runtime, self.id, most)

    def _repr_html_(self) -> str:
        return self.plot()._repr_html_()

    def _show(self, show: Show) -> None:
        job = self.refresh()
        latest = event_listing(self._runtime, self.id, "desc").page(1).items
        numbers = latest[0].data if latest else {}
        show(job.progress, job.total, {name: numbers[name] for name in SHOWN if name in numbers})

    # ---- watching

    def events(self, after: str | None = None) -> Iterator[TrainingEvent]:
        """Yield its events, live, until it has ended; those after the id `after`, or all.

        Where this runs the job itself, leaving the loop gives the job back to the queue.
        """
        return followed(self._runtime, self._follow(after))

    def aevents(self, after: str | None = None) -> AsyncIterator[TrainingEvent]:
        """Yield its events on an event loop, which it never blocks. Between two polls it occupies no thread."""
        threads = self._runtime.threads.backends.of(self._principal.entity)
        return afollowed(self._runtime, self._follow(after), threads)

    # ---- how it is waited for

    def _follow(self, after: str | None) -> Followed:
        return follow(self._turns(), partial(iter_events, self._runtime, self.id), after)

    def _turns(self) -> Generator[float, None, None]:
        """Yield after every poll of the job, for the last time after its end."""
        return wait_for_end(
            self._runtime, lambda: self._runtime.store.read(lambda tx: found_job(tx, self._principal, self.id))
        )


def _standing(job: TrainingJob) -> str:
    if job.status is not JobStatus.RUNNING or job.total is None:
        return job.status.value
    return f"{job.status.value}, step {job.progress} of {job.total}"


def cancel_job(runtime: Runtime, principal: Principal, job_id: str) -> TrainingJob:
    """Cancel a training job in the principal's name. Raises `NotFound`."""
    event_id, now = runtime.ids(), runtime.clock.now()

    def step(tx: Tx) -> tuple[Job, Job, TrainingJob]:
        before = found_job(tx, principal, job_id)
        job = request_cancel(tx, runtime.job_types, job_id, event_id, principal.name, now)
        return before, job, shown(runtime, tx, [job], now)[0]

    before, job, answer = runtime.store.transact(step)
    if job.status is not before.status:
        announce(runtime, job)
    return answer
