"""The engine: rows through a model and its scorers, never more of them under way than the concurrency.

A row is under way from the call of its model until it was committed. So what a kill can make happen twice is bounded,
and known without a mark in the store: rows begin in order, hence those that may have begun are the first uncommitted
ones, as many as the concurrency.
"""

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import attrs

from modelyard.domain.prediction import Prediction
from modelyard.service.engine_pool import Arrivals, InPlace, Outcome, Pool
from modelyard.service.engine_row import Asked, Retries, RowScorer, Subject, Verdict, asking, scoring
from modelyard.service.ports import Ports


@attrs.frozen
class Item:
    """One row to be judged, in one of its trials. `copied` is the prediction that is judged anew: nobody is asked.

    `unsure` says that an earlier attempt may have asked for it already.
    """

    index: int
    trial: int
    row: Mapping[str, Any]
    copied: Prediction | None = None
    unsure: bool = False


@attrs.frozen
class Done:
    """What came of an item. Without verdicts there is no output to judge."""

    item: Item
    id: str
    started_at: datetime
    asked: Asked
    verdicts: tuple[Verdict, ...] = ()


@attrs.frozen
class Limits:
    """How an evaluation works: `timeout` is of a row, in seconds; None is none."""

    concurrency: int = 8
    scorer_concurrency: int = 1
    timeout: float | None = None
    retries: int = 0
    seed: int = 0


@attrs.define(eq=False)
class _Row:
    """A row under way. `deadline` is on the monotonic clock."""

    item: Item
    id: str
    started_at: datetime
    deadline: float
    asked: Asked | None = None


class Engine:
    """Works on items and hands over what is done; a batch counts as committed when the next is asked for."""

    def __init__(
        self,
        ports: Ports,
        items: Iterator[Item],
        subject: Subject | None,
        scorers: tuple[RowScorer, ...],
        limits: Limits,
        pool: Pool,
        scorer_pool: Pool,
    ) -> None:
        self.ports, self._items, self._subject, self._scorers = ports, items, subject, scorers
        self._limits, self._pool, self._scorer_pool = limits, pool, scorer_pool
        self._retries = Retries(limits.retries, ports.clock)
        self._arrivals = Arrivals(ports.clock)
        self._rows: dict[int, _Row] = {}
        self._to_score: deque[int] = deque()
        self._scoring: set[int] = set()
        self._tickets = self._open = 0
        self._stopped = False
        self._latest = ports.clock.now()

    def batches(self) -> Iterator[list[Done]]:
        """What is done, until all is. A batch is empty where nothing was done for a while."""
        while True:
            self._fill()
            if not self._open:
                return
            done = self._advance()
            yield done
            self._open -= len(done)

    def stop(self) -> None:
        """Begin no more rows; what is under way is brought to its end."""
        self._stopped = True

    # ---- beginning

    def _fill(self) -> None:
        """Begin rows. Those that begin together bear one time; their ids keep them in order."""
        self._latest = max(self._latest, self.ports.clock.now())
        while self._open < self._limits.concurrency and not self._stopped:
            item = next(self._items, None)
            if item is None:
                self._stopped = True
            else:
                self._open += 1
                self._begin(item)

    def _begin(self, item: Item) -> None:
        limit = self._limits.timeout
        deadline = math.inf if limit is None else self.ports.clock.monotonic() + limit
        self._tickets += 1
        ticket, row = self._tickets, _Row(item, self.ports.ids(), self._latest, deadline)
        self._rows[ticket] = row
        if item.copied is not None:
            self._arrivals.tell(ticket, Outcome(Asked(None, item.copied.error, item.copied.attempts, None)))
            return
        assert self._subject is not None
        seed = seed_of(self._limits.seed, item.index, item.trial)
        self._pool.begin(asking(self._subject, item.row, seed, self._retries), self._teller(ticket))

    def _teller(self, ticket: int) -> Callable[[Outcome], None]:
        return lambda outcome: self._arrivals.tell(ticket, outcome)

    # ---- what arrives

    def _advance(self) -> list[Done]:
        """Take what has arrived, have it scored, and answer what is done with it."""
        done = []
        for ticket, outcome in self._arrivals.take(self._patience()):
            if ticket in self._rows:
                done += self._arrived(ticket, outcome.result())
        done += self._overdue()
        self._score()
        return done

    def _patience(self) -> float:
        """How long to wait: until the next row is overdue, and no longer than a worker's poll."""
        poll = self.ports.settings.poll
        if self._limits.timeout is None:
            return poll
        next_deadline = min(row.deadline for row in self._rows.values())
        return max(0.0, min(poll, next_deadline - self.ports.clock.monotonic()))

    def _arrived(self, ticket: int, result: Any) -> list[Done]:
        row = self._rows[ticket]
        if row.asked is not None:
            return [self._finished(ticket, result)]
        row.asked = result
        if result.error is not None or not self._scorers:
            return [self._finished(ticket, ())]
        self._to_score.append(ticket)
        return []

    def _score(self) -> None:
        while self._to_score and len(self._scoring) < self._limits.scorer_concurrency:
            ticket = self._to_score.popleft()
            row = self._rows.get(ticket)
            if row is not None:
                self._scoring.add(ticket)
                self._scorer_pool.begin(scoring(self._scorers, _output(row), row.item.row), self._teller(ticket))
                if isinstance(self._scorer_pool, InPlace):
                    self._scoring.discard(ticket)

    def _overdue(self) -> list[Done]:
        """Rows whose time is up: their result is that, whatever is still said of them."""
        if self._limits.timeout is None:
            return []
        now = self.ports.clock.monotonic()
        late = [ticket for ticket, row in self._rows.items() if row.deadline <= now]
        return [self._given_up(ticket) for ticket in late]

    def _given_up(self, ticket: int) -> Done:
        row, told = self._rows[ticket], f"timed out after {self._limits.timeout:g} s"
        if row.asked is None:
            row.asked = Asked(None, told, 1, None)
            return self._finished(ticket, ())
        return self._finished(ticket, tuple(Verdict(None, told, scored=False) for _ in self._scorers))

    def _finished(self, ticket: int, verdicts: tuple[Verdict, ...]) -> Done:
        row = self._rows.pop(ticket)
        self._scoring.discard(ticket)
        assert row.asked is not None
        return Done(row.item, row.id, row.started_at, row.asked, verdicts)


def _output(row: _Row) -> Any:
    if row.item.copied is not None:
        return row.item.copied.output.get("value")
    assert row.asked is not None
    assert row.asked.reply is not None
    return row.asked.reply.output


def seed_of(seed: int, index: int, trial: int) -> int:
    """The seed of one trial of one row: the same each time it is asked, and another for every other."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{index}/{trial}".encode()).digest()[:8], "big", signed=True)
