"""Usage and its cost: the ledger, budgets, and what a running request has reserved. All amounts are Decimal."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from enum import StrEnum
from functools import lru_cache, reduce
from typing import Any

import attrs

from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import Usage
from modelyard.domain.frozen_fast import copies, maker, quick_init
from modelyard.domain.identity import ApiKey
from modelyard.domain.record import KEY, Index, Record, first_lines, in_notebook, sequence_field

EXACT = Context(prec=200, traps=[Inexact, InvalidOperation])
"""The context for arithmetic on money, in any thread: a result that would be rounded raises `Inexact`. Prices have at
most 30 decimal places and are below 10^15, so 200 digits hold every sum."""

_plus, _minus, _times_plus = EXACT.add, EXACT.subtract, EXACT.fma


def add(amounts: Iterable[Decimal]) -> Decimal:
    return reduce(_plus, amounts, Decimal(0))


def cost(usage: Usage, pricing: Pricing) -> Decimal:
    """Return the exact cost of a completion in USD: prices are per token, `request` per request, `image` per image."""
    pricing = pricing.of(usage.prompt_tokens)
    total = _times_plus(pricing.prompt, usage.prompt_tokens - usage.cached_tokens, pricing.request)
    total = _times_plus(pricing.completion, usage.completion_tokens, total)
    if usage.cached_tokens:
        total = _times_plus(pricing.input_cache_read, usage.cached_tokens, total)
    if usage.images:
        total = _times_plus(pricing.image, usage.images, total)
    return total


@quick_init
@attrs.frozen(weakref_slot=False)
class LedgerEntry:
    """One completion, or a part of a training job, as it was recorded, at the price in force when it was accepted.
    `trained_tokens` is 0 for a completion; a part of a training job has no other tokens. Never changed."""

    id: str
    entity: str
    project: str
    key_id: str
    model: str
    base_model: str
    checkpoint_step: int | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    images: int
    estimated: bool
    cost: Decimal
    created_at: datetime
    trained_tokens: int = 0
    seq: int = sequence_field()


@quick_init
@attrs.frozen(weakref_slot=False)
class UsageTotal:
    """The sum of a day's ledger entries with the same entity, project, key and model, updated with each entry. `day` is
    YYYY-MM-DD, in UTC. Training is not counted as a request."""

    entity: str
    day: str
    project: str
    key_id: str
    model: str
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    images: int = 0
    cost: Decimal = Decimal(0)
    trained_tokens: int = 0

    def __add__(self, other: "UsageTotal") -> "UsageTotal":
        return _total(
            self.entity,
            self.day,
            self.project,
            self.key_id,
            self.model,
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.completion_tokens + other.completion_tokens,
            self.images + other.images,
            _plus(self.cost, other.cost),
            self.trained_tokens + other.trained_tokens,
        )


def day_of(moment: datetime) -> str:
    return _day((moment if moment.tzinfo is UTC else moment.astimezone(UTC)).toordinal())


_day = lru_cache(maxsize=64)(lambda ordinal: date.fromordinal(ordinal).isoformat())
_total = maker(UsageTotal)


def total_of(entry: LedgerEntry) -> UsageTotal:
    return _total(
        entry.entity,
        day_of(entry.created_at),
        entry.project,
        entry.key_id,
        entry.model,
        0 if entry.trained_tokens else 1,
        entry.prompt_tokens,
        entry.cached_tokens,
        entry.completion_tokens,
        entry.images,
        entry.cost,
        entry.trained_tokens,
    )


@attrs.frozen
class UsageSum:
    """The sum of one group of ledger entries, in USD. A field by which they were not grouped is None; `key` is the id
    of an API key ("" for the host), `day` is YYYY-MM-DD in UTC."""

    entity: str | None = None
    project: str | None = None
    model: str | None = None
    key: str | None = None
    day: str | None = None
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    images: int = 0
    cost: Decimal = Decimal(0)
    trained_tokens: int = 0


_COUNTED = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "images", "trained_tokens")
SUM_BY = {"entity": "entity", "project": "project", "model": "model", "key": "key_id", "day": "day"}


class SummedUsage(list[UsageSum]):
    """Sums that a notebook shows as a table."""

    _repr_html_ = in_notebook

    def __repr__(self) -> str:
        return first_lines("SummedUsage", self)


def summed(totals: Iterable[UsageTotal], by: Sequence[str]) -> SummedUsage:
    groups: dict[tuple[str, ...], list[UsageTotal]] = {} if by else {(): []}
    for total in totals:
        groups.setdefault(tuple(getattr(total, SUM_BY[name]) for name in by), []).append(total)
    return SummedUsage(_sum(groups[values], dict(zip(by, values, strict=True))) for values in sorted(groups))


def _sum(totals: Sequence[UsageTotal], apart: Mapping[str, Any]) -> UsageSum:
    counts = {name: sum(getattr(total, name) for total in totals) for name in _COUNTED}
    return UsageSum(**apart, **counts, cost=add(total.cost for total in totals))


class BudgetPeriod(StrEnum):
    """How long a budget lasts before it begins again: for ever, for a day or for a calendar month, in UTC."""

    TOTAL = "total"
    DAY = "day"
    MONTH = "month"

    def since(self, day: date) -> str:
        """Return the first day of the period that a day is in, as YYYY-MM-DD; "" for a period without an end."""
        if self is BudgetPeriod.TOTAL:
            return ""
        return (day if self is BudgetPeriod.DAY else day.replace(day=1)).isoformat()


@quick_init
@attrs.frozen(weakref_slot=False)
class Budget:
    """The amount that an entity, one key or one project of it may spend in USD in each `period`. `id` is "entity",
    "entity/key id" or "entity//project".

    It counts requests that were admitted after it was set. No commit makes `spent + reserved` exceed the limit, so
    concurrent requests cannot overrun it. A request that runs while a new period begins is spent in the new one.
    `since` is the first day of the period. The observer is warned, once a period, when the share `warn_at` of the limit
    is spent.
    """

    id: str
    entity: str
    limit: Decimal
    reserved: Decimal = Decimal(0)
    spent: Decimal = Decimal(0)
    period: BudgetPeriod = BudgetPeriod.TOTAL
    since: str = ""
    warn_at: Decimal | None = None
    warned: bool = False

    @property
    def key_id(self) -> str | None:
        """The id of its key; None for a whole entity or project."""
        return None if self.project else self.id.partition("/")[2] or None

    @property
    def project(self) -> str | None:
        """The name of its project; None for a whole entity or key."""
        return self.id.partition("//")[2] or None

    @property
    def remaining(self) -> Decimal:
        """The amount that a new request may still reserve."""
        return _minus(self.limit, _plus(self.spent, self.reserved))

    @property
    def alarming(self) -> bool:
        """Whether the share is spent at which its owner wants a warning."""
        return self.warn_at is not None and self.spent >= EXACT.multiply(self.limit, self.warn_at)

    def at(self, time: float) -> "Budget":
        """Return this budget at a time in seconds since the epoch: with nothing spent yet if a new period has begun."""
        if self.period is BudgetPeriod.TOTAL:
            return self
        since = self.period.since(datetime.fromtimestamp(time, UTC).date())
        return self if since <= self.since else attrs.evolve(self, since=since, spent=Decimal(0), warned=False)

    def reserve(self, amount: Decimal) -> "Budget":
        """Return this budget with `amount` more reserved."""
        return self._with(_plus(self.reserved, amount), self.spent)

    def settle(self, reserved: Decimal, spent: Decimal) -> "Budget":
        """Return this budget with a reservation released and its real cost spent."""
        return self._with(_minus(self.reserved, reserved), _plus(self.spent, spent))

    @copies
    def _with(self, reserved: Decimal, spent: Decimal) -> "Budget":
        raise NotImplementedError


@quick_init
@attrs.frozen(weakref_slot=False)
class Admission:
    """The reservation of a running request: an amount of every budget that applies, and a slot of its key. `owner` is
    the id of the `ProcessRecord` of the process that runs it."""

    id: str
    key_id: str
    entity: str
    budgets: tuple[str, ...]
    reserved: Decimal
    created_at: datetime
    owner: str = ""

    @copies
    def held(self, budgets: tuple[str, ...], owner: str) -> "Admission":
        raise NotImplementedError


RATE_PERIOD = 60.0


@quick_init
@attrs.frozen(weakref_slot=False)
class RateLimit:
    """The use of a key's rate, by the generic cell rate algorithm (GCRA). `arrival` is the theoretical arrival time of
    its next request: when its bucket is full again. It is in seconds since the epoch, of the store's clock."""

    key_id: str
    arrival: float

    def request(self, time: float, per_minute: int) -> tuple[float, "RateLimit"]:
        """Return how many seconds after `time` a request may be made, where zero or less means now, and the use after
        it. An arrival later than that of a full bucket was stored before the store's clock went back: it counts as that
        of a bucket with one request left, or the key would wait until the clock caught up."""
        pause, full, kept = RATE_PERIOD / per_minute, time + RATE_PERIOD, self.arrival
        if kept > full + _CLOCK_ROUNDING:
            kept = full - pause
        arrival = (kept if kept > time else time) + pause
        return kept - full + pause, _limit(self.key_id, arrival if arrival < full else full)


