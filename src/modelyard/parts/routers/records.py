"""What the host has said of a model for routers."""

from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.domain.record import EMPTY, Index, Record, frozen_mapping
from modelyard.parts.routers.prices import PriceRule

PUBLIC = "public"


@attrs.frozen
class RouterListing:
    """What routers are told of a model of the catalogue besides its entry: the rules of its prices, whether it takes
    requests, and how much it takes, by the names of `CAPACITY`. `offer` indexes all."""

    id: str
    body: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    is_ready: bool = True
    capacity: Mapping[str, int] = attrs.field(converter=frozen_mapping, default=EMPTY)
    offer: str = PUBLIC

    @property
    def rules(self) -> tuple[PriceRule, ...]:
        """The rules of its prices, of which later ones win."""
        return tuple(PriceRule(**one) for one in self.body.get("rules", ()))


CAPACITY: Mapping[str, tuple[str, str, str, str | None]] = {
    "prompt_tokens_per_minute": ("input", "prompt", "token", "minute"),
    "completion_tokens_per_minute": ("output", "completion", "token", "minute"),
    "requests_per_minute": ("root", "request", "request", "minute"),
    "concurrent_requests": ("root", "concurrency", "request", None),
}
"""What may be said of capacity: where the format puts it, its type, its unit and the window."""

RECORDS = (
    Record(
        RouterListing,
        "router_listings",
        ("id",),
        indexes={"listed": Index(("offer",))},
        settings=tuple(field.name for field in attrs.fields(RouterListing)),
    ),
)
