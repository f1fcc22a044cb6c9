"""What jobs that have not ended still read, so that no rule removes it."""

from functools import partial
from typing import Any

from modelyard.domain.job import ENDED, Job, JobStatus
from modelyard.platform.paging import cursor_at
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

_JOBS = 100
"""How many jobs one query looks at."""


class InUse:
    """The records that jobs read which had not ended when this was made, and those that were added since.

    A step that removes records asks `follow` first, so that none goes which a job names by then.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._types = runtime.job_types
        self._records = set[tuple[type, str]]()
        last = runtime.store.read(partial(_jobs, after=None, descending=True, limit=1))
        self._after = cursor_at(Job, "all", last[0]) if last else None
        for status in JobStatus:
            if status not in ENDED:
                runtime.store.read(partial(self._note_all, status))

    def follow(self, snapshot: Snapshot) -> None:
        """Note what jobs read that were added since the last call. May run again."""
        while found := _jobs(snapshot, after=self._after):
            self._note(snapshot, found)
            self._after = cursor_at(Job, "all", found[-1])

    def __contains__(self, record: tuple[type, str]) -> bool:
        return record in self._records

    def _note_all(self, status: JobStatus, snapshot: Snapshot) -> None:
        after = None
        while found := snapshot.page(Job, "by_state", status, after=after, limit=_JOBS):
            self._note(snapshot, found)
            after = cursor_at(Job, "by_state", found[-1])

    def _note(self, snapshot: Snapshot, jobs: list[Job]) -> None:
        for job in jobs:
            if not job.ended:
                self._records.update(self._types[job.kind].reads(snapshot, job))


def _jobs(snapshot: Snapshot, after: Any, descending: bool = False, limit: int = _JOBS) -> list[Job]:
    return snapshot.page(Job, "all", after=after, descending=descending, limit=limit)