_CLOCK_ROUNDING = 1e-5
_limit = maker(RateLimit)
ENTITY = "entity"
KEY_OF_API = "key"

RECORDS = (
    Record(
        LedgerEntry,
        "ledger",
        ("id",),
        indexes={"all": Index(()), "by_entity": Index(("entity",)), "by_time": Index(("entity",), ("created_at",))},
        sequence="seq",
        domain=(ENTITY, "entity"),
        months="id",
        gathered=True,
        totals=(UsageTotal, total_of),
    ),
    Record(
        UsageTotal,
        "usage_totals",
        ("entity", "day", "project", "key_id", "model"),
        indexes={"by_entity": Index(("entity",), ("day",)), "entities": Index((), ("entity",))},
        sums=(*_COUNTED, "cost"),
        domain=(ENTITY, "entity"),
    ),
    Record(
        Budget,
        "budgets",
        ("id",),
        indexes={"by_entity": Index(("entity",)), "all": Index(())},
        settings=("limit",),
        domain=(ENTITY, "entity"),
    ),
    Record(
        Admission,
        "admissions",
        ("id",),
        indexes={
            "by_key": Index(("key_id",), ("created_at",)),
            "by_entity": Index(("entity",), ("created_at",)),
            "all": Index(()),
        },
        domain=(ENTITY, "entity"),
    ),
    Record(RateLimit, "rate_limits", ("key_id",), domain=(KEY_OF_API, "key_id"), erased_with={ApiKey: KEY}),
)
