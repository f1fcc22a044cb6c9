"""The handle of a collection: show it, wait for it, cancel it."""

from contextlib import nullcontext
from functools import partial

from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobProgress, JobStatus
from modelyard.domain.training import Dataset, DatasetName
from modelyard.errors import NotFound
from modelyard.parts.traffic.collected import Collected
from modelyard.parts.traffic.records import COLLECT_JOB, CollectedDataset, CollectionJob
from modelyard.platform.jobs.service import cancel_found
from modelyard.platform.jobs.waiting import wait_for_success
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.data import version_of
from modelyard.protocols import Snapshot
from modelyard.report.terminal import Show, progress_bar


class CollectionHandle:
    """One collection.

    While some worker is alive, `wait` waits for it. Without one it runs the collection in the calling thread.

        collected = platform.traffic.submit("answers", score="up", at_least=1).result()
    """

    def __init__(self, runtime: Runtime, principal: Principal, job_id: str) -> None:
        self.id: str = job_id
        self._runtime, self._principal = runtime, principal

    def __repr__(self) -> str:
        return f"<CollectionHandle {self.id}>"

    def refresh(self) -> CollectionJob:
        """Return the collection as it is now. Raises `NotFound`."""
        return self._runtime.store.read(lambda snapshot: shown_collection(snapshot, self._found(snapshot)))

    @property
    def status(self) -> JobStatus:
        """The present status of the collection."""
        return self.refresh().status

    def cancel(self) -> CollectionJob:
        """End it: at once while it waits, at its next write while it runs. Idempotent; a collection that has ended
        stays so.
        """
        return cancel_found(self._runtime, self._principal, self._found, shown_collection)

    def wait(self, timeout: float | None = None, *, progress: bool = False) -> CollectionJob:
        """Wait until it has succeeded, and return it. `progress` shows a bar, in a terminal or a notebook.

        Raises `JobFailed`; and TimeoutError after `timeout` seconds.
        """
        with progress_bar("collect") if progress else nullcontext() as bar:
            show = None if bar is None else partial(self._show, bar)
            wait_for_success(self._runtime, lambda: self._runtime.store.read(self._found), timeout, show)
        return self.refresh()

    def result(self, timeout: float | None = None, *, progress: bool = False) -> Collected:
        """Wait, and return the result. Raises as `wait`, and `NotFound` if a dataset was deleted."""
        job = self.wait(timeout, progress=progress)
        return Collected(self._made(job.train), self._made(job.held_out), job.left_out, job.training_job_id)

    def _made(self, side: CollectedDataset | None) -> Dataset | None:
        if side is None:
            return None
        named = DatasetName.parse(side.url)
        found = None if named is None else self._runtime.store.read(partial(version_of, named=named))
        if found is None:
            raise NotFound("Dataset", side.url)
        return found

    def _show(self, show: Show) -> None:
        job = self.refresh()
        show(job.read, job.total, {})

    def _found(self, snapshot: Snapshot) -> Job:
        return found_collection(snapshot, self._principal, self.id)


def is_visible(principal: Principal, job: Job) -> bool:
    """Return whether a job is a collection in the principal's scope."""
    return job.kind == COLLECT_JOB and principal.scope.covers(job.entity, job.project)


def found_collection(snapshot: Snapshot, principal: Principal, job_id: str) -> Job:
    job = get_or_none(snapshot, Job, job_id)
    if job is None or not is_visible(principal, job):
        raise NotFound("Collection", job_id)
    return job


def shown_collection(snapshot: Snapshot, job: Job) -> CollectionJob:
    """Return a collection as it is shown. If its progress was erased meanwhile, it is shown as not begun."""
    return CollectionJob.of(job, get_or_none(snapshot, JobProgress, job.id) or JobProgress(job.id, job.created_at))
