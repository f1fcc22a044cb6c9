"""A job that a worker has claimed: what the code that does the job's work may do to its record."""

from collections.abc import Callable, Mapping
from typing import Any

from modelyard.domain.events import JobEventRecorded
from modelyard.domain.job import JOB, Claim, Job, JobEvent, JobProgress, NewEvent
from modelyard.platform.jobs.events import record_events
from modelyard.platform.jobs.leases import claim_of
from modelyard.platform.runtime import Runtime
from modelyard.protocols import DomainStep, Tx


class ClaimedJob:
    """A job that this worker has claimed, and its progress as its last write has seen it.

    `moved_at` is when its run began or last wrote anything, by the monotonic clock; None before it begins. A `hung` one
    was given back because that was too long ago. `loose` are the artifacts that it has stored and no record names yet.
    Every write is refused once the claim is lost.
    """

    def __init__(self, runtime: Runtime, job: Job, progress: JobProgress) -> None:
        self.runtime: Runtime = runtime
        self.job: Job = job
        self.progress: JobProgress = progress
        self.claim: Claim = claim_of(progress)
        self.cancel_seen: float | None = None
        self.moved_at: float | None = None
        self.hung = False
        self.loose: list[str] = []

    def write(self, step: Callable[[Tx], JobProgress]) -> JobProgress:
        """Run a fenced step that answers the job's progress. Raises `LeaseLost`."""
        self.progress = self.runtime.store.transact(step)
        self.moved_at = self.runtime.clock.monotonic()
        return self.progress

    @property
    def cancelled(self) -> bool:
        """Whether the job's cancellation was requested, as of its last write."""
        return bool(self.progress.cancelled_by) and not self.job.ended

    def record(self, kind: str, data: Mapping[str, Any], step: int = 0, total: int | None = None) -> None:
        """Record one event of a type, durably."""
        event, now = NewEvent(self.runtime.ids(), kind, data, step), self.runtime.clock.now()
        last_seq = self.progress.last_seq
        progress = self.write(self._alone(lambda tx: record_events(tx, self.claim, [event], now, total)))
        if self.runtime.observer is not None:
            seq = progress.last_seq if progress.last_seq > last_seq else self._seq_of(kind, step)
            self.runtime.observe(JobEventRecorded(progress.job_id, kind, seq))

    def _alone(self, step: Callable[[Tx], JobProgress]) -> Callable[[Tx], JobProgress]:
        """Return the step as one that stays in this job, unless it may have to keep data of an earlier attempt."""
        return DomainStep(step, [(JOB, self.job.id)]) if self.claim.epoch == 1 else step

    def _seq_of(self, kind: str, step: int) -> int:
        """Return the place of a step that ran again: that of its first recording."""
        found = self.runtime.store.read(lambda snapshot: snapshot.find(JobEvent, "identity", self.job.id, kind, step))
        assert found is not None
        return found.seq
