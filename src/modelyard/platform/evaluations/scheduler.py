"""The row scheduler: passes rows through a model and its scorers, never more of them at a time than the concurrency.
Finished rows are handed over to be committed together: 64 of them, or those of a twentieth of a second. So the
repetitions that a kill can cause are bounded, and known without a mark in the store: rows begin in order, hence the
rows that may have begun are the first uncommitted ones, as many as can be in flight or wait for their commit."""

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import attrs

from modelyard.domain.evaluation.run import Prediction
from modelyard.domain.frozen_fast import quick_init
from modelyard.domain.identity import Limits, Principal
from modelyard.platform.evaluations.pools import CompletionQueue, FlowResult, InlinePool, Pool
from modelyard.platform.evaluations.row_evaluation import (
    ModelCall,
    ModelUnderTest,
    Retries,
    RowScorer,
    RunLimits,
    ScoreResult,
    call_with_retries,
    score_row,
)
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage.booking import budget_ids, budgets_of

BETWEEN_COMMITS = 0.05
"""Seconds after a commit in which finished rows wait for further ones. The rows of a slow model wait for none."""
_NO_LIMITS = Limits()


def is_limited(runtime: Runtime, principal: Principal, entity: str, project: str) -> bool:
    if principal.limits != _NO_LIMITS:
        return True
    asked = budget_ids(entity, principal.key_id, project, principal.purse)
    return bool(runtime.store.read(lambda snapshot: budgets_of(snapshot, asked)))


@quick_init
@attrs.frozen(weakref_slot=False)
class WorkItem:
    """One trial of one row to evaluate. `number` is its position in the order in which they begin. `copied` is the
    prediction that is rescored: no model is called. `unsure`: an earlier attempt may have called the model for it
    already. Functions may change the `row`; what is stored are its `inputs`."""

    number: int
    index: int
    trial: int
    row: Mapping[str, Any]
    inputs: Mapping[str, Any]
    row_digest: str
    copied: Prediction | None = None
    unsure: bool = False


@attrs.define(eq=False)
class RowInFlight:
    """A row in flight: first its model `call`, then its `scores`, which stay empty if there was no output. `deadline`
    is on the monotonic clock."""

    item: WorkItem
    id: str
    started_at: datetime
    deadline: float = math.inf
    call: ModelCall | None = None
    scores: tuple[ScoreResult, ...] = ()

    @property
    def output(self) -> Any:
        if self.item.copied is not None:
            return self.item.copied.output.get("value")
        assert self.call is not None
        assert self.call.reply is not None
        return self.call.reply.output

    @property
    def failed(self) -> bool:
        assert self.call is not None
        return self.call.error is not None or not all(score.scored for score in self.scores)


