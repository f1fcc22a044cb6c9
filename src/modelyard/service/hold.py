"""A worker's hold on one job: what the code that does the job's work may do to its record."""

from collections.abc import Callable, Generator, Mapping
from typing import Any

from modelyard.domain.job import Job, NewEvent
from modelyard.domain.observed import JobEventRecorded
from modelyard.protocols import Tx
from modelyard.service.job import claim_of, record_events
from modelyard.service.ports import Ports


class Hold:
    """A job that this worker has claimed. `job` is its record as last seen; every write is refused once it is lost."""

    def __init__(self, ports: Ports, job: Job) -> None:
        self.ports, self.job, self.claim = ports, job, claim_of(job)
        self.cancel_seen: float | None = None

    def write(self, step: Callable[[Tx], Job]) -> Job:
        """Run a fenced step that answers the job's record. Raises `LeaseLost`."""
        self.job = self.ports.store.transact(step)
        return self.job

    @property
    def cancelled(self) -> bool:
        """Whether somebody has asked for the job's end, as far as its last write has seen."""
        return bool(self.job.cancelled_by) and not self.job.ended

    def record(self, kind: str, data: Mapping[str, Any], step: int = 0, total: int | None = None) -> None:
        """Record one event of a type, durably."""
        event, now = NewEvent(self.ports.ids(), kind, data, step), self.ports.clock.now()
        job = self.write(lambda tx: record_events(tx, self.claim, [event], now, total))
        self.ports.observe(JobEventRecorded(job.id, kind, job.last_seq))


Handler = Callable[[Hold], Generator[None, None, None]]
"""Does a job's work. It yields whenever something was stored, so that it can be stopped there, and ends the job in its
last write. What it raises fails the job."""
