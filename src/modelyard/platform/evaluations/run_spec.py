"""A run that is still to be stored, with the jobs of its shards."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

import attrs

from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.evaluation.shards import split
from modelyard.domain.job import Job
from modelyard.errors import InvalidInput, Problem
from modelyard.platform.evaluations.scorers import LocalCallables
from modelyard.platform.jobs.queue import enqueue
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Tx

T = TypeVar("T")


@attrs.frozen
class RunSpec:
    """A run and its job, still to be stored, and the functions that it needs.

    Once it has rows, `more` are the jobs of its further shards, of which there are to be `shards` in all.
    """

    runtime: Runtime
    run: EvaluationRun
    job: Job
    callables: LocalCallables
    shards: int = 1
    more: tuple[Job, ...] = ()

    def with_items(self, count: int, **source: str) -> "RunSpec":
        """Return the spec of a run on so many rows, or predictions to score again, from this source."""
        job = attrs.evolve(self.job, spec={**self.job.spec, **source})
        first, *more = split(job, self.shards, count, self.job.spec.get("trials", 1), self.runtime.ids)
        return attrs.evolve(self, job=first, more=tuple(more))

    def check_portable(self) -> None:
        """Raise `InvalidInput` when it needs functions of the caller's, which no worker has."""
        needed = {"model": self.callables.model, "scorers": self.callables.scorers}
        problems = [
            Problem(
                (name,), "workers cannot run a function of the caller; name one of the platform's own, or use `run`"
            )
            for name, functions in needed.items()
            if functions
        ]
        if problems:
            raise InvalidInput(problems)

    def add(self, tx: Tx) -> None:
        """Store the run, and queue its jobs. Raises `RateLimited`."""
        tx.add(self.run)
        for job in (self.job, *self.more):
            enqueue(tx, job, self.runtime.settings.max_queued_jobs)

    def store(self, step: Callable[[Tx], T]) -> T:
        """Store the run by `step`. Its rows are removed again where that fails."""
        with ExitStack() as undone:
            if "artifact" in self.job.spec:
                undone.callback(self.runtime.artifacts.remove, self.job.spec["artifact"])
            kept = self.runtime.store.transact(step)
            undone.pop_all()
        return kept
