"""Base models that the host keeps in local folders: what is offered, and what training starts from."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum

import attrs

from modelyard.domain.catalogue import Quantization
from modelyard.domain.record import Index, Record, frozen_mapping


class Tuning(StrEnum):
    """What training changes: low-rank adapters beside the weights, or the weights themselves."""

    LORA = "lora"
    FULL = "full"


@attrs.frozen
class BaseModel:
    """A causal language model in the folder `path`.

    Lengths are in tokens, `prices` as `Pricing.texts`. `files` holds the SHA-256 digest in hex of everything that
    serving and training read. `offer` keeps base models in one index: always "local".
    """

    id: str
    name: str
    path: str
    architecture: str
    quantization: Quantization
    context_length: int
    parameters: int
    tuning: Tuning
    created_at: datetime
    files: Mapping[str, str] = attrs.field(converter=frozen_mapping)
    prices: Mapping[str, str] = attrs.field(converter=frozen_mapping)
    offer: str = "local"


OFFER = "local"

RECORDS = (Record(BaseModel, "base_models", ("id",), indexes={"listed": Index(("offer",))}),)
