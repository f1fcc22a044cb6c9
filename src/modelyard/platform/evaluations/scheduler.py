"""The row scheduler: passes rows through a model and its scorers, never more of them at a time than the concurrency.

A row is under way from the call of its model until it is committed. So what a kill can make happen twice is bounded,
and known without a mark in the store: rows begin in order, hence those that may have begun are the first uncommitted
ones, as many as the concurrency.
"""

import hashlib
import math
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import attrs

from modelyard.domain.evaluation.prediction import Prediction
from modelyard.platform.evaluations.pools import CompletionQueue, FlowResult, Pool
from modelyard.platform.evaluations.row import (
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


@attrs.frozen
class WorkItem:
    """One trial of one row to evaluate. `number` is its position in the order in which they begin.

    `copied` is the prediction that is rescored: no model is called. `unsure`: an earlier attempt may have called
    the model for it already.
    """

    number: int
    index: int
    trial: int
    row: Mapping[str, Any]
    copied: Prediction | None = None
    unsure: bool = False


@attrs.define(eq=False)
class RowInFlight:
    """A row under way: first its model `call`, then its `scores`, which stay empty where there was no output.

    `deadline` is on the monotonic clock.
    """

    item: WorkItem
    id: str
    started_at: datetime
    deadline: float = math.inf
    call: ModelCall | None = None
    scores: tuple[ScoreResult, ...] = ()

    @property
    def output(self) -> Any:
        """The output to score."""
        if self.item.copied is not None:
            return self.item.copied.output.get("value")
        assert self.call is not None
        assert self.call.reply is not None
        return self.call.reply.output


class RowScheduler:
    """Works on items and hands over finished rows; a batch counts as committed when the next one is requested."""

    def __init__(
        self,
        runtime: Runtime,
        items: Iterator[WorkItem],
        model: ModelUnderTest | None,
        scorers: tuple[RowScorer, ...],
        limits: RunLimits,
        pool: Pool,
        scorer_pool: Pool,
        begun: int = 0,
    ) -> None:
        """Prepare the work on items. `begun` is how many rows were begun before."""
        self.begun: int = begun
        self.runtime: Runtime = runtime
        self._items, self._model, self._scorers = items, model, scorers
        self._limits, self._pool, self._scorer_pool = limits, pool, scorer_pool
        self._retries = Retries(limits.retries, runtime.clock)
        self._arrivals: CompletionQueue[RowInFlight] = CompletionQueue(runtime.clock)
        self._rows: dict[RowInFlight, None] = {}
        self._to_score: deque[RowInFlight] = deque()
        self._scoring: set[RowInFlight] = set()
        self._open = 0
        self._stopped = False
        self._latest = runtime.clock.now()

    def batches(self) -> Iterator[list[RowInFlight]]:
        """Yield finished rows until all are finished. A batch is empty where none was finished for a while."""
        while True:
            self._fill()
            if not self._open:
                return
            done = self._advance()
            yield done
            self._open -= len(done)

    @property
    def under_way(self) -> list[tuple[int, int]]:
        """The rows that were begun and are not finished, each by its index and trial."""
        return [(row.item.index, row.item.trial) for row in self._rows]

    def stop(self) -> None:
        """Begin no more rows; finish those that are under way."""
        self._stopped = True

    # ---- beginning

    def _fill(self) -> None:
        """Begin rows. Those that begin together have one start time; their ids keep them in order."""
        self._latest = max(self._latest, self.runtime.clock.now())
        while self._open < self._limits.concurrency and not self._stopped:
            item = next(self._items, None)
            if item is None:
                self._stopped = True
            else:
                self._open += 1
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
        seed = trial_seed(self._limits.seed, item.index, item.trial)
        self._pool.begin(call_with_retries(self._model, item.row, seed, self._retries), on_end)

    # ---- what arrives

    def _advance(self) -> list[RowInFlight]:
        """Take what has arrived, begin to score it, and return the finished rows."""
        done = []
        self._pool.work()
        for row, outcome in self._arrivals.take(self._longest_wait()):
            if row in self._rows and self._received(row, outcome.result()):
                done.append(row)
            self._score()
        return done + self._overdue()

    def _longest_wait(self) -> float:
        """Return how long to wait: until the next row is overdue, and no longer than a worker's poll."""
        poll = self.runtime.settings.poll
        if self._limits.timeout is None:
            return poll
        next_deadline = min(row.deadline for row in self._rows)
        return max(0.0, min(poll, next_deadline - self.runtime.clock.monotonic()))

    def _received(self, row: RowInFlight, result: Any) -> bool:
        """Take the model call of a row, or its scores. Returns whether the row is finished with that."""
        if row.call is not None:
            row.scores = result
        else:
            row.call = result
            if result.error is None and self._scorers:
                self._to_score.append(row)
                return False
        self._end(row)
        return True

    def _score(self) -> None:
        """Begin to score waiting rows, as many as may be scored at a time."""
        while self._to_score and len(self._scoring) < self._limits.scorer_concurrency:
            row = self._to_score.popleft()
            if row in self._rows:
                self._scoring.add(row)
                scores = score_row(self._scorers, row.output, row.item.row)
                self._scorer_pool.begin(scores, partial(self._arrivals.put, row))
        self._scorer_pool.work()

    def _overdue(self) -> list[RowInFlight]:
        """End the rows whose time is up. Anything that arrives for them later is ignored."""
        if self._limits.timeout is None:
            return []
        now = self.runtime.clock.monotonic()
        late = [row for row in self._rows if row.deadline <= now]
        for row in late:
            self._give_up(row)
        return late

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


def trial_seed(seed: int, index: int, trial: int) -> int:
    """Return the seed of one trial of one row: always the same for it, and different for any other."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{index}/{trial}".encode()).digest()[:8], "big", signed=True)
