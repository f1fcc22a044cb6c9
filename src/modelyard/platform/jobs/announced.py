"""The workers that have announced themselves, and which of them are alive."""

from functools import partial

from modelyard.domain.job import WorkerRecord
from modelyard.errors import RecordNotFound
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Tx

MAX_WORKERS = 1000
"""How many announced workers are read at most."""


def alive(runtime: Runtime) -> bool:
    """Return whether a worker that has announced itself is alive, as far as this platform has seen."""
    return any(still < runtime.settings.lease for _, still in _workers(runtime))


def forget_dead(runtime: Runtime) -> None:
    """Remove the records of workers that stood still for the lease; one that wakes up announces itself again."""
    for seen, still in _workers(runtime):
        if still >= runtime.settings.lease:
            runtime.store.transact(partial(_forget, seen))


def _workers(runtime: Runtime) -> list[tuple[WorkerRecord, float]]:
    """Return the announced workers, and for how many seconds each was idle."""
    found = runtime.store.read(lambda snapshot: snapshot.page(WorkerRecord, "all", "worker", limit=MAX_WORKERS))
    beats = {worker.id: worker.beat for worker in found}
    still = runtime.liveness.idle_seconds("workers", beats, runtime.clock.monotonic())
    return [(worker, still[worker.id]) for worker in found]


def _forget(seen: WorkerRecord, tx: Tx) -> None:
    try:
        now = tx.get(WorkerRecord, seen.id)
    except RecordNotFound:
        return
    if now.beat == seen.beat:
        tx.remove(WorkerRecord, seen.id)
