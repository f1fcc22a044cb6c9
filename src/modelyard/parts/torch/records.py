"""Base models that the host keeps in local folders, to serve and to train."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

import attrs

from modelyard.domain.catalogue import CatalogueEntry, Feature, Pricing, Quantization, SamplingParameter
from modelyard.domain.record import Index, Record, frozen_mapping
from modelyard.errors import InvalidInput

SMALL = 10_000_000
"""The number of parameters up to which a second thread only waits for the first."""


class Tuning(StrEnum):
    """The weights that training changes: low-rank adapters next to the weights, or the weights themselves."""

    LORA = "lora"
    FULL = "full"


class WeightFormat(StrEnum):
    """The format in which the weights of a base model are in memory; what is computed has 32 bits on a processor."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"


_STORED: Mapping[WeightFormat, Quantization] = {
    WeightFormat.FLOAT32: Quantization.FP32,
    WeightFormat.BFLOAT16: Quantization.BF16,
    WeightFormat.INT8: Quantization.INT8,
}


def weight_format(name: str | None, tuning: Tuning | None = None) -> WeightFormat | None:
    """Return the format of this name; None is the usual one of the device.

    Raises `InvalidInput` for others, and for one that cannot be trained in this way.
    """
    if name is None:
        return None
    if name not in [*WeightFormat]:
        known = ", ".join(WeightFormat)
        if name == "int4":
            why = "int4 is not possible: torch and torchao have no 4-bit weights with gradients on processors; use int8"
            raise InvalidInput.at("weights", msg=why)
        raise InvalidInput.at("weights", msg=f"{name!r} is unknown; give one of {known}")
    if tuning is Tuning.FULL and name != WeightFormat.FLOAT32:
        raise InvalidInput.at(
            "weights", msg=f"{name} cannot be trained in full, which needs float32; train an adapter, or leave it out"
        )
    return WeightFormat(name)


LICENSE = "license"
"""The member of a base model's `source` with the id of its licence, such as "apache-2.0"."""


@attrs.frozen
class BaseModel:
    """A causal language model or a sentence encoder in the folder `path`.

    Lengths are in tokens, `prices` as in `Pricing.texts`. `tool_format` names the format in which it writes tool calls,
    "" for none (`parts.torch.tool_calls`). `digests` holds the SHA-256 digest in hex of every file that serving and
    training read. `offer` is always "local" and indexes all base models. `source` says where it is from: `hub_id`,
    `revision` (a commit), `endpoint` and `license` (if it names one) of a hub; `file`, `sha256` and `lost` of a GGUF
    file; {} of a plain folder.
    `weights` is the format in memory, None for the usual one: float32 on processors, bfloat16 on graphics cards.
    """

    id: str
    name: str
    path: str
    architecture: str
    quantization: Quantization
    context_length: int
    parameters: int
    tuning: Tuning
    tool_format: str
    created_at: datetime
    digests: Mapping[str, str] = attrs.field(converter=frozen_mapping)
    prices: Mapping[str, str] = attrs.field(converter=frozen_mapping)
    offer: str = "local"
    source: Mapping[str, str] = attrs.field(converter=frozen_mapping, factory=dict)
    weights: WeightFormat | None = None

    def is_as(self, other: "BaseModel") -> bool:
        """Return whether both are the same, whenever they were added: without a connection no licence is known."""
        mine, others = ({**one.source, LICENSE: ""} for one in (self, other))
        return attrs.evolve(self, created_at=other.created_at, source=mine) == attrs.evolve(other, source=others)

    @property
    def small(self) -> bool:
        """Whether it is faster on one thread than on several that wait for each other."""
        return self.parameters <= SMALL

    @property
    def encodes(self) -> bool:
        """Whether it is a sentence encoder, which makes embeddings and nothing else."""
        return not self.architecture.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))

    def stored_as(self, weights: WeightFormat | None) -> "BaseModel":
        """Return the same base model with weights in this format. Raises `InvalidInput`."""
        if weights is None:
            return self
        if self.encodes:
            raise InvalidInput.at("weights", msg="is not possible for a sentence encoder; leave it out")
        return attrs.evolve(self, weights=weights, quantization=_STORED[weights])

    def entry(
        self, parameters: tuple[SamplingParameter, ...], features: tuple[Feature, ...], outputs: tuple[str, ...]
    ) -> CatalogueEntry:
        """Make its catalogue entry, for a backend that supports these parameters, features and output modalities.

        Tokens of a prompt that are known cost as much as others, unless they have a price.
        """
        known = {"input_cache_read": self.prices["prompt"]} if "prompt" in self.prices else {}
        return CatalogueEntry(
            id=self.id,
            hub_id=self.source.get("hub_id", self.id),
            name=self.name,
            created=int(self.created_at.timestamp()),
            quantization=self.quantization,
            context_length=self.context_length,
            max_output_length=self.context_length,
            pricing=Pricing(**{kind: Decimal(price) for kind, price in {**known, **self.prices}.items()}),
            supported_sampling_parameters=parameters,
            supported_features=features,
            output_modalities=outputs,
        )


OFFER = "local"

RECORDS = (Record(BaseModel, "base_models", ("id",), indexes={"listed": Index(("offer",))}),)
