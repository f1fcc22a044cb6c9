"""The handle of a sweep: wait for it, look at its table and its best trial, save a page of it, cancel it."""

import os
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import attrs

from modelyard.domain.identity import Principal
from modelyard.domain.job import Job
from modelyard.errors import JobFailed, NotFound
from modelyard.parts.sweeps.records import RUNG, Sweep
from modelyard.parts.sweeps.results import BestTrial, SweepTable, best_trial, read_trials
from modelyard.parts.sweeps.rungs import advance, jobs_of
from modelyard.platform.jobs.waiting import wait_for_success
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.handle import cancel_job
from modelyard.protocols import Snapshot, Tx

_RUNNING = ("queued", "running")


class SweepHandle:
    """One sweep, found again by its name or id after a restart: `platform.training.sweeps.get(name)`.

    While some worker is alive, `wait` waits for it. Without one it runs the jobs in the calling thread.

        sweep = platform.training.sweep("desk/support", examples, learning_rate=[1e-5, 1e-4])
        print(sweep.wait().table())
        platform.models.promote(sweep.best.model, sweep.best.step)
    """

    def __init__(self, runtime: Runtime, principal: Principal, sweep_id: str) -> None:
        self.id: str = sweep_id
        self._runtime, self._principal = runtime, principal

    def __repr__(self) -> str:
        return f"<SweepHandle {self.id}>"

    @property
    def record(self) -> Sweep:
        return self._runtime.store.read(self._found)

    @property
    def name(self) -> str:
        """The name of the sweep, with its project."""
        record = self.record
        return f"{record.project}/{record.name}"

    @property
    def status(self) -> Literal["running", "ended"]:
        """Whether any job of it has not ended."""
        return "running" if any(one.status in _RUNNING for one in self.table()) else "ended"

    # ---- waiting

    def wait(self, timeout: float | None = None) -> "SweepHandle":
        """Wait until every trial has ended, and return the sweep. One that fails ends, too; its row says why.

        Raises TimeoutError after `timeout` seconds.
        """
        clock = self._runtime.clock
        until = None if timeout is None else clock.monotonic() + timeout
        while (job := self._runtime.store.read(self._next) or self._runtime.store.transact(self._go_on)) is not None:
            left = None if until is None else max(until - clock.monotonic(), 0.0)
            with suppress(JobFailed):
                wait_for_success(self._runtime, partial(self._runtime.store.read, partial(_job, id=job.id)), left)
        return self

    def cancel(self) -> "SweepHandle":
        """End every trial: at once one that waits, at its next step one that runs. No other one goes on."""

        def stop(tx: Tx) -> Sweep:
            found = self._found(tx)
            tx.replace(attrs.evolve(found, state={**found.state, "cancelled": True}))
            return found

        self._runtime.store.transact(stop)
        for job in self._runtime.store.read(self._going):
            cancel_job(self._runtime, self._principal, job.id)
        return self

    # ---- looking at it

    def table(self) -> SweepTable:
        """Return the trials with their options and results, the lowest held-out loss first."""
        return self._read()[1]

    def to_pandas(self) -> Any:
        """Return the table as a data frame. Raises `MissingExtra` if pandas is not installed."""
        return self.table().to_pandas()

    @property
    def best(self) -> BestTrial | None:
        """The trial with the lowest held-out loss so far, with an interval that is corrected for having chosen it."""
        return best_trial(*self._read())

    def plot(self) -> Any:
        """Draw a line for each trial over its options and its loss: to `save`, or to show in a notebook."""
        from modelyard.parts.sweeps.drawing import ParallelPlot  # noqa: PLC0415 - waiting and tables need none

        record, trials = self._read()
        return ParallelPlot(_title(record), record.axes, trials)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one page with the table and the plot, to look at without this platform, to a file that ends in .html.
        Raises `InvalidInput` for another ending."""
        from modelyard.parts.reports.html import page, tag, write_text  # noqa: PLC0415
        from modelyard.parts.sweeps.drawing import sweep_content  # noqa: PLC0415

        record, trials = self._read()
        content = sweep_content(record, trials, best_trial(record, trials))
        write_text(path, page(_title(record), tag("h1", _title(record)), content))

    def _repr_html_(self) -> str:
        from modelyard.parts.reports.html import fragment, tag  # noqa: PLC0415
        from modelyard.parts.sweeps.drawing import sweep_content  # noqa: PLC0415

        record, trials = self._read()
        return fragment(tag("h3", _title(record)), sweep_content(record, trials, best_trial(record, trials)))

    # ---- steps

    def _read(self) -> tuple[Sweep, SweepTable]:
        def query(snapshot: Snapshot) -> tuple[Sweep, SweepTable]:
            found = self._found(snapshot)
            return found, read_trials(snapshot, found)

        return self._runtime.store.read(query)

    def _found(self, snapshot: Snapshot) -> Sweep:
        return found_sweep(snapshot, self._principal, self.id)

    def _going(self, snapshot: Snapshot) -> list[Job]:
        found = self._found(snapshot)
        jobs = (job for trial in found.plan["trials"] for job in jobs_of(snapshot, found, trial))
        return [job for job in jobs if not job.ended]

    def _go_on(self, tx: Tx) -> Job | None:
        """Begin the next rung if jobs of this one ended in a platform without the part."""
        found = self._found(tx)
        jobs = (job for trial in found.plan["trials"] for job in jobs_of(tx, found, trial))
        last = next((job for job in jobs if job.spec[RUNG] == found.state["rung"]), None)
        if last is not None:
            advance(self._runtime, tx, last)
        return self._next(tx)

    def _next(self, snapshot: Snapshot) -> Job | None:
        return next(iter(self._going(snapshot)), None)


def found_sweep(snapshot: Snapshot, principal: Principal, sweep_id: str) -> Sweep:
    """Return a sweep in the principal's scope. Raises `NotFound`."""
    found = get_or_none(snapshot, Sweep, sweep_id)
    if found is None or not principal.scope.covers(found.entity, found.project):
        raise NotFound("Sweep", sweep_id)
    return found


def _job(snapshot: Snapshot, id: str) -> Job:
    return snapshot.get(Job, id)


def _title(record: Sweep) -> str:
    return f"Sweep {record.project}/{record.name}"
