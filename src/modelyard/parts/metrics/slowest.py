"""Each process adds its slowest answers to those that the store keeps, each second and when they are read."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from heapq import nlargest
from itertools import islice
from math import inf
from operator import attrgetter
from threading import Lock
from typing import Any

from modelyard.domain.canonical import digest
from modelyard.domain.identity import DeletedEntity
from modelyard.domain.record import KEY
from modelyard.domain.usage import LedgerEntry
from modelyard.errors import StoreError
from modelyard.lazy import log
from modelyard.parts.metrics.records import KEPT_A_DAY, KEPT_FOR, SlowAnswer
from modelyard.platform.listing import BATCH
from modelyard.platform.meters import MOST
from modelyard.platform.paging import iter_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

Groups = Mapping[tuple[str, str], Sequence[SlowAnswer]]
SECONDS = attrgetter("seconds")
REMOVED = 100
"""How many old answers one step removes."""
REMOVE_EVERY = 3600.0
"""Seconds."""


class SlowestHere:
    """The slowest answers of this process that the store does not have yet. Thread-safe."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._lock = runtime, Lock()
        self._waiting: list[SlowAnswer] = []
        self._removes_at = -inf

    def store(self) -> None:
        """Add them to those in the store. What it does not take now waits for the next call."""
        meters = self._runtime.cache.meters
        if meters is None:
            return
        with self._lock:
            taken = map(_answer, meters.take_slowest())
            groups = _groups([*self._waiting, *taken])
            self._waiting = [one for group in [*groups.values()][:MOST] for one in nlargest(KEPT_A_DAY, group, SECONDS)]
            try:
                self._keep()
                self._remove_old()
            except StoreError as fault:
                log.info("the slowest answers are kept later: %s", type(fault).__name__)

    def _keep(self) -> None:
        store, groups = self._runtime.store, _groups(self._waiting)
        slow = store.read(partial(_slow_enough, groups)) if groups else ()
        if slow:
            store.transact(partial(_keep, _groups(slow)), durable=False)
        self._waiting = []

    def _remove_old(self) -> None:
        store, clock = self._runtime.store, self._runtime.clock
        if clock.monotonic() < self._removes_at:
            return
        before = clock.now() - KEPT_FOR
        while store.read(partial(_old, before)):
            store.transact(partial(_remove_old, before), durable=False)
        self._removes_at = clock.monotonic() + REMOVE_EVERY


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


def _groups(answers: Iterable[SlowAnswer]) -> Groups:
    groups: defaultdict[tuple[str, str], list[SlowAnswer]] = defaultdict(list)
    for one in answers:
        groups[one.entity, one.day].append(one)
    return groups


def _slow_enough(groups: Groups, snapshot: Snapshot) -> list[SlowAnswer]:
    """Return those that are slower than one of the slowest of their day, or for which there is room."""
    found: list[SlowAnswer] = []
    for group, answers in groups.items():
        order: Any = {"limit": KEPT_A_DAY, "descending": True}
        kept = snapshot.select(SlowAnswer, ("seconds",), "by_entity_day", *group, **order)
        found += [one for one in answers if len(kept) < KEPT_A_DAY or one.seconds > kept[-1][0]]
    return found


def _keep(groups: Groups, tx: Tx) -> None:
    """Keep those that are among the slowest of their day."""
    for group, answers in groups.items():
        kept = tx.page(SlowAnswer, "by_entity_day", *group, limit=KEPT_A_DAY, descending=True)
        new = [one for one in answers if _is_new(tx, one)]
        slowest = {one.id for one in nlargest(KEPT_A_DAY, [*kept, *new], SECONDS)}
        for one in kept:
            if one.id not in slowest:
                tx.remove(SlowAnswer, one.id)
        tx.add_all([one for one in new if one.id in slowest])


def _old(before: datetime, snapshot: Snapshot) -> list[str]:
    found = snapshot.select(SlowAnswer, ("ended_at", "id"), "by_time", limit=REMOVED)
    return [name for ended_at, name in found if ended_at < before]


def _remove_old(before: datetime, tx: Tx) -> None:
    for name in _old(before, tx):
        tx.remove(SlowAnswer, name)


def _is_new(tx: Tx, one: SlowAnswer) -> bool:
    """Return whether it is not kept yet, and its entity was not deleted since it began."""
    deleted = tx.find(DeletedEntity, KEY, digest(one.entity))
    lives = deleted is None or one.ended_at - timedelta(seconds=one.seconds) >= deleted.deleted_at
    return lives and tx.find(SlowAnswer, KEY, one.id) is None


def slowest_in(
    snapshot: Snapshot, limit: int, since: datetime, until: datetime, entity: str | None
) -> Sequence[SlowAnswer]:
    """Return the slowest that ended from `since` until just before `until`, the slowest first."""
    found: list[SlowAnswer] = []
    for days in range((until - since).days + 2):
        day = f"{since + timedelta(days=days):%Y-%m-%d}"
        index = ("by_day", day) if entity is None else ("by_entity_day", entity, day)
        of_day = iter_index(snapshot, SlowAnswer, *index, size=max(limit, BATCH), descending=True)
        found += islice((one for one in of_day if since <= one.ended_at < until), limit)
    return nlargest(limit, found, SECONDS)
