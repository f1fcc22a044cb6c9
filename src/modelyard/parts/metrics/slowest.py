"""Each process adds its slowest answers to those that the store keeps, each second and when they are read."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from heapq import nlargest
from itertools import islice
from operator import attrgetter
from threading import Lock

from modelyard.domain.record import KEY
from modelyard.domain.usage import LedgerEntry
from modelyard.errors import StoreError
from modelyard.lazy import log
from modelyard.parts.metrics.records import KEPT_A_DAY, KEPT_FOR, SlowAnswer
from modelyard.platform.meters import SLOWEST
from modelyard.platform.paging import iter_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

SECONDS = attrgetter("seconds")
REMOVED = 100
"""How many old answers one step removes."""


class SlowestHere:
    """The slowest answers of this process that the store does not have yet. Thread-safe."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._lock = runtime, Lock()
        self._waiting: list[SlowAnswer] = []
        self._floors: dict[tuple[str, str], float] = {}

    def store(self) -> None:
        """Add them to those in the store. What it does not take now waits for the next call."""
        meters = self._runtime.cache.meters
        if meters is None:
            return
        with self._lock:
            taken = map(_answer, meters.take_slowest())
            new = [one for one in taken if one.seconds > self._floors.get((one.entity, one.day), -1.0)]
            waiting = nlargest(SLOWEST, [*self._waiting, *new], SECONDS)
            groups: defaultdict[tuple[str, str], list[SlowAnswer]] = defaultdict(list)
            for one in waiting:
                groups[one.entity, one.day].append(one)
            self._waiting = []
            for group, answers in groups.items():
                self._keep(group, answers)

    def _keep(self, group: tuple[str, str], answers: Sequence[SlowAnswer]) -> None:
        before = self._runtime.clock.now() - KEPT_FOR
        try:
            floor = self._runtime.store.transact(partial(_keep, group, answers, before), durable=False)
        except StoreError as fault:
            log.info("the slowest answers of %s are kept later: %s", group[0], type(fault).__name__)
            self._waiting += answers
            return
        self._floors = {of: kept for of, kept in self._floors.items() if of[1] >= group[1]} | {group: floor}


def _answer(timed: tuple[float, LedgerEntry]) -> SlowAnswer:
    seconds, entry = timed
    return SlowAnswer(
        entry.id,
        entry.entity,
        entry.project,
        entry.key_id,
        entry.model,
        entry.prompt_tokens,
        entry.completion_tokens,
        seconds,
        entry.created_at,
        f"{entry.created_at.astimezone(UTC):%Y-%m-%d}",
    )


def _keep(group: tuple[str, str], answers: Iterable[SlowAnswer], before: datetime, tx: Tx) -> float:
    """Keep those of a day that are among its slowest, and none from `before` then. Returns how slow another must be."""
    kept = tx.page(SlowAnswer, "by_entity_day", *group, limit=KEPT_A_DAY, descending=True)
    new = [one for one in answers if tx.find(SlowAnswer, KEY, one.id) is None]
    slowest = nlargest(KEPT_A_DAY, [*kept, *new], SECONDS)
    stay = {one.id for one in slowest}
    for one in kept:
        if one.id not in stay:
            tx.remove(SlowAnswer, one.id)
    for one in new:
        if one.id in stay:
            tx.add(one)
    for one in tx.page(SlowAnswer, "by_time", limit=REMOVED):
        if one.ended_at < before and one.id not in stay:
            tx.remove(SlowAnswer, one.id)
    return slowest[-1].seconds if len(slowest) == KEPT_A_DAY else -1.0


def slowest_in(
    snapshot: Snapshot, limit: int, since: datetime, until: datetime, entity: str | None
) -> Sequence[SlowAnswer]:
    """Return the slowest that ended from `since` until just before `until`, the slowest first."""
    found: list[SlowAnswer] = []
    for days in range((until - since).days + 2):
        day = f"{since + timedelta(days=days):%Y-%m-%d}"
        index = ("by_day", day) if entity is None else ("by_entity_day", entity, day)
        of_day = iter_index(snapshot, SlowAnswer, *index, size=limit, descending=True)
        found += islice((one for one in of_day if since <= one.ended_at < until), limit)
    return nlargest(limit, found, SECONDS)
