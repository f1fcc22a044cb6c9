"""The shards of a run: each is a job that works on a part of its rows, so that several workers work on one run. Shard k
of n has the rows of index k modulo n. The first shard is queued on the run's id, each other one on its own lane; so
jobs of one shard follow each other, and those of different shards run side by side. Seeds depend on the row alone, so
the numbers of a run do not depend on the number of shards."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import attrs

from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.domain.job import Job, JobEvent, JobProgress, JobStatus
from modelyard.domain.record import EMPTY
from modelyard.platform.jobs.claims import latest_job
from modelyard.platform.jobs.queue import announce, cancel_jobs
from modelyard.platform.paging import get_or_none, iter_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

PROGRESS = "evaluation_progress"
SHARD_ENDED = "shard_ended"


RowKey = tuple[int, int]


@attrs.frozen
class RemainingRows:
    """The rows left to do: those from the number `begun` on, in the order in which they begin, and the `open` ones."""

    begun: int = 0
    open: frozenset[RowKey] = frozenset()

    def has(self, number: int, key: RowKey) -> bool:
        return number >= self.begun or key in self.open


def shard_of(job: Job) -> tuple[int, int]:
    number, count = job.spec.get("shard", (0, 1))
    return number, count


def split(job: Job, shards: int, items: int, rows_each: int, ids: Callable[[], str]) -> tuple[Job, ...]:
    """Split the job of a run into so many shards, at most one for each item; `rows_each` are the trials of an item."""
    count = max(1, min(shards, items))
    spec = {**job.spec, "total": items * rows_each}
    if count == 1:
        return (attrs.evolve(job, spec=spec),)
    return tuple(
        attrs.evolve(
            job,
            id=job.id if number == 0 else ids(),
            lane=lane_of_shard(job.lane, number),
            spec={
                **spec,
                "shard": [number, count],
                "total": len(range(number, items, count)) * rows_each,
                "run_total": items * rows_each,
            },
        )
        for number in range(count)
    )


def lane_of_shard(run_id: str, number: int) -> str:
    return f"{run_id}/{number}" if number else run_id


def last_jobs(snapshot: Snapshot, run_id: str) -> list[Job]:
    first = latest_job(snapshot, run_id)
    if first is None:
        return []
    others = (latest_job(snapshot, lane_of_shard(run_id, number)) for number in range(1, shard_of(first)[1]))
    return [first, *(job for job in others if job is not None)]


def others_of(snapshot: Snapshot, job: Job) -> list[Job]:
    if shard_of(job)[1] == 1:
        return []
    return [one for one in last_jobs(snapshot, job.subject) if one.lane != job.lane]


# ---- how far they are ------------------------------------------------------------------------------------------------


def last_progress(snapshot: Snapshot, lane: str) -> Mapping[str, Any]:
    for job in iter_index(snapshot, Job, "of_lane", lane, descending=True):
        for event in iter_index(snapshot, JobEvent, "by_job", job.id, size=4, descending=True):
            if event.type == PROGRESS:
                return event.data
    return EMPTY


def failed_rows(snapshot: Snapshot, jobs: Sequence[Job]) -> int:
    return sum(last_progress(snapshot, job.lane).get("failed", 0) for job in jobs)


def joined_progress(snapshot: Snapshot, run_id: str) -> Mapping[str, Any]:
    parts = [last_progress(snapshot, job.lane) for job in last_jobs(snapshot, run_id)]
    done, failed, scored = (sum(part.get(name, 0) for part in parts) for name in ("done", "failed", "scored"))
    total = sum((Fraction(part["score"]) * part["scored"] for part in parts if part.get("scored")), Fraction(0))
    costs = [Decimal(part["cost"]) for part in parts if part.get("cost") is not None]
    return {
        "done": done,
        "failed": failed,
        "scored": scored,
        "score": float(total / scored) if scored else None,
        "cost": f"{sum(costs):f}" if costs else None,
    }


def rows_done(snapshot: Snapshot, run_id: str) -> tuple[int, int]:
    jobs = last_jobs(snapshot, run_id)
    found = [get_or_none(snapshot, JobProgress, job.id) for job in jobs]
    if all(progress is None or progress.total is None for progress in found):
        return 0, 0
    return sum(progress.step for progress in found if progress), sum(job.spec["total"] for job in jobs)


# ---- how they end ---------------------------------------------------------------------------------------------------

ANOTHER = "the failure of another shard"


def end_run(tx: Tx, job: Job) -> Iterable[EvaluationRun]:
    """End the run of a job in the transaction that ends the job, if this was its last shard and not all succeeded.
    Returns the run that has ended."""
    jobs = [*others_of(tx, job), job]
    if job.ended_at is None or not all(one.ended for one in jobs):
        return ()
    lost = [one for one in jobs if one.status is not JobStatus.SUCCEEDED]
    run = get_or_none(tx, EvaluationRun, job.subject)
    if not lost or run is None or run.state is not RunState.RUNNING:
        return ()
    failed = [one for one in lost if one.status is JobStatus.FAILED]
    state = RunState.FAILED if failed else RunState.CANCELLED
    reason = run.reason or (failed or lost)[0].error_message or state.value
    stopped = run.stopped(state, reason, job.ended_at)
    tx.replace(stopped)
    return (stopped,)


def has_failed(job: Job) -> bool:
    return job.status is JobStatus.FAILED


def stop_others(runtime: Runtime, job: Job) -> None:
    if job.status is JobStatus.SUCCEEDED or shard_of(job)[1] == 1:
        return
    event_ids, now = defaultdict[str, str](runtime.ids), runtime.clock.now()

    def step(tx: Tx) -> list[Job]:
        latest = latest_job(tx, job.lane)
        if latest is None or latest.id != job.id:  # the run was resumed, or deleted
            return []
        by = tx.get(JobProgress, job.id).cancelled_by or ANOTHER
        return cancel_jobs(tx, runtime.job_types, others_of(tx, job), event_ids, by, now)

    for ended in runtime.store.transact(step):
        announce(runtime, ended)


def shares_files(runtime: Runtime, job: Job) -> bool:
    """Return whether other shards, or those of a resumed run, still read the rows of one that has ended."""
    if shard_of(job)[1] == 1:
        return False
    run = runtime.store.read(lambda snapshot: get_or_none(snapshot, EvaluationRun, job.subject))
    return run is not None and run.state in (RunState.RUNNING, RunState.FAILED)


# ---- what has happened to them ---------------------------------------------------------------------------------------


@attrs.frozen
class EventPosition:
    seen: tuple[int, ...]

    @classmethod
    def parse(cls, text: str, shards: int) -> "EventPosition | None":
        _, _, numbers = text.partition("~")
        parts = numbers.split(".")
        if len(parts) != shards or not all(part.isascii() and part.isdecimal() for part in parts):
            return None
        return cls(tuple(map(int, parts)))

    def at(self, number: int, seen: int) -> "EventPosition":
        return EventPosition((*self.seen[:number], seen, *self.seen[number + 1 :]))

    def id(self, event: JobEvent) -> str:
        return f"{event.id}~{'.'.join(map(str, self.seen))}"


def events_of_shard(snapshot: Snapshot, run_id: str, number: int, seen: int, limit: int) -> list[tuple[int, JobEvent]]:
    found: list[tuple[int, JobEvent]] = []
    before = 0
    for job in iter_index(snapshot, Job, "of_lane", lane_of_shard(run_id, number)):
        if left := limit - len(found):
            page = snapshot.page(JobEvent, "by_job", job.id, after=(max(0, seen - before),), limit=left)
            found += [(before + event.seq, event) for event in page]
        progress = get_or_none(snapshot, JobProgress, job.id)
        before += progress.last_seq if progress else 0
    return found
