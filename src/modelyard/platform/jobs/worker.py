"""Workers: what takes jobs from the queue and runs them, and whether any is alive."""

import threading
from math import inf
from typing import Self

import attrs

from modelyard.domain.job import WORKER, WorkerRecord
from modelyard.domain.resources import Capacity
from modelyard.errors import ModelyardError, RecordNotFound, StoreError
from modelyard.lazy import log
from modelyard.platform.jobs.announced import forget_dead, watches_over_others
from modelyard.platform.jobs.claimed_job import ClaimedJob
from modelyard.platform.jobs.leases import ready_needs
from modelyard.platform.jobs.process_monitor import ProcessMonitor
from modelyard.platform.jobs.runner import BEATS_PER_LEASE, Runner
from modelyard.platform.jobs.wakeups import READY
from modelyard.platform.periodic import Periodic
from modelyard.platform.runtime import Runtime
from modelyard.protocols import DomainStep, Executor, Subscription, Tx


class Worker:
    """Takes jobs from the queue and runs up to `concurrency` of them at a time in an executor, while it is entered.

    Its heartbeat has a thread of its own, so no step of a job holds it up. Leaving it stops within bounded time: each
    running job is given back to the queue after its current item; one that runs in a cluster continues there, and a
    worker that is started later watches it. It is entered once.

        with platform.worker():
            job.wait()

    Without entering it, `run_next` and `run_until_idle` run jobs in the calling thread. Jobs that need more than its
    `capacity` are left to other workers.
    """

    def __init__(
        self,
        runtime: Runtime,
        executor: Executor,
        concurrency: int = 1,
        capacity: Capacity = Capacity(),  # noqa: B008 - frozen
    ) -> None:
        self.runtime: Runtime = runtime
        self.executor: Executor = executor
        self.concurrency: int = concurrency
        self._runner = Runner(runtime, alone=concurrency == 1 and not executor.isolates, capacity=capacity)
        self._watcher = ProcessMonitor(runtime, executor, self._runner)
        self._stopping = threading.Event()
        self._loop = Periodic(runtime.clock, self._until_next_look, self.look, "modelyard-worker")
        self._pulse = Periodic(
            runtime.clock, runtime.settings.lease / BEATS_PER_LEASE, self.beat, "modelyard-heartbeat"
        )
        self._ready: Subscription | None = None
        self._watches_others, self._asked = True, -inf
        self._record = WorkerRecord(self.id, 0, runtime.clock.now(), process=self._runner.claimant.process)

    @property
    def id(self) -> str:
        """The name under which it claims jobs."""
        return self._runner.id

    # ---- in the calling thread

    def run_next(self) -> bool:
        """Run one job to its end; False when none is ready."""
        self._runner.reclaim_expired()
        if (pause := self._runner.pause()) > 0:
            self.runtime.clock.sleep(pause)
        claimed = self._runner.claim()
        if claimed is None:
            return False
        with self._runner.beating():
            self._runner.run(claimed, self._stopping.is_set)
        return True

    def run_until_idle(self) -> None:
        """Run jobs until none is ready."""
        while self.run_next():
            pass

    # ---- in threads of its own

    def start(self) -> None:
        """Announce itself, and take jobs from now on."""
        self.runtime.store.transact(self._sign, durable=False)
        self._watcher.reattach()
        self._ready = self.runtime.store.subscribe(READY, self._loop.wake)
        self._pulse.start()
        self._loop.start()
        self._loop.wake()

    def stop(self) -> None:
        """Give running jobs back after their current item, and leave, in bounded time. Idempotent."""
        self._stopping.set()
        if self._ready is not None:
            self._ready.close()
        self._loop.stop(self.runtime.settings.lease)
        self.executor.close(leave=True)
        self._watcher.stop()
        self._pulse.stop(self.runtime.settings.lease)
        try:
            self.runtime.store.transact(lambda tx: tx.remove(WorkerRecord, self.id))
        except RecordNotFound:
            return
        except StoreError:
            log.warning("worker %s could not sign off", self.id, exc_info=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def beat(self) -> None:
        """Show that the worker and its jobs are alive."""
        self.runtime.store.transact(self._sign, durable=False)
        self._runner.beat()

    @property
    def _sign(self) -> DomainStep[None]:
        return DomainStep(self._announce, [(WORKER, self.id)])

    def _announce(self, tx: Tx) -> None:
        try:
            record = tx.get(WorkerRecord, self.id)
        except RecordNotFound:
            tx.add(self._record)
        else:
            tx.replace(attrs.evolve(self._record, beat=record.beat + 1))

    def look(self) -> None:
        """Make one round: take over from the dead, and take as many jobs as there is room for.

        Of many workers the first few take over from the dead; the others sleep until a job is ready.
        """
        self._find_out_who_watches()
        if self._watches_others:
            forget_dead(self.runtime)
            self._runner.reclaim_expired(self._watcher.take_over)
        self._watcher.look()
        self._decline()
        while not self._stopping.is_set() and self._has_room():
            claimed = self._runner.claim(suspects=self.executor.isolates or not self._runner.claimed_jobs)
            if claimed is None or not self._submit(claimed):
                return

    def _find_out_who_watches(self) -> None:
        now, lease = self.runtime.clock.monotonic(), self.runtime.settings.lease
        if now - self._asked >= lease / BEATS_PER_LEASE:
            self._watches_others, self._asked = watches_over_others(self.runtime, self.id), now

    def _until_next_look(self) -> float:
        """Return the seconds until the next round, if nothing wakes this worker before."""
        heard = self._ready is not None and self._ready.live
        busy = self._runner.claimed_jobs or self._watcher.watches or self._runner.pause() > 0
        if self._watches_others or busy or not heard:
            return self.runtime.settings.poll
        return max(self.runtime.settings.lease, self.runtime.settings.poll)

    def _has_room(self) -> bool:
        """Return whether another job may be run: not next to one that is to be alone in this process."""
        claimed = self._runner.claimed_jobs
        crowded = not self.executor.isolates and any(one.progress.alone for one in claimed)
        return len(claimed) < self.concurrency and not crowded

    def _decline(self) -> None:
        """Announce which jobs that are ready are left to other workers, where that has changed."""
        ready = self.runtime.store.read(ready_needs)
        declines = tuple(sorted(str(needs) for needs in ready if not self._runner.can_run(needs)))
        if declines != self._record.declines:
            self._record = attrs.evolve(self._record, declines=declines)
            self.runtime.store.transact(self._sign, durable=False)

    def _submit(self, claimed: ClaimedJob) -> bool:
        try:
            needs = attrs.evolve(claimed.job.needs, alone=claimed.progress.suspect)
            claim = attrs.evolve(claimed.claim, attempt=claimed.job.attempts)
            handle = self.executor.submit(claim, lambda _: self._run(claimed), needs)
        except Exception as error:  # noqa: BLE001 - it is logged, and the job goes back into the queue
            self._runner.give_back(claimed)
            unforeseen, seconds = not isinstance(error, ModelyardError), self._runner.rest()
            message = "the executor refused job %s; claims pause for %g s: %s"
            log.error(message, claimed.job.id, seconds, error, exc_info=unforeseen)
            return False
        self._runner.recovered()
        if self.executor.reattach(handle, alive=True):  # what runs in this process settles itself; the rest is watched
            self._watcher.add(claimed, handle)
        return True

    def _run(self, claimed: ClaimedJob) -> None:
        try:
            self._runner.run(claimed, self._stopping.is_set)
        finally:
            self._loop.wake()
