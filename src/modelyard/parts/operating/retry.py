"""Try a job again that has failed or was cancelled: `platform.jobs.retry`."""

import attrs

from modelyard.domain.identity import Principal
from modelyard.domain.job import HELD_OUT, Job, JobStatus
from modelyard.errors import Conflict
from modelyard.platform.jobs.queue import announce
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.handle import JobHandle, found_job
from modelyard.platform.training.submission import add_job
from modelyard.protocols import Tx

_AGAIN = frozenset({JobStatus.FAILED, JobStatus.CANCELLED})
_OWN_DATA = "its rows were removed when it ended; train on a dataset (platform.training.upload), or send the rows again"


class Retry:
    """Queue training jobs again.

    job = platform.jobs.retry(failed.id)
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def __call__(self, job_id: str) -> JobHandle:
        """Queue a new job with the request of a training job on a dataset that has failed or was cancelled.

        It has the same options, seed and needs, and begins at the latest checkpoint of its model. Raises `NotFound`,
        `Conflict` for any other job, `RateLimited`, `BudgetExceeded`.
        """
        new_id, now, most = self._runtime.ids(), self._runtime.clock.now(), self._runtime.settings.max_queued_jobs

        def step(tx: Tx) -> Job:
            ended = _retriable(found_job(self._runtime, tx, self._principal, job_id))
            place = (ended.kind, ended.entity, ended.project, ended.lane, now, ended.spec)
            kept = {name: getattr(ended, name) for name in ("base_model", "accelerators", "memory", "rank")}
            return add_job(tx, attrs.evolve(Job(new_id, *place), fingerprint=ended.fingerprint, **kept), most)

        job = self._runtime.store.transact(step)
        if job.id == new_id:
            announce(self._runtime, job)
        return JobHandle(self._runtime, self._principal, job.id)


def _retriable(job: Job) -> Job:
    if job.status not in _AGAIN:
        raise Conflict(f"job {job.id} is {job.status}; only one that has failed or was cancelled is tried again")
    if "url" not in job.spec or "artifact" in job.spec.get(HELD_OUT, {}):
        raise Conflict(f"job {job.id} cannot be tried again: {_OWN_DATA}")
    return job
