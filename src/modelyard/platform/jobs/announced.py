"""Announced workers, and which of them are alive."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from math import inf

from modelyard.domain.job import Job, JobProgress, JobStatus, QueueState
from modelyard.domain.record import KEY
from modelyard.domain.worker import WORKER, WorkerProcess, WorkerRecord
from modelyard.errors import NoWorker
from modelyard.platform.jobs.shares import limit_reached
from modelyard.platform.runtime import Runtime
from modelyard.process_identity import died_here
from modelyard.protocols import DomainStep, Snapshot, Tx

MAX_WORKERS = 1000
WATCHERS = 3
"""How many of all processes reclaim from the dead. One would do; with three, its own death delays nothing."""

FIRST = 10
"""How many of the first processes are candidates for that. The dead among them are removed soon."""

SHOWN = 5
Host = WorkerProcess | WorkerRecord
"""The sender of heartbeats: a process for all its workers, or a worker of an earlier version for itself."""


def alive(runtime: Runtime) -> bool:
    return any(still < runtime.settings.lease for _, still in runtime.look(partial(_hosts, runtime)))


def require_worker(runtime: Runtime, what: str = "job") -> None:
    """Raise `NoWorker` if no worker is alive, so that a job (in the message: a `what`) would never start."""
    if not alive(runtime):
        raise NoWorker(
            f"no worker is alive, so the {what} would never start; start one (modelyard work --store FILE, "
            "modelyard serve --store FILE --worker, or platform.worker() in Python), then send this again"
        )


def live_workers(runtime: Runtime, snapshot: Snapshot) -> list[WorkerRecord]:
    now, lease = runtime.clock.monotonic(), runtime.settings.lease
    hosts = {host.id for host, still in _hosts(runtime, snapshot, now) if still < lease}
    workers = snapshot.page(WorkerRecord, "all", "worker", limit=MAX_WORKERS) if hosts else ()
    return [worker for worker in workers if (worker.process_id or worker.id) in hosts]


def waits_of(runtime: Runtime, snapshot: Snapshot, jobs: Iterable[Job]) -> Callable[[Job], str | None]:
    """Return the function that says what these jobs wait for, except their places in the queue; None for nothing."""
    queued = any(job.status is JobStatus.QUEUED for job in jobs)
    workers, limit = live_workers(runtime, snapshot) if queued else (), cache(partial(limit_reached, snapshot))
    return lambda job: waiting_for(job, workers, limit) if job.status is JobStatus.QUEUED else _lost(snapshot, job)


def _lost(snapshot: Snapshot, job: Job) -> str | None:
    progress = snapshot.find(JobProgress, KEY, job.id) if job.status is JobStatus.RUNNING else None
    died = progress is not None and progress.held and died_here(progress.process)
    return "a worker: the one that ran it has died" if died else None


def waiting_for(job: Job, workers: Sequence[WorkerRecord], limit: Callable[[str, str], str | None]) -> str | None:
    if job.place is QueueState.PAUSED:
        return "its resumption: it is paused"
    if job.held_back:
        return f"its next attempt: {job.held_back}"
    if job.place is QueueState.CLAIMED:
        return "room in the executor of its worker"
    able = [worker.id for worker in workers if worker.can_run(job.needs)]
    if not workers:
        return "a worker: none is alive"
    if not able:
        return without_worker(job)
    if job.place is QueueState.READY and (reason := limit(job.entity, job.kind)):
        return reason
    return (
        None if len(able) == len(workers) else f"one of the workers that can run {job.needs}: {', '.join(able[:SHOWN])}"
    )


def without_worker(job: Job) -> str:
    have = "what it needs" if job.accelerators or job.memory else "the trainer or the model for it"
    return f"a worker that can run {job.needs}: none that is alive has {have}"


def watches_over_others(runtime: Runtime, me: str) -> bool:
    """Return whether a process is among the first that are alive, which reclaim from the dead for all others."""

    def alive_before(snapshot: Snapshot, now: float) -> int:
        first = snapshot.page(WorkerProcess, "all", limit=FIRST)
        beats = {process.id: process.beat for process in first if process.id < me}
        still = runtime.liveness.idle_seconds("first processes", beats, now)
        return sum(seconds < runtime.settings.lease for seconds in still.values())

    return runtime.look(alive_before) < WATCHERS


def forget_dead(runtime: Runtime) -> None:
    """Remove processes without a heartbeat for the lease, and their workers. One that wakes up announces itself
    again."""
    for seen, still in runtime.look(partial(_hosts, runtime)):
        if still >= runtime.settings.lease:
            runtime.store.transact(DomainStep(partial(_forget, seen=seen), [(WORKER, seen.id)]))


def forget_all(tx: Tx) -> None:
    """Forget the workers in a copy of a store: they work on the other one."""
    hosts: Sequence[Host] = [*tx.page(WorkerProcess, "all", limit=MAX_WORKERS)]
    for host in [*hosts, *tx.page(WorkerRecord, "all", WORKER, limit=MAX_WORKERS)]:
        tx.remove(type(host), host.id)


def _hosts(runtime: Runtime, snapshot: Snapshot, now: float) -> list[tuple[Host, float]]:
    """Return the processes with workers, and for how many seconds each was idle: for ever, if it is dead on this
    machine."""
    found: list[Host] = [
        *snapshot.page(WorkerProcess, "all", limit=MAX_WORKERS),
        *snapshot.page(WorkerRecord, "by_process", "", limit=MAX_WORKERS),
    ]
    beats = {host.id: host.beat for host in found}
    still = runtime.liveness.idle_seconds("workers", beats, now)
    return [(host, inf if died_here(host.process) else still[host.id]) for host in found]


def _forget(tx: Tx, seen: Host) -> None:
    now = tx.find(type(seen), KEY, seen.id)
    if now is None or now.beat != seen.beat:
        return
    tx.remove(type(seen), seen.id)
    while workers := tx.page(WorkerRecord, "by_process", seen.id):
        for worker in workers:
            tx.remove(WorkerRecord, worker.id)
