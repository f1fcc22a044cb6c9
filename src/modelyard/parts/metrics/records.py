"""The slowest answers, which every process adds to: so many of each entity and day."""

from datetime import datetime, timedelta

import attrs

from modelyard.domain.record import Index, Record

KEPT_A_DAY = 20
"""How many are kept of an entity and a day in UTC."""
KEPT_FOR = timedelta(days=31)


@attrs.frozen
class SlowAnswer:
    """A whole answer that was among the slowest of its entity and day: `seconds` from its request to its end. `id` is
    that of its row of the ledger, and `key_id` that of the API key, "" for the host."""

    id: str
    entity: str
    project: str
    key_id: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    ended_at: datetime
    day: str


RECORDS = (
    Record(
        SlowAnswer,
        "slow_answers",
        ("id",),
        indexes={
            "by_time": Index((), ("ended_at",)),
            "by_entity": Index(("entity",), ("ended_at",)),
            "by_day": Index(("day",), ("seconds",)),
            "by_entity_day": Index(("entity", "day"), ("seconds",)),
        },
    ),
)
