"""Jobs that need what no worker has: they wait for one, such as on a machine that is being started, and then fail."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from math import inf

from modelyard.domain.job import Demand, Job, QueueState
from modelyard.domain.record import KEY
from modelyard.domain.worker import MOST, WorkerRecord
from modelyard.platform.jobs.announced import live_workers, without_worker
from modelyard.platform.jobs.job_type import JobTypes
from modelyard.platform.jobs.queue import announce, fail
from modelyard.platform.listing import Cursor
from modelyard.platform.paging import cursor_at
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

LONGEST_WITHOUT_WORKER = 3600.0
"""Seconds after which a job fails if workers were alive and none of them could run it."""

PAGE = 100
DEMANDS = "demands without a worker"
LEASES_TO_REMEMBER = 100


class JobsWithoutWorker:
    """Looks at a page of what ready jobs need, once a lease, and fails the jobs that no worker could run for long."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._after: Cursor | None = None
        self._looked_at = -inf

    def look(self) -> None:
        """Look at the next page. While no worker is alive nothing fails."""
        now, lease = self.runtime.clock.monotonic(), self.runtime.settings.lease
        if now - self._looked_at < lease:
            return
        self._looked_at = now
        workers, page = self.runtime.store.read(self._next_page)
        self._after = cursor_at(Demand, "by_turn", page[-1]) if len(page) == PAGE else None
        # What a worker could run is observed to change, so that its time begins again.
        without = {_key(one): "" if workers and not _can_run(workers, one) else str(now) for one in page}
        still = self.runtime.liveness.idle_seconds(DEMANDS, without, now, LEASES_TO_REMEMBER * lease)
        for demand in page:
            if still[_key(demand)] >= LONGEST_WITHOUT_WORKER:
                for job in self.runtime.store.read(partial(_jobs_of, demand=demand)):
                    self._fail(job, workers)

    def _next_page(self, snapshot: Snapshot) -> tuple[Sequence[WorkerRecord], Sequence[Demand]]:
        workers = live_workers(self.runtime, snapshot)
        return workers, snapshot.page(Demand, "by_turn", after=self._after, limit=PAGE)

    def _fail(self, job: Job, workers: Sequence[WorkerRecord]) -> None:
        now, event_id = self.runtime.clock.now(), self.runtime.ids()
        longest = timedelta(seconds=LONGEST_WITHOUT_WORKER)
        if now - job.created_at < longest or any(worker.can_run(job.needs) for worker in workers):
            return
        reason = f"it has waited for {without_worker(job)}, for more than {longest}"
        step = partial(_fail_ready, types=self.runtime.job_types, seen=job, event_id=event_id, now=now, reason=reason)
        failed = self.runtime.store.transact(step)
        if failed is not None:
            announce(self.runtime, failed)


def _key(demand: Demand) -> str:
    return f"{demand.entity} {demand.kind} {demand.base_model} {demand.accelerators} {demand.memory}"


def _can_run(workers: Sequence[WorkerRecord], demand: Demand) -> bool:
    """Return whether a worker can run all jobs of a demand, so far as that is known."""
    return not demand.mixed and any(worker.can_run(demand.needs) for worker in workers)


def _jobs_of(snapshot: Snapshot, demand: Demand) -> Sequence[Job]:
    """Return jobs of a demand; of many amounts those with the largest, which are least likely to find a worker."""
    of = QueueState.READY, demand.entity, demand.kind
    if not demand.mixed:
        amounts = demand.accelerators, demand.memory
        return snapshot.page(Job, "by_needs", *of, demand.base_model, *amounts, limit=PAGE)
    last: Cursor = (demand.base_model, MOST + 1, 0, 0, 0)
    jobs = snapshot.page(Job, "by_kind", *of, after=last, limit=PAGE, descending=True)
    return [job for job in jobs if job.base_model == demand.base_model]


def _fail_ready(tx: Tx, types: JobTypes, seen: Job, event_id: str, now: datetime, reason: str) -> Job | None:
    job = tx.find(Job, KEY, seen.id)
    if job is None or job.place is not QueueState.READY or job.attempts != seen.attempts:
        return None
    return fail(tx, types, job, event_id, reason, now)
