"""The catalogue as clients see it (specification 2.1), and the list of models of the chat interfaces."""

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Annotated, Literal, Self

import attrs

from modelyard.domain.catalogue import CatalogueEntry, Feature, Pricing, Quantization, SamplingParameter
from modelyard.domain.models import Model
from modelyard.formats.constraints import Matching
from modelyard.http.message import answering, each

OWNER = "modelyard"
DecimalText = Annotated[str, Matching(r"\d+(\.\d+)?", "must be a decimal number without exponent")]
CountryCode = Annotated[str, Matching("[A-Z]{2}", "must be an ISO 3166 alpha-2 code")]
OptionalDate = Annotated[str | None, Matching(r"\d{4}-\d{2}-\d{2}", "must be a date in the form YYYY-MM-DD")]


@attrs.frozen
class PricingObject:
    """USD per token, per request and per image, as decimal strings."""

    prompt: DecimalText
    completion: DecimalText
    image: DecimalText
    request: DecimalText
    input_cache_read: DecimalText


@attrs.frozen
class DatacenterObject:
    """Where a model runs."""

    country_code: CountryCode


@attrs.frozen
class ModelEntry:
    """A listed model. `deprecation_date` is left out when none is set."""

    id: str
    hub_id: str
    name: str
    created: int
    input_modalities: tuple[str, ...]
    output_modalities: tuple[str, ...]
    quantization: Quantization
    context_length: int
    max_output_length: int
    pricing: PricingObject
    supported_sampling_parameters: tuple[SamplingParameter, ...]
    supported_features: tuple[Feature, ...]
    datacenters: tuple[DatacenterObject, ...]
    deprecation_date: OptionalDate = None


def _price(name: str) -> Callable[[Pricing], str]:
    return lambda prices: decimal(getattr(prices, name))


_show_pricing = answering(PricingObject, **{field.name: _price(field.name) for field in attrs.fields(PricingObject)})
_show_entry = answering(
    ModelEntry,
    pricing=lambda entry: _show_pricing(entry.pricing),
    datacenters=each(answering(DatacenterObject), "datacenters"),
    deprecation_date=lambda entry: entry.deprecation_date and entry.deprecation_date.isoformat(),
)


@attrs.frozen
class CatalogueBody:
    """Every listed model."""

    data: tuple[ModelEntry, ...]

    @classmethod
    def of(cls, entries: Iterable[CatalogueEntry]) -> Self:
        return cls(tuple(map(_show_entry, entries)))


@attrs.frozen
class ListedModel:
    """A model in the shape of the chat format's own list."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str

    @classmethod
    def of(cls, entry: CatalogueEntry) -> Self:
        return cls(entry.id, "model", entry.created, OWNER)

    @classmethod
    def of_trained(cls, model: Model) -> Self:
        name = f"{model.entity}/{model.project}/{model.name}"
        return cls(name, "model", int(model.created_at.timestamp()), model.entity)


@attrs.frozen
class ModelList:
    """The models that the caller may use."""

    object: Literal["list"]
    data: tuple[ListedModel, ...]


def decimal(amount: Decimal) -> str:
    text = format(amount.copy_abs(), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
