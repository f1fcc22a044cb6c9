"""Counts of a process while it answers: requests, tokens, cost and times, for `Platform.metrics`. Labels are bounded:
models and routes beyond `MOST` are counted together."""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from functools import partial
from heapq import nlargest
from operator import itemgetter
from threading import RLock
from typing import Any, TypeVar

import attrs

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
MOST = 500
NOTED = 256
SLOWEST = 20
"""How many of the slowest answers are noted of an entity and day; those of `MOST` of these, until they are taken."""
OTHER = "other"
K = TypeVar("K")
M = TypeVar("M")
V = TypeVar("V")


@attrs.define(eq=False)
class TimeHistogram:
    """How many times fell into each bucket, and their sum in seconds. The last bucket has no bound."""

    counts: list[int] = attrs.field(factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, times: Sequence[float]) -> None:
        ordered, below = sorted(times), 0
        for bucket, bound in enumerate(BOUNDS):
            within = bisect_right(ordered, bound, below)
            self.counts[bucket] += within - below
            below = within
        self.counts[-1] += len(ordered) - below
        self.total += sum(times)


@attrs.define(eq=False)
class ModelMeter:
    """The counts of one model: requests by status, tokens, cost in USD, and times of whole answers."""

    requests: defaultdict[int, int] = attrs.field(factory=partial(defaultdict, int))
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: Decimal = Decimal(0)
    seconds: TimeHistogram = attrs.field(factory=TimeHistogram)
    first_token: TimeHistogram = attrs.field(factory=TimeHistogram)


@attrs.define(eq=False)
class RouteMeter:
    """The counts of one route: requests by status, and their times."""

    requests: defaultdict[int, int] = attrs.field(factory=partial(defaultdict, int))
    seconds: TimeHistogram = attrs.field(factory=TimeHistogram)


class Meters:
    """The counts of one process since it began to count. Thread-safe.

    `refusals` are the completions that failed, by the code of their error. `lost_leases` are jobs that were taken from
    a worker, to be run again. A request only notes what is to be counted: many are counted at once, at the latest when
    a count is read, which costs each of them less.
    """

    def __init__(self) -> None:
        self.lock: RLock = RLock()
        self.refusals: dict[str, int] = {}
        self.lost_leases: int = 0
        self._slowest: dict[tuple[str, date], list[tuple[float, Any]]] = {}
        self._models: dict[str, ModelMeter] = {}
        self._routes: dict[tuple[str, str], RouteMeter] = {}
        self._booked: deque[tuple[str, tuple[Any, float, float | None]]] = deque()
        self._answered: deque[tuple[tuple[str, str, int], float]] = deque()

    @property
    def models(self) -> Mapping[str, ModelMeter]:
        self._count()
        return self._models

    def take_slowest(self) -> Sequence[tuple[float, Any]]:
        """Return the slowest whole answers of each entity and day since the last call: seconds and ledger entries."""
        with self.lock:
            self._count()
            taken, self._slowest = self._slowest, {}
        return [timed for group in taken.values() for timed in group]

    @property
    def routes(self) -> Mapping[tuple[str, str], RouteMeter]:
        """The counts of routes, by method and path."""
        self._count()
        return self._routes

    def booked(self, entry: Any, seconds: float, first: float | None) -> None:
        """Count the ledger entry of a completion, and how long a whole one took; `seconds` is negative for a part."""
        self._booked.append((entry.model, (entry, seconds, first)))
        if len(self._booked) >= NOTED:
            self._count()

    def ended(self, model: str, status: int, code: str | None) -> None:
        """Count a completion that was not answered as a whole; `code` is that of its error."""
        with self.lock:
            meter = self._models.get(model) or _meter(self._models, model, OTHER, ModelMeter)
            meter.requests[status] += 1
            if code is not None:
                self.refusals[code] = self.refusals.get(code, 0) + 1

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self._answered.append(((method, route, status), seconds))
        if len(self._answered) >= NOTED:
            self._count()

    def lease_lost(self) -> None:
        with self.lock:
            self.lost_leases += 1

    def _count(self) -> None:
        """Count what was noted. Others may note more meanwhile, which is counted as well or later."""
        with self.lock:
            for model, notes in _noted(self._booked).items():
                meter = self._models.get(model) or _meter(self._models, model, OTHER, ModelMeter)
                meter.prompt_tokens += sum([entry.prompt_tokens for entry, _, _ in notes])
                meter.completion_tokens += sum([entry.completion_tokens for entry, _, _ in notes])
                meter.cost += sum([entry.cost for entry, _, _ in notes if entry.cost])
                whole = [seconds for _, seconds, _ in notes if seconds >= 0]
                if whole:
                    meter.requests[200] += len(whole)
                    meter.seconds.add(whole)
                    self._note([(seconds, entry) for entry, seconds, _ in notes if seconds >= 0])
                meter.first_token.add([first for _, _, first in notes if first is not None])
            for (method, route, status), times in _noted(self._answered).items():
                key = method, route
                found = self._routes.get(key) or _meter(self._routes, key, (OTHER, OTHER), RouteMeter)
                found.requests[status] += len(times)
                found.seconds.add(times)

    def _note(self, timed: Sequence[tuple[float, Any]]) -> None:
        groups: defaultdict[tuple[str, date], list[tuple[float, Any]]] = defaultdict(list)
        for one in timed:
            groups[one[1].entity, one[1].created_at.date()].append(one)
        for group, found in groups.items():
            if group in self._slowest or len(self._slowest) < MOST:
                self._slowest[group] = nlargest(SLOWEST, [*self._slowest.get(group, ()), *found], key=itemgetter(0))


def _noted(notes: deque[tuple[K, V]]) -> dict[K, list[V]]:
    found: defaultdict[K, list[V]] = defaultdict(list)
    for _ in range(len(notes)):
        key, value = notes.popleft()
        found[key].append(value)
    return found


def _meter(meters: dict[K, M], key: K, other: K, make: Callable[[], M]) -> M:
    return meters.setdefault(key if len(meters) < MOST else other, make())
