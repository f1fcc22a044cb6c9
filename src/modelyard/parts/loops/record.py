"""The record of a loop: its results so far, the jobs that it waits for, and its files."""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from functools import partial
from typing import Any

import attrs

from modelyard.domain.events import JobEventRecorded
from modelyard.domain.job import Gain, Job, JobProgress, NewEvent
from modelyard.domain.worker import Capacity
from modelyard.errors import RecordNotFound, TrainingError
from modelyard.platform.artifacts import remove_all
from modelyard.platform.jobs.claims import ClaimedJob, fenced, latest_job, record_events, require_claim
from modelyard.platform.jobs.queue import announce, fail
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.billing import OVER_BUDGET
from modelyard.platform.training.submission import CHILD
from modelyard.protocols import Snapshot, StoredArtifact, Tx

Turns = Generator[None, None, None]

RUN = "run_id"
"""The member of a loop's result that names the evaluation run that it waits for."""

Find = Callable[[Snapshot], Job | None]


def awaited(snapshot: Snapshot, job: Job) -> list[Job]:
    """Return the jobs that a loop waits for."""
    child = get_or_none(snapshot, Job, job.result[CHILD]) if CHILD in job.result else None
    run = latest_job(snapshot, job.result[RUN]) if RUN in job.result else None
    return [one for one in (child, run) if one is not None]


class LoopRecord:
    """The state of a loop, stored with its claimed job: every change is one transaction under the claim."""

    def __init__(self, claimed: ClaimedJob) -> None:
        self.claimed: ClaimedJob = claimed
        self.runtime: Runtime = claimed.runtime
        self._loose = claimed.loose
        self._work_seen: object = None

    @property
    def done(self) -> Mapping[str, Any]:
        return self.claimed.job.result

    @property
    def files(self) -> Mapping[str, Any]:
        return self.claimed.job.resume

    # ---- changes

    def advance(self, changes: Mapping[str, Any], also: Callable[[Tx], object], forget_files: bool = False) -> bool:
        """Change the result (None removes a member), and do what goes with it, in one transaction. Returns False, and
        does nothing, once the loop's cancellation was requested. Raises `LeaseLost`."""
        return self.took(self.runtime.store.transact(partial(self.advancing, changes, also, forget_files)))

    def advancing(
        self, changes: Mapping[str, Any], also: Callable[[Tx], object], forget_files: bool, tx: Tx
    ) -> tuple[Job, JobProgress]:
        job, progress = require_claim(tx, self.claimed.claim), fenced(tx, self.claimed.claim)
        if progress.cancelled_by:
            return job, progress
        result = {name: value for name, value in {**job.result, **changes}.items() if value is not None}
        job = attrs.evolve(job, result=result, resume={} if forget_files else job.resume)
        tx.replace(job)
        also(tx)
        return job, fenced(tx, self.claimed.claim)

    def took(self, stored: tuple[Job, JobProgress]) -> bool:
        self.claimed.job, self.claimed.progress = stored
        self.claimed.moved_at = self.runtime.clock.monotonic()
        return not self.claimed.progress.cancelled_by

    def record(self, event: NewEvent, changes: Mapping[str, Any], now: datetime, total: int | None = None) -> None:
        claim = self.claimed.claim
        if self.advance(changes, lambda tx: record_events(tx, claim, [event], now, total)):
            self.runtime.observe(JobEventRecorded(claim.job_id, event.type, self.claimed.progress.last_seq))

    def end_over_budget(self, message: str) -> None:
        """End the loop as failed, and keep what it has, so that it can be resumed from there. A validation that the
        budget has cut short is forgotten, and made anew."""
        event_id, now, types = self.runtime.ids(), self.runtime.clock.now(), self.runtime.job_types

        def step(tx: Tx) -> Job:
            job = require_claim(tx, self.claimed.claim)
            result = {name: value for name, value in job.result.items() if name != RUN} | {OVER_BUDGET: True}
            return fail(tx, types, attrs.evolve(job, result=result), event_id, message, now)

        self.claimed.job = announce(self.runtime, self.runtime.store.transact(step))

    # ---- the jobs of the loop

    def until_ended(self, find: Find) -> Turns:
        """Wait until a job has ended, and run what is ready in its lane meanwhile. Yields while it waits."""
        mine = self.claimed.job
        runner = Runner(self.runtime, capacity=Capacity(mine.accelerators, mine.memory or None))
        while (waited := self._look(find)) is not None and not waited.ended:
            runner.reclaim_expired(lambda progress: progress.job_id == mine.id)
            claimed = runner.claim(waited.lane)
            if claimed is None:
                yield
                self.runtime.clock.sleep(self.runtime.settings.poll)
                continue
            with runner.beating(), closing(runner.steps(claimed)) as steps:
                for _ in steps:
                    self._look(find)
                    yield

    def _look(self, find: Find) -> Job | None:
        """Return the awaited job, and note whether it moves and whether the loop is cancelled. Raises `LeaseLost`,
        `TrainingError` for a job that is gone."""

        def query(snapshot: Snapshot) -> tuple[JobProgress, Job | None, object]:
            job = find(snapshot)
            work = None if job is None else get_or_none(snapshot, JobProgress, job.id)
            return fenced(snapshot, self.claimed.claim), job, None if work is None else (work.step, work.last_seq)

        try:
            self.claimed.progress, job, work = self.runtime.store.read(query)
        except RecordNotFound:
            raise TrainingError("a job of the loop was deleted with its model; start a new loop") from None
        if work != self._work_seen and self.claimed.progress.gain is not Gain.NEW:
            self.claimed.write(self._gained)
        self._work_seen = work
        self.claimed.moved_at = self.runtime.clock.monotonic()
        return job

    def _gained(self, tx: Tx) -> JobProgress:
        """Note that the work moves, so that the loss of a worker now counts for nothing."""
        progress = fenced(tx, self.claimed.claim).gained()
        tx.replace(progress)
        return progress

    # ---- files

    def add_file(self, tx: Tx, name: str, file: Mapping[str, Any]) -> None:
        """Add a file to those that the loop continues with. Raises `LeaseLost`."""
        job, progress = require_claim(tx, self.claimed.claim), fenced(tx, self.claimed.claim).gained()
        tx.replace(attrs.evolve(progress, updated_at=progress.time(self.runtime.clock.now())))
        tx.replace(attrs.evolve(job, resume={**job.resume, name: file}))

    def named(self, stored: StoredArtifact) -> None:
        self._loose.remove(stored.name)

    def replaced(self, files: Mapping[str, Any]) -> None:
        self._loose[:] = [file["artifact"] for file in files.values()]
        remove_all(self.runtime.artifacts, self._loose)

    def removed(self, files: Mapping[str, Any]) -> None:
        """Remove the artifacts of files that no record names any more."""
        names = [file["artifact"] for file in files.values()]
        self._loose.extend(names)
        for name in names:
            self.runtime.artifacts.remove(name)
            self._loose.remove(name)

    def put(self, chunks: Iterator[bytes]) -> StoredArtifact:
        stored = self.runtime.artifacts.put(chunks)
        self._loose.append(stored.name)
        return stored
