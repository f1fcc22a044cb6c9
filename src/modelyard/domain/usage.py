"""What was used and what it cost: the ledger, budgets, and what a request holds while it runs. All money is Decimal."""

from datetime import datetime
from decimal import Decimal

import attrs

from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import Usage
from modelyard.domain.record import Index, Record


def cost(usage: Usage, pricing: Pricing) -> Decimal:
    """USD for one completion, exact: prices are per token, `request` per request, `image` per image."""
    return (
        (usage.prompt_tokens - usage.cached_tokens) * pricing.prompt
        + usage.cached_tokens * pricing.input_cache_read
        + usage.completion_tokens * pricing.completion
        + usage.images * pricing.image
        + pricing.request
    )


@attrs.frozen
class LedgerEntry:
    """One completion as it was booked, at the price in force when it was accepted. Never changed."""

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


@attrs.frozen
class UsageTotal:
    """The sum of a day's ledger entries that agree on everything else; kept in step with them. `day` is YYYY-MM-DD, UTC."""

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

    def plus(self, entry: LedgerEntry) -> "UsageTotal":
        """This total with one more entry."""
        return attrs.evolve(
            self,
            requests=self.requests + 1,
            prompt_tokens=self.prompt_tokens + entry.prompt_tokens,
            cached_tokens=self.cached_tokens + entry.cached_tokens,
            completion_tokens=self.completion_tokens + entry.completion_tokens,
            images=self.images + entry.images,
            cost=self.cost + entry.cost,
        )


@attrs.frozen
class Budget:
    """What an entity, or one key of it, may spend in USD. `id` is "entity" or "entity/key id".

    `spent + reserved <= limit` holds at every commit, so no race can overrun it.
    """

    id: str
    entity: str
    limit: Decimal
    reserved: Decimal = Decimal(0)
    spent: Decimal = Decimal(0)

    @property
    def remaining(self) -> Decimal:
        """What a new request may still reserve."""
        return self.limit - self.spent - self.reserved


@attrs.frozen
class Admission:
    """What a running request holds: its reservation on every budget that applies, and a slot of its key."""

    id: str
    key_id: str
    entity: str
    budgets: tuple[str, ...]
    reserved: Decimal
    created_at: datetime


@attrs.frozen
class RateWindow:
    """A key's requests: the token bucket (`tokens` left at `at`, in seconds of the platform's clock) and those running."""

    key_id: str
    tokens: float
    at: float
    running: int = 0


RECORDS = (
    Record(
        LedgerEntry,
        "ledger",
        ("id",),
        indexes={
            "by_entity": Index(("entity",), ("created_at",)),
            "by_project": Index(("entity", "project"), ("created_at",)),
        },
    ),
    Record(
        UsageTotal,
        "usage_totals",
        ("entity", "day", "project", "key_id", "model"),
        indexes={"by_entity": Index(("entity",), ("day",))},
    ),
    Record(Budget, "budgets", ("id",), indexes={"by_entity": Index(("entity",))}),
    Record(
        Admission,
        "admissions",
        ("id",),
        indexes={"by_key": Index(("key_id",), ("created_at",)), "by_entity": Index(("entity",), ("created_at",))},
    ),
    Record(RateWindow, "rate_windows", ("key_id",)),
)
