"""The workers of one process: their heartbeat, their notifications of jobs, and which of them looks at the queue. They
share one heartbeat and one subscription. One of them leads: it takes over from dead processes, and looks at the queue
now and then in case a notification was lost. So the cost of idle workers to the store depends on the number of
processes, not of workers."""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from modelyard.domain.record import KEY
from modelyard.domain.worker import WORKER, WorkerProcess, WorkerRecord
from modelyard.platform.jobs.queue import READY
from modelyard.platform.jobs.runner import BEATS_PER_LEASE
from modelyard.platform.periodic import Periodic
from modelyard.platform.runtime import Runtime
from modelyard.process_identity import process_here
from modelyard.protocols import DomainStep, Store, Subscription, Tx


class StartedWorker(Protocol):
    @property
    def id(self) -> str:
        """The name under which it claims jobs."""

    def has_room(self) -> bool:
        """Return whether it would take a job."""

    def wake(self) -> None:
        """Have it look at the queue."""

    def beat_claims(self) -> None:
        """Record heartbeats of its jobs."""

    def fail(self) -> None:
        """End, since it has no heartbeat any more."""


class ProcessWorkers:
    def __init__(self, runtime: Runtime) -> None:
        self.id: str = runtime.ids()
        self._runtime = runtime
        self._process = process_here()
        self._lock = threading.Lock()
        self._announced: dict[str, WorkerRecord] = {}
        self._started: dict[str, StartedWorker] = {}
        self._pulse: Periodic | None = None
        self._ready: Subscription | None = None
        self._notices = 0
        self._looked: dict[str, int] = {}
        self._looked_at = 0.0
        self._leader, self._led_at = "", 0.0
        self.on_failure: Callable[[str], None] = lambda _: None
        """Called with the id of a worker that has ended by itself."""

    # ---- as others see them

    def announce(self, store: Store, record: WorkerRecord) -> None:
        store.transact(self._step(lambda tx: self._sign(tx, [record])), durable=False)
        self._announced[record.id] = record

    def sign(self, store: Store) -> None:
        """Record a heartbeat of the process. If others took it for dead, all its workers announce themselves again."""
        store.transact(self._step(lambda tx: self._sign(tx, ())), durable=False)

    def leave(self, store: Store, worker_id: str) -> None:
        self._announced.pop(worker_id, None)
        last = not self._announced
        store.transact(self._step(lambda tx: self._remove(tx, worker_id, last)))

    def _step(self, step: Callable[[Tx], None]) -> DomainStep[None]:
        return DomainStep(step, [(WORKER, self.id)])

    def _sign(self, tx: Tx, changed: Sequence[WorkerRecord]) -> None:
        process = tx.find(WorkerProcess, KEY, self.id)
        if process is None:
            tx.add(WorkerProcess(self.id, 0, self._process))
            changed = [*self._announced.values(), *changed]
        else:
            tx.replace(WorkerProcess(self.id, process.beat + 1, self._process))
        for record in changed:
            (tx.add if tx.find(WorkerRecord, KEY, record.id) is None else tx.replace)(record)

    def _remove(self, tx: Tx, worker_id: str, last: bool) -> None:
        if tx.find(WorkerRecord, KEY, worker_id) is not None:
            tx.remove(WorkerRecord, worker_id)
        if last and tx.find(WorkerProcess, KEY, self.id) is not None:
            tx.remove(WorkerProcess, self.id)

    # ---- threads

    def start(self, worker: StartedWorker) -> None:
        with self._lock:
            self._started[worker.id] = worker
            if self._pulse is None:
                clock, lease = self._runtime.clock, self._runtime.settings.lease
                seconds = lease / BEATS_PER_LEASE
                self._pulse = Periodic(clock, seconds, self.beat, "modelyard-heartbeat", self._fail)
                self._ready = self._runtime.store.subscribe(READY, self._hear)
                self._pulse.start()

    def stop(self, worker: StartedWorker) -> None:
        with self._lock:
            self._started.pop(worker.id, None)
            self._looked.pop(worker.id, None)
            for other in [*self._started.values()][:1]:
                other.wake()  # it may have to lead
            pulse, ready = self._pulse, self._ready
            if self._started or pulse is None or ready is None:
                return
            self._pulse = self._ready = None
        ready.close()
        pulse.stop(self._runtime.settings.lease)

    def _fail(self) -> None:
        for worker in tuple(self._started.values()):
            worker.fail()

    def beat(self) -> None:
        self.sign(self._runtime.store)
        for worker in tuple(self._started.values()):
            worker.beat_claims()

    @property
    def hears(self) -> bool:
        ready = self._ready
        return ready is not None and ready.live

    # ---- who looks

    def leads(self, worker_id: str) -> bool:
        """Return whether this worker leads. One without a heartbeat for the lease, or that is gone, no longer leads."""
        now = self._runtime.clock.monotonic()
        with self._lock:
            still = now - self._led_at >= self._runtime.settings.lease
            if worker_id != self._leader and self._leader in self._started and not still:
                return False
            self._leader, self._led_at = worker_id, now
            return True

    def is_led_by(self, worker_id: str) -> bool:
        return self._leader == worker_id

    def resign(self, worker_id: str) -> None:
        """Give up the lead: a job may occupy the thread of this worker."""
        with self._lock:
            if worker_id == self._leader:
                self._leader = ""

    def begin_look(self, worker_id: str) -> None:
        """Note that a worker looks now, and sees all jobs that became ready before."""
        self._looked[worker_id] = self._notices
        self._looked_at = self._runtime.clock.monotonic()

    def pass_on(self) -> None:
        """Wake a worker with room that has not looked since the last notification: there may be more than one job."""
        for worker in tuple(self._started.values()):
            if self._looked.get(worker.id, -1) < self._notices and worker.has_room():
                worker.wake()
                return

    def check_queue(self) -> None:
        """Wake a worker if a notification may have been missed: none has looked for the lease, or they do not
        arrive."""
        lease, now = self._runtime.settings.lease, self._runtime.clock.monotonic()
        if not self.hears or now - self._looked_at >= lease:
            self._hear()

    def _hear(self) -> None:
        self._notices += 1
        self.pass_on()


def process_workers(runtime: Runtime) -> ProcessWorkers:
    """Return the workers of this platform, the same each time."""
    return runtime.cache.slot_of(ProcessWorkers, lambda: ProcessWorkers(runtime))