class RowScheduler:
    """Works on items and hands over finished rows; a batch counts as committed when the next one is requested."""

    def __init__(
        self,
        runtime: Runtime,
        items: Iterator[WorkItem],
        model: ModelUnderTest | None,
        scorers: tuple[RowScorer, ...],
        pool: Pool,
        scorer_pool: Pool,
        limits: RunLimits,
        limited: Callable[[], bool],
        begun: int = 0,
    ) -> None:
        """Prepare the work on items. `begun` is how many rows were begun before. While calls are `limited`, no finished
        row waits for others, as it may keep a part of the limit reserved."""
        self.begun: int = begun
        self.runtime: Runtime = runtime
        self._items, self._model, self._scorers = items, model, scorers
        self._limits, self._pool, self._scorer_pool = limits, pool, scorer_pool
        self._limited = limited
        self._retries = Retries(limits.retries, runtime.clock)
        self._arrivals: CompletionQueue[RowInFlight] = CompletionQueue(runtime.clock)
        self._rows: dict[RowInFlight, None] = {}
        self._to_score: deque[RowInFlight] = deque()
        self._scoring: set[RowInFlight] = set()
        self._together = 1
        self._finished: list[RowInFlight] = []
        self._urgent = False
        self._due = -math.inf
        self._stopped = False
        self._latest = runtime.clock.now()

    def batches(self) -> Iterator[list[RowInFlight]]:
        """Yield finished rows until all are finished. A batch is empty if none was finished for a while. Rows that
        finished before an error or an interrupt are yielded before that is raised."""
        while True:
            self._fill()
            if not self._rows:
                break
            try:
                self._advance()
            except BaseException:
                if self._finished:
                    yield self._batch()
                raise
            if self._is_due():
                yield self._batch()
                self._due = self.runtime.clock.monotonic() + BETWEEN_COMMITS
                self._together = 1 if self._limited() else self._limits.together
        if self._finished:
            yield self._batch()

    def _batch(self) -> list[RowInFlight]:
        done, self._finished, self._urgent = self._finished, [], False
        return done

    def _is_due(self) -> bool:
        """Return whether to hand over what has finished. A failed row waits for none: the budget of errors may be
        spent."""
        return self._urgent or len(self._finished) >= self._together or self.runtime.clock.monotonic() >= self._due

    @property
    def under_way(self) -> list[tuple[int, int]]:
        return [(row.item.index, row.item.trial) for row in self._rows]

    def stop(self) -> None:
        self._stopped = True

    # ---- beginning

    def _fill(self) -> None:
        self._latest = max(self._latest, self.runtime.clock.now())
        while len(self._rows) < self._limits.concurrency and not self._stopped:
            item = next(self._items, None)
            if item is None:
                self._stopped = True
            else:
                self._begin(RowInFlight(item, self.runtime.ids(), self._latest))

    def _begin(self, row: RowInFlight) -> None:
        self._rows[row] = None
        self.begun = max(self.begun, row.item.number + 1)
        if self._limits.timeout is not None:
            row.deadline = self.runtime.clock.monotonic() + self._limits.timeout
        item, on_end = row.item, partial(self._arrivals.put, row)
        if item.copied is not None:
            on_end(FlowResult(ModelCall(None, item.copied.error, item.copied.attempts, None)))
            return
        assert self._model is not None
        seed = trial_seed(self._limits.seed, item.index, item.trial) if self._model.seeded else 0
        self._pool.begin(call_with_retries(self._model, item.row, seed, self._retries), on_end)

    # ---- what arrives

    def _advance(self) -> None:
        self._pool.work()
        for row, outcome in self._arrivals.take(self._longest_wait):
            if row in self._rows:
                self._received(row, outcome.result())
            if self._to_score:
                self._score()
        if self._limits.timeout is not None:
            self._end_overdue()

    def _longest_wait(self) -> float:
        longest, now = self.runtime.settings.poll, self.runtime.clock.monotonic()
        if self._finished:
            longest = min(longest, self._due - now)
        if self._limits.timeout is not None:
            longest = min(longest, min(row.deadline for row in self._rows) - now)
        return max(0.0, longest)

    def _received(self, row: RowInFlight, result: Any) -> None:
        if row.call is not None:
            row.scores = result
        else:
            row.call = result
            if result.error is None and self._scorers:
                if not isinstance(self._scorer_pool, InlinePool):
                    self._to_score.append(row)
                    return
                row.scores = self._scorer_pool.run(score_row(self._scorers, row.output, row.item.row))
        self._end(row)

    def _score(self) -> None:
        while self._to_score and len(self._scoring) < self._limits.scorer_concurrency:
            row = self._to_score.popleft()
            if row in self._rows:
                self._scoring.add(row)
                scores = score_row(self._scorers, row.output, row.item.row)
                self._scorer_pool.begin(scores, partial(self._arrivals.put, row))

    def _end_overdue(self) -> None:
        """End the rows that are out of time. Anything that arrives for them later is ignored."""
        now = self.runtime.clock.monotonic()
        for row in [row for row in self._rows if row.deadline <= now]:
            self._give_up(row)

    def _give_up(self, row: RowInFlight) -> None:
        error = f"timed out after {self._limits.timeout:g} s"
        if row.call is None:
            row.call = ModelCall(None, error, 1, None)
        else:
            row.scores = tuple(ScoreResult(None, error, scored=False) for _ in self._scorers)
        self._end(row)

    def _end(self, row: RowInFlight) -> None:
        del self._rows[row]
        self._scoring.discard(row)
        self._finished.append(row)
        self._urgent = self._urgent or row.failed


def trial_seed(seed: int, index: int, trial: int) -> int:
    """Return the seed of one trial of one row: always the same for it, and different for any other."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{index}/{trial}".encode()).digest()[:8], "big", signed=True)
