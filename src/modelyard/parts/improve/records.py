"""What is kept of an optimisation of a prompt: what was paid for or judged, so that it is done once, and proposals."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

import attrs

from modelyard.domain.record import KEPT, Index, Record, brief, frozen_mapping
from modelyard.parts.variants.records import Variant


@attrs.frozen
class KeptCall:
    """What one call of an optimisation gave, under the digest of what was asked. `kind` says of what it is: the answer
    to a row, what a judge said, a reflection, or all of a row, with its score. `cost` is what the ledger has of it, in
    USD, as text."""

    optimisation: str
    digest: str
    kind: str
    entity: str
    project: str
    variant_id: str
    cost: str
    found: Mapping[str, Any] = attrs.field(converter=frozen_mapping, repr=False)
    created_at: datetime

    @property
    def paid(self) -> Decimal:
        """The cost as a number."""
        return Decimal(self.cost)


@attrs.frozen
class PromptProposal:
    """A system text that was proposed. `number` counts the proposals; 0 is the text that the optimisation began with.
    `parent` is the number of the proposal that it was made from. `before` and `after` are the sums of the scores of the
    parent and of it on the same few tasks; only if it is above, it gets a `score`, its mean on all held-out tasks.
    `calls` counts the scored rows until then, and `spent` is in USD, as text."""

    optimisation: str
    number: int
    entity: str
    project: str
    variant_id: str
    text: str = attrs.field(repr=False)
    parent: int | None
    before: float | None
    after: float | None
    score: float | None
    calls: int
    spent: str
    created_at: datetime
    __repr__ = brief


_INDEXES = {"by_variant": Index(("variant_id",)), "by_entity": Index(("entity",))}

RECORDS = (
    Record(
        KeptCall,
        "kept_calls",
        ("optimisation", "digest"),
        indexes={
            **_INDEXES,
            "by_optimisation": Index(("optimisation",), ("digest",)),
            "by_age": Index((), ("created_at",)),
        },
        domain=("entity", "entity"),
        erased_with={Variant: "by_variant"},
        texts="created_at",
    ),
    Record(
        PromptProposal,
        "prompt_proposals",
        ("optimisation", "number"),
        indexes={**_INDEXES, "by_optimisation": Index(("optimisation",), ("number",))},
        domain=("entity", "entity"),
        erased_with={Variant: "by_variant"},
        texts=KEPT,
    ),
)
