"""The jobs of a run, one for each of its shards: how far they are, how they end, and what has happened to them."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import attrs

from modelyard.domain.evaluation.shards import lane_of_shard, shard_of
from modelyard.domain.job import Job, JobEvent, JobProgress
from modelyard.domain.record import EMPTY
from modelyard.platform.jobs.leases import latest_job
from modelyard.platform.paging import get_or_none, iter_index
from modelyard.protocols import Snapshot

PROGRESS = "evaluation_progress"
SHARD_ENDED = "shard_ended"
"""The type of the event with which a shard ends while others of its run are still at work."""


def last_jobs(snapshot: Snapshot, run_id: str) -> list[Job]:
    """Return the last job of each shard of a run, in their order; none for a run that the engine did not make."""
    first = latest_job(snapshot, run_id)
    if first is None:
        return []
    others = (latest_job(snapshot, lane_of_shard(run_id, number)) for number in range(1, shard_of(first)[1]))
    return [first, *(job for job in others if job is not None)]


def others_of(snapshot: Snapshot, job: Job) -> list[Job]:
    """Return the last jobs of the other shards of a job's run."""
    if shard_of(job)[1] == 1:
        return []
    return [one for one in last_jobs(snapshot, job.subject) if one.lane != job.lane]


# ---- how far they are ------------------------------------------------------------------------------------------------


def last_progress(snapshot: Snapshot, lane: str) -> Mapping[str, Any]:
    """Return the data of the last progress event of a shard; empty where there is none."""
    for job in iter_index(snapshot, Job, "of_lane", lane, descending=True):
        for event in iter_index(snapshot, JobEvent, "by_job", job.id, size=4, descending=True):
            if event.type == PROGRESS:
                return event.data
    return EMPTY


def failed_rows(snapshot: Snapshot, jobs: Sequence[Job]) -> int:
    """Return how many rows of these shards have failed, as far as they have reported."""
    return sum(last_progress(snapshot, job.lane).get("failed", 0) for job in jobs)


def joined_progress(snapshot: Snapshot, run_id: str) -> Mapping[str, Any]:
    """Return the data of one progress event for all shards of a run."""
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
    """Return how many rows of a run are done, and of how many; 0 of 0 before it has begun."""
    jobs = last_jobs(snapshot, run_id)
    found = [get_or_none(snapshot, JobProgress, job.id) for job in jobs]
    if all(progress is None or progress.total is None for progress in found):
        return 0, 0
    return sum(progress.step for progress in found if progress), sum(job.spec["total"] for job in jobs)


# ---- what has happened to them ---------------------------------------------------------------------------------------


@attrs.frozen
class EventPosition:
    """How many events of each shard a reader has seen."""

    seen: tuple[int, ...]

    @classmethod
    def parse(cls, text: str, shards: int) -> "EventPosition | None":
        """Return the position that the id of an event names; None for another string."""
        _, _, numbers = text.partition("~")
        parts = numbers.split(".")
        if len(parts) != shards or not all(part.isascii() and part.isdecimal() for part in parts):
            return None
        return cls(tuple(map(int, parts)))

    def at(self, number: int, seen: int) -> "EventPosition":
        """Return the position where so many events of one shard were seen."""
        return EventPosition((*self.seen[:number], seen, *self.seen[number + 1 :]))

    def id(self, event: JobEvent) -> str:
        """Return the id of an event that is read at this position: from it, a reader continues on any server."""
        return f"{event.id}~{'.'.join(map(str, self.seen))}"


def events_of_shard(snapshot: Snapshot, run_id: str, number: int, seen: int, limit: int) -> list[tuple[int, JobEvent]]:
    """Return up to `limit` events of a shard after so many; each with how many there are up to it."""
    found: list[tuple[int, JobEvent]] = []
    before = 0
    for job in iter_index(snapshot, Job, "of_lane", lane_of_shard(run_id, number)):
        if left := limit - len(found):
            page = snapshot.page(JobEvent, "by_job", job.id, after=(max(0, seen - before),), limit=left)
            found += [(before + event.seq, event) for event in page]
        progress = get_or_none(snapshot, JobProgress, job.id)
        before += progress.last_seq if progress else 0
    return found
