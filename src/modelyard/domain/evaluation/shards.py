"""The shards of a run: each job works on a part of its rows, so that several workers work on one run.

Shard k of n has the rows whose index is k modulo n. The first shard queues up on the run's id, each other one on a lane
of its own; so jobs of one shard follow each other, and those of different shards run side by side. Seeds depend on the
row alone, so the numbers of a run do not depend on how many shards it has.
"""

from collections.abc import Callable

import attrs

from modelyard.domain.job import Job

RowKey = tuple[int, int]
"""Index and trial of a row."""


@attrs.frozen
class RemainingRows:
    """The rows left to do: those from the number `begun` on, in the order in which they begin, and the `open` ones."""

    begun: int = 0
    open: frozenset[RowKey] = frozenset()

    def has(self, number: int, key: RowKey) -> bool:
        """Return whether a row is left to do."""
        return number >= self.begun or key in self.open


def shard_of(job: Job) -> tuple[int, int]:
    """Return which shard of its run a job is, from 0, and how many there are."""
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
    """Return the lane on which the jobs of a shard queue up: the run's id for the first."""
    return f"{run_id}/{number}" if number else run_id
