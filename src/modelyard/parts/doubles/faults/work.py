"""A trainer and an executor with jobs that fail, die, are slow or are lost, as scheduled."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from modelyard.domain.job import Claim, Job, JobProgress, Needs
from modelyard.part import standard_parts
from modelyard.parts.doubles.faults.kinds import Killed, Slow
from modelyard.parts.doubles.faults.schedule import FaultPlan
from modelyard.platform.job_types import job_types_of
from modelyard.platform.jobs.attempts import adopt
from modelyard.platform.jobs.expired_claims import expire
from modelyard.platform.paging import iter_index
from modelyard.protocols import (
    Ended,
    Executor,
    ExecutorState,
    Ids,
    Snapshot,
    Step,
    Store,
    TrainContext,
    Trainer,
    TrainItem,
)

STEP, SUBMIT = "step", "submit"

MOST_CRASHES = 1_000_000
"""Attempts lost to a scheduled takeover are not counted, so that the job does not fail."""


class FaultyTrainer:
    """A trainer with runs that fail as scheduled when they reach a step, before that step is recorded. `store` has the
    jobs, of which it takes away the claims."""

    def __init__(self, plan: FaultPlan, inner: Trainer, store: Callable[[], Store], ids: Ids) -> None:
        self._plan, self._inner, self._store, self._ids = plan, inner, store, ids

    def methods(self, base_model: str) -> Collection[str]:
        return self._inner.methods(base_model)

    def train(self, method: str, config: Any, data: Iterable[Any], context: TrainContext) -> Iterator[TrainItem]:
        return self._disturbed(self._inner.train(method, config, data, context), context)

    def _disturbed(self, items: Iterator[TrainItem], context: TrainContext) -> Iterator[TrainItem]:
        try:
            for item in items:
                if isinstance(item, Step):
                    self._reached(item.number, context.seed)
                yield item
        finally:
            if hasattr(items, "close"):
                items.close()

    def _reached(self, step: int, seed: int) -> None:
        struck = self._plan.struck(STEP, step)
        if struck is None:
            return
        fault = struck.record()
        if isinstance(fault, Exception):
            raise fault.with_traceback(None)
        if isinstance(fault, Slow):
            self._plan.clock.sleep(fault.seconds)
        elif isinstance(fault, Killed):
            self._fence_off(seed)
        else:
            self._take_away(seed)

    def _fence_off(self, seed: int) -> None:
        """Move the job to a claim without a holder, so that its worker can write nothing more."""
        store, now = self._store(), self._plan.clock.now()
        held = store.read(lambda snapshot: _held(snapshot, seed))
        store.transact(lambda tx: adopt(tx, held.job_id, now))

    def _take_away(self, seed: int) -> None:
        store, event_id, now = self._store(), self._ids(), self._plan.clock.now()
        held = store.read(lambda snapshot: _held(snapshot, seed))
        store.transact(lambda tx: expire(tx, job_types_of(standard_parts()), held, event_id, now, MOST_CRASHES))


def _held(snapshot: Snapshot, seed: int) -> JobProgress:
    """Return the running job of this seed, the only thing that a trainer knows of it."""
    running = iter_index(snapshot, JobProgress, "by_held", True)
    return next(one for one in running if snapshot.get(Job, one.job_id).spec.get("seed") == seed)


class FaultyExecutor:
    """An executor that refuses jobs as scheduled, or loses them: their process dies before it begins."""

    def __init__(self, plan: FaultPlan, inner: Executor) -> None:
        self._plan, self._inner = plan, inner
        self._numbers = count(1)
        self._lost: set[str] = set()

    @property
    def isolates(self) -> bool:
        return self._inner.isolates

    def submit(self, claim: Claim, run: Callable[[Claim], None], needs: Needs) -> str:
        struck = self._plan.struck(SUBMIT)
        if struck is None:
            return self._inner.submit(claim, run, needs)
        if isinstance(struck.fault, Exception):
            raise struck.error()
        struck.record()
        handle = f"lost-{next(self._numbers)}"
        self._lost.add(handle)
        return handle

    def states(self, handles: Collection[str]) -> Mapping[str, ExecutorState]:
        kept = [handle for handle in handles if handle not in self._lost]
        lost = {handle: Ended("its process was killed") for handle in handles if handle in self._lost}
        return {**self._inner.states(kept), **lost}

    def cancel(self, handle: str) -> None:
        self._inner.cancel(handle)

    def reattach(self, handle: str, alive: bool) -> bool:
        return handle in self._lost or self._inner.reattach(handle, alive)

    def close(self, leave: bool = False) -> None:
        self._inner.close(leave)


_trainer: type[Trainer] = FaultyTrainer
_executor: type[Executor] = FaultyExecutor
