"""What the tabular models offer to the catalogue, apart from the model: a listing need not load it."""

from collections.abc import Sequence
from decimal import Decimal

import attrs

from modelyard.backends.listing import entry_for
from modelyard.domain.catalogue import CatalogueEntry, Pricing
from modelyard.domain.completion import SAMPLING_PARAMETERS
from modelyard.domain.tabular_base import BASE_MODELS
from modelyard.protocols import Capabilities

CAPABILITIES = Capabilities(
    parameters=frozenset(SAMPLING_PARAMETERS),
    logprobs=True,
    top_logprobs=20,
    token_ids=True,
    tools=True,
    trainable=True,
)
PRICING = Pricing(prompt=Decimal("0.0000001"), completion=Decimal("0.0000002"))
CONTEXT_LENGTH = 16_384
MAX_OUTPUT_LENGTH = 4_096


def tabular_entries(base_models: Sequence[str] = BASE_MODELS, pricing: Pricing = PRICING) -> tuple[CatalogueEntry, ...]:
    """One entry per base model."""
    return tuple(
        attrs.evolve(entry_for(model, CAPABILITIES, pricing, CONTEXT_LENGTH), max_output_length=MAX_OUTPUT_LENGTH)
        for model in base_models
    )
