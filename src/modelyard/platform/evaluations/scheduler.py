"""The engine: rows through a model and its scorers, never more of them under way than the concurrency.

A row is under way from the call of its model until it was committed. So what a kill can make happen twice is bounded,
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
    scoring,
)
from modelyard.platform.runtime import Runtime


@attrs.frozen
class WorkItem:
    """One row to be judged, in one of its trials: the one with this `number` in the order in which they begin.

    `copied` is the prediction that is judged anew: nobody is asked. `unsure` says that an earlier attempt may have
    asked for it already.
    """

    number: int
    index: int
    trial: int
    row: Mapping[str, Any]
    copied: Prediction | None = None
    unsure: bool = False


@attrs.define(eq=False)
class Row:
    """A row under way, and what came of it: what was `asked`, then the `verdicts`; none where there was no output.

    `deadline` is on the monotonic clock.
    """

    item: WorkItem
    id: str
    started_at: datetime
    deadline: float = math.inf
    asked: ModelCall | None = None
    verdicts: tuple[ScoreResult, ...] = ()

    @property
    def output(self) -> Any:
        """What is to be judged."""
        if self.item.copied is not None:
            return self.item.copied.output.get("value")
        assert self.asked is not None
        assert self.asked.reply is not None
        return self.asked.reply.output


class RowScheduler:
    """Works on items and hands over what is done; a batch counts as committed when the next is asked for."""

    def __init__(
        self,
        runtime: Runtime,
        items: Iterator[WorkItem],
        subject: ModelUnderTest | None,
        scorers: tuple[RowScorer, ...],
        limits: RunLimits,
        pool: Pool,
        scorer_pool: Pool,
        begun: int = 0,
    ) -> None:
        """`begun` is how many rows were begun before."""
        self.begun = begun
        self.runtime, self._items, self._subject, self._scorers = runtime, items, subject, scorers
        self._limits, self._pool, self._scorer_pool = limits, pool, scorer_pool
        self._retries = Retries(limits.retries, runtime.clock)
        self._arrivals: CompletionQueue[Row] = CompletionQueue(runtime.clock)
        self._rows: dict[Row, None] = {}
        self._to_score: deque[Row] = deque()
        self._scoring: set[Row] = set()
        self._open = 0
        self._stopped = False
        self._latest = runtime.clock.now()

    def batches(self) -> Iterator[list[Row]]:
        """What is done, until all is. A batch is empty where nothing was done for a while."""
        while True:
            self._fill()
            if not self._open:
                return
            done = self._advance()
            yield done
            self._open -= len(done)

    @property
    def under_way(self) -> list[tuple[int, int]]:
        """The rows that were begun and are not done, each by its index and trial."""
        return [(row.item.index, row.item.trial) for row in self._rows]

    def stop(self) -> None:
        """Begin no more rows; what is under way is brought to its end."""
        self._stopped = True

    # ---- beginning

    def _fill(self) -> None:
        """Begin rows. Those that begin together bear one time; their ids keep them in order."""
        self._latest = max(self._latest, self.runtime.clock.now())
        while self._open < self._limits.concurrency and not self._stopped:
            item = next(self._items, None)
            if item is None:
                self._stopped = True
            else:
                self._open += 1
                self._begin(Row(item, self.runtime.ids(), self._latest))

    def _begin(self, row: Row) -> None:
        self._rows[row] = None
        self.begun = max(self.begun, row.item.number + 1)
        if self._limits.timeout is not None:
            row.deadline = self.runtime.clock.monotonic() + self._limits.timeout
        item, tell = row.item, partial(self._arrivals.tell, row)
        if item.copied is not None:
            tell(FlowResult(ModelCall(None, item.copied.error, item.copied.attempts, None)))
            return
        assert self._subject is not None
        seed = seed_of(self._limits.seed, item.index, item.trial)
        self._pool.begin(call_with_retries(self._subject, item.row, seed, self._retries), tell)

    # ---- what arrives

    def _advance(self) -> list[Row]:
        """Take what has arrived, have it scored, and answer what is done with it."""
        done = []
        self._pool.work()
        for row, outcome in self._arrivals.take(self._patience()):
            if row in self._rows and self._arrived(row, outcome.result()):
                done.append(row)
            self._score()
        return done + self._overdue()

    def _patience(self) -> float:
        """How long to wait: until the next row is overdue, and no longer than a worker's poll."""
        poll = self.runtime.settings.poll
        if self._limits.timeout is None:
            return poll
        next_deadline = min(row.deadline for row in self._rows)
        return max(0.0, min(poll, next_deadline - self.runtime.clock.monotonic()))

    def _arrived(self, row: Row, result: Any) -> bool:
        """Take what came of asking for a row, or of scoring it. Answers whether it is done with that."""
        if row.asked is not None:
            row.verdicts = result
        else:
            row.asked = result
            if result.error is None and self._scorers:
                self._to_score.append(row)
                return False
        self._end(row)
        return True

    def _score(self) -> None:
        """Begin to score what waits for it."""
        while self._to_score and len(self._scoring) < self._limits.scorer_concurrency:
            row = self._to_score.popleft()
            if row in self._rows:
                self._scoring.add(row)
                verdicts = scoring(self._scorers, row.output, row.item.row)
                self._scorer_pool.begin(verdicts, partial(self._arrivals.tell, row))
        self._scorer_pool.work()

    def _overdue(self) -> list[Row]:
        """Rows whose time is up: their result is that, whatever is still said of them."""
        if self._limits.timeout is None:
            return []
        now = self.runtime.clock.monotonic()
        late = [row for row in self._rows if row.deadline <= now]
        for row in late:
            self._give_up(row)
        return late

    def _give_up(self, row: Row) -> None:
        told = f"timed out after {self._limits.timeout:g} s"
        if row.asked is None:
            row.asked = ModelCall(None, told, 1, None)
        else:
            row.verdicts = tuple(ScoreResult(None, told, scored=False) for _ in self._scorers)
        self._end(row)

    def _end(self, row: Row) -> None:
        del self._rows[row]
        self._scoring.discard(row)


def seed_of(seed: int, index: int, trial: int) -> int:
    """The seed of one trial of one row: the same each time it is asked, and another for every other."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{index}/{trial}".encode()).digest()[:8], "big", signed=True)
