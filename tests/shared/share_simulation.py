"""A simulation of the queue: entities submit, workers claim, and time stands still in between."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.domain.job import Job, JobKind, Tenant
from modelyard.platform.job_types import job_types_of
from modelyard.platform.jobs.queue import enqueue, request_cancel, succeed
from modelyard.platform.jobs.runner import Runner

MANY = 1_000_000
JOB_TYPES = job_types_of(())


@attrs.define(eq=False)
class Queue:
    yard: Any
    lanes: Counter[str] = attrs.field(factory=Counter)

    def weigh(self, entity: str, weight: int = 1, limits: Mapping[str, int] | None = None) -> None:
        self.yard.runtime.store.transact(lambda tx: tx.add(Tenant(entity, weight=weight, limits=limits or {})))

    def submit(self, entity: str, number: int = 1, kind: str = JobKind.SFT, rank: int = 0, **fields: Any) -> list[Job]:
        jobs = []
        for _ in range(number):
            self.lanes[entity] += 1
            lane, now = f"{entity}-{self.lanes[entity]}", self.yard.clock.now()
            job = Job(
                self.yard.runtime.ids(), kind, entity, "p", lane, now, base_model="base-model", rank=rank, **fields
            )
            jobs.append(self.yard.runtime.store.transact(lambda tx, job=job: enqueue(tx, job, MANY)))
        return jobs

    def claim(self, runner: Runner | None = None) -> Job | None:
        claimed = (runner or self.yard.runner()).claim()
        return None if claimed is None else claimed.job

    def end(self, job: Job) -> None:
        event, now = self.yard.runtime.ids(), self.yard.clock.now()
        self.yard.runtime.store.transact(lambda tx: succeed(tx, JOB_TYPES, tx.get(Job, job.id), event, now))

    def cancel(self, job: Job) -> None:
        event, now = self.yard.runtime.ids(), self.yard.clock.now()
        self.yard.runtime.store.transact(lambda tx: request_cancel(tx, JOB_TYPES, job.id, event, "me", now))

    def serve(self, number: int) -> list[str]:
        """Claim and end so many jobs. Returns the entities in their order."""
        served = []
        for _ in range(number):
            job = self.claim()
            if job is None:
                break
            served.append(job.entity)
            self.end(job)
        return served


def check_shares(served: list[str], weights: Mapping[str, int]) -> None:
    """Each window in which all wait gives each its share by weight, to within a job."""
    counts: Counter[str] = Counter()
    for entity in served:
        counts[entity] += 1
        for one, weight in weights.items():
            for other, its in weights.items():
                assert abs(counts[one] / weight - counts[other] / its) <= 1 / weight + 1 / its, counts
