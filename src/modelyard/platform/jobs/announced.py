"""The workers that have announced themselves, and which of them are alive."""

from collections.abc import Sequence
from functools import partial
from math import inf

from modelyard.domain.job import Job, JobStatus, QueueState, WorkerRecord
from modelyard.errors import RecordNotFound
from modelyard.platform.runtime import Runtime
from modelyard.process_identity import died_here
from modelyard.protocols import Snapshot, Tx

MAX_WORKERS = 1000
"""How many announced workers are read at most."""

WATCHERS = 3
"""How many of all workers look after the dead. One would do; with three, its own death delays nothing."""

FIRST = 10
"""How many of the first workers are looked at to find out who they are. The dead among them are removed soon."""

SHOWN = 5
"""How many workers that could run a job are named."""


def alive(runtime: Runtime) -> bool:
    """Return whether a worker that has announced itself is alive, as far as this platform has seen."""
    return bool(runtime.store.read(lambda snapshot: live_workers(runtime, snapshot)))


def live_workers(runtime: Runtime, snapshot: Snapshot) -> list[WorkerRecord]:
    """Return the workers that are alive, as far as this platform has seen."""
    return [worker for worker, still in _workers(runtime, snapshot) if still < runtime.settings.lease]


def waiting_for(job: Job, workers: Sequence[WorkerRecord]) -> str | None:
    """Return what a queued job waits for besides its turn, given the workers that are alive; None for nothing."""
    if job.status is not JobStatus.QUEUED:
        return None
    if job.place is QueueState.CLAIMED:
        return "room in the executor of its worker"
    able = [worker.id for worker in workers if str(job.needs) not in worker.declines]
    if len(able) == len(workers):
        return None if workers else "a worker: none is alive"
    if not able:
        have = "what it needs" if job.accelerators or job.memory else "the trainer or the model for it"
        return f"a worker that can run {job.needs}: none that is alive has {have}"
    return f"one of the workers that can run {job.needs}: {', '.join(able[:SHOWN])}"


def watches_over_others(runtime: Runtime, me: str) -> bool:
    """Return whether a worker is among the first that are alive, who look after the dead for all others."""

    def alive_before(snapshot: Snapshot) -> int:
        first = snapshot.page(WorkerRecord, "all", "worker", limit=FIRST)
        beats = {worker.id: worker.beat for worker in first if worker.id < me}
        still = runtime.liveness.idle_seconds("first workers", beats, runtime.clock.monotonic())
        return sum(seconds < runtime.settings.lease for seconds in still.values())

    return runtime.store.read(alive_before) < WATCHERS


def forget_dead(runtime: Runtime) -> None:
    """Remove the records of workers that stood still for the lease; one that wakes up announces itself again."""
    for seen, still in runtime.store.read(lambda snapshot: _workers(runtime, snapshot)):
        if still >= runtime.settings.lease:
            runtime.store.transact(partial(_forget, seen))


def _workers(runtime: Runtime, snapshot: Snapshot) -> list[tuple[WorkerRecord, float]]:
    """Return the announced workers, and for how many seconds each was idle: for ever, if it is dead on this machine."""
    found = snapshot.page(WorkerRecord, "all", "worker", limit=MAX_WORKERS)
    beats = {worker.id: worker.beat for worker in found}
    still = runtime.liveness.idle_seconds("workers", beats, runtime.clock.monotonic())
    return [(worker, inf if died_here(worker.process) else still[worker.id]) for worker in found]


def _forget(seen: WorkerRecord, tx: Tx) -> None:
    try:
        now = tx.get(WorkerRecord, seen.id)
    except RecordNotFound:
        return
    if now.beat == seen.beat:
        tx.remove(WorkerRecord, seen.id)
