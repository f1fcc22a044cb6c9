"""Workers: what takes jobs from the queue and runs them, and whether any is alive."""

import threading
from collections.abc import Collection
from math import inf
from typing import Self

import attrs

from modelyard.domain.job import Needs
from modelyard.domain.worker import Capacity, WorkerRecord
from modelyard.errors import JobRefused, ModelyardError, StoreError
from modelyard.lazy import log
from modelyard.platform.jobs.announced import forget_dead, watches_over_others
from modelyard.platform.jobs.claims import ClaimedJob
from modelyard.platform.jobs.process_monitor import ProcessMonitor
from modelyard.platform.jobs.process_workers import process_workers
from modelyard.platform.jobs.runner import BEATS_PER_LEASE, Runner
from modelyard.platform.periodic import Periodic, upkeep_threads
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Executor

LEAVING_SECONDS = 2.0
"""How long a worker that stops waits for its threads, and again, after its executor, for what it has to write."""


class Worker:
    """Takes jobs from the queue and runs up to `concurrency` of them at a time in an executor, while it is entered.

    Its heartbeat comes from another thread, so no step of a job holds it up. Leaving it stops within bounded time: each
    running job is given back to the queue after its current item, for which the executor waits 20 seconds unless it is
    made with another `grace`, and all else takes five at most, even if the store is away. One that runs in a cluster
    continues there, and a worker that is started later watches it. It is entered once.

        with platform.worker():
            job.wait()

    Whatever fails, it logs it and tries again. If its thread or its heartbeat ends all the same, as with a clock that
    fails or a store that was closed, both are gone, its jobs go to other workers, `failed` is true and the event
    `ended` is set. `stop` sets that too.

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
        isolates = executor.isolates
        self._runner = Runner(runtime, alone=concurrency == 1 and not isolates, capacity=capacity, isolates=isolates)
        self._watcher = ProcessMonitor(runtime, executor, self._runner)
        self._stopping = threading.Event()
        self.ended: threading.Event = threading.Event()
        self.failed: bool = False
        self._loop = Periodic(runtime.clock, self._until_next_turn, self._turn, "modelyard-worker", self.fail)
        self._upkeep = upkeep_threads(runtime)
        self._process = process_workers(runtime)
        self._called = self._watches_others = True
        self._asked, self._tidied = -inf, runtime.clock.monotonic()
        here, now = self._runner.claimant.process, runtime.clock.now()
        gives = attrs.asdict(capacity)
        self._record = WorkerRecord(self.id, 0, now, process=here, process_id=self._process.id, **gives)

    @property
    def id(self) -> str:
        return self._runner.id

    # ---- in the calling thread

    def run_next(self) -> bool:
        """Run one job to its end; False when none is ready."""
        self._runner.reclaim_expired()
        if (pause := self._runner.pause_left()) > 0:
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
        self._process.announce(self.runtime.store, self._record)
        self._watcher.reattach()
        self._process.start(self)
        self._loop.start()
        for upkeep in self._upkeep:
            upkeep.start()
        self.wake()

    def stop(self) -> None:
        """Give running jobs back after their current item, and leave, in bounded time. Idempotent."""
        self._stopping.set()
        threads = (self._loop, *self._upkeep)
        for thread in threads:
            thread.stop(0)
        for thread in threads:
            thread.stop(LEAVING_SECONDS / len(threads))
        self.executor.close(leave=True)
        leaving = threading.Thread(target=self._leave, name="modelyard-leaving", daemon=True)
        leaving.start()
        leaving.join(LEAVING_SECONDS)
        self.ended.set()
        if leaving.is_alive():
            log.warning("worker %s leaves without signing off, since its store does not answer", self.id)

    def _leave(self) -> None:
        self._watcher.stop()
        self._process.stop(self)
        self._sign_off()

    def fail(self) -> None:
        """End without waiting, since its thread or its heartbeat has ended."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        log.critical("worker %s has ended; others take over its jobs after the lease", self.id)
        try:
            for thread in (self._loop, *self._upkeep):
                thread.stop(0)
            self._process.stop(self)
        finally:
            self.failed = True
            self.ended.set()
            self._process.on_failure(self.id)
        self._sign_off()

    def _sign_off(self) -> None:
        try:
            self._process.leave(self.runtime.store, self.id)
        except StoreError:
            log.warning("worker %s could not sign off", self.id, exc_info=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def beat(self) -> None:
        """Record heartbeats of the worker and of its jobs."""
        self._process.announce(self.runtime.store, self._record)
        self.beat_claims()

    def beat_claims(self) -> None:
        self._runner.beat()

    def wake(self) -> None:
        """Have it look at the queue, in its thread."""
        self._called = True
        self._loop.wake()

    def _turn(self) -> None:
        leads = self._process.leads(self.id)
        if self._called or self._busy():
            self.look()
        elif leads:
            self._look_after_others()
            self._process.check_queue()

    def look(self) -> None:
        """Make one round: take over from the dead, and take as many jobs as there is room for. Of many processes the
        leading workers of the first few take over from the dead."""
        self._called = self._runner.pause_left() > 0
        self._process.begin_look(self.id)
        if self._process.leads(self.id):
            self._look_after_others()
        self._watcher.look()
        while not self._stopping.is_set() and self.has_room():
            claimed = self._runner.claim(suspects=self.executor.isolates or not self._runner.claimed_jobs)
            if claimed is None:
                break
            self._process.resign(self.id)
            if self._stopping.is_set():
                self._runner.give_back(claimed)
                return
            if not self._submit(claimed):
                self._called = True
                return
        self._decline(self._runner.ready)
        if self._runner.ready:
            self._process.pass_on()

    def _look_after_others(self) -> None:
        now, lease = self.runtime.clock.monotonic(), self.runtime.settings.lease
        if now - self._asked >= lease / BEATS_PER_LEASE:
            self._watches_others, self._asked = watches_over_others(self.runtime, self._process.id), now
        if self._watches_others:
            forget_dead(self.runtime)
            self._runner.reclaim_expired(self._watcher.take_over)
            self._tidy(now)

    def _tidy(self, now: float) -> None:
        if now - self._tidied >= self.runtime.settings.lease:
            self._tidied = now
            for job_type in self.runtime.job_types.values():
                job_type.tidy(self.runtime)

    def _until_next_turn(self) -> float:
        poll, lease = self.runtime.settings.poll, self.runtime.settings.lease
        leads = self._process.is_led_by(self.id)
        if self._called or self._busy() or (leads and (self._watches_others or not self._process.hears)):
            return poll
        return max(poll, lease / BEATS_PER_LEASE)

    def _busy(self) -> bool:
        return bool(self._runner.claimed_jobs or self._watcher.watches or self._runner.pause_left() > 0)

    def has_room(self) -> bool:
        """Return whether another job may be run: not next to one that must be alone in this process."""
        claimed = self._runner.claimed_jobs
        crowded = not self.executor.isolates and any(one.progress.alone for one in claimed)
        return len(claimed) < self.concurrency and not crowded

    def _decline(self, ready: Collection[Needs]) -> None:
        of = {Needs(needs.kind, needs.base_model) for needs in ready}
        declines = tuple(sorted(str(needs) for needs in of if not self._runner.can_run(needs)))
        if declines != self._record.declines:
            record = attrs.evolve(self._record, declines=declines)
            self._process.announce(self.runtime.store, record)
            self._record = record

    def _submit(self, claimed: ClaimedJob) -> bool:
        try:
            needs = attrs.evolve(claimed.job.needs, alone=claimed.progress.suspect)
            claim = attrs.evolve(claimed.claim, attempt=claimed.job.attempts)
            handle = self.executor.submit(claim, lambda _: self._run(claimed), needs)
        except JobRefused as refusal:
            self._runner.refuse(claimed, str(refusal))
            return True
        except BaseException as error:  # noqa: BLE001 - it is logged, and the job goes back into the queue
            self._runner.give_back(claimed)
            unforeseen, seconds = not isinstance(error, ModelyardError), self._runner.pause_claims()
            message = "the executor refused job %s; claims pause for %g s: %s"
            log.error(message, claimed.job.id, seconds, error, exc_info=unforeseen)
            return False
        if self.executor.reattach(handle, alive=True):  # what runs in this process settles itself; the rest is watched
            self._watcher.add(claimed, handle)
        return True

    def _run(self, claimed: ClaimedJob) -> None:
        try:
            self._runner.run(claimed, self._stopping.is_set)
        finally:
            self.wake()
