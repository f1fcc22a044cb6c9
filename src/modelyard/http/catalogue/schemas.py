"""The catalogue as the clients see it (specification 2.1), and the list of models of the chat interfaces."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Literal

import attrs

from modelyard.domain.catalogue import CatalogueEntry, Feature, Quantization, SamplingParameter
from modelyard.domain.catalogue import Pricing as Prices
from modelyard.formats.constraints import Matching

_DECIMAL = Matching(r"\d+(\.\d+)?", "must be a decimal number without exponent")


@attrs.frozen
class Pricing:
    """USD per token, per request and per image, as decimal strings."""

    prompt: str = attrs.field(validator=_DECIMAL)
    completion: str = attrs.field(validator=_DECIMAL)
    image: str = attrs.field(validator=_DECIMAL)
    request: str = attrs.field(validator=_DECIMAL)
    input_cache_read: str = attrs.field(validator=_DECIMAL)


@attrs.frozen
class Datacenter:
    """Where a model runs."""

    country_code: str = attrs.field(validator=Matching("[A-Z]{2}", "must be an ISO 3166 alpha-2 code"))


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
    pricing: Pricing
    supported_sampling_parameters: tuple[SamplingParameter, ...]
    supported_features: tuple[Feature, ...]
    datacenters: tuple[Datacenter, ...]
    deprecation_date: str | None = attrs.field(
        default=None, validator=Matching(r"\d{4}-\d{2}-\d{2}", "must be a date in the form YYYY-MM-DD")
    )


@attrs.frozen
class CatalogueBody:
    """Every listed model."""

    data: tuple[ModelEntry, ...]


@attrs.frozen
class ListedModel:
    """A model in the shape of the chat format's own list."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


@attrs.frozen
class ModelList:
    """The models that the caller may use."""

    object: Literal["list"]
    data: tuple[ListedModel, ...]


def catalogue_body(entries: Iterable[CatalogueEntry]) -> Mapping[str, Any]:
    """The catalogue response."""
    return {"data": [_entry(entry) for entry in entries]}


def _entry(entry: CatalogueEntry) -> Mapping[str, Any]:
    shown = {
        "id": entry.id,
        "hub_id": entry.hub_id,
        "name": entry.name,
        "created": entry.created,
        "input_modalities": list(entry.input_modalities),
        "output_modalities": list(entry.output_modalities),
        "quantization": entry.quantization.value,
        "context_length": entry.context_length,
        "max_output_length": entry.max_output_length,
        "pricing": {field.name: decimal(getattr(entry.pricing, field.name)) for field in attrs.fields(Prices)},
        "supported_sampling_parameters": [parameter.value for parameter in entry.supported_sampling_parameters],
        "supported_features": [feature.value for feature in entry.supported_features],
        "datacenters": [{"country_code": place.country_code} for place in entry.datacenters],
    }
    if entry.deprecation_date is not None:
        shown["deprecation_date"] = entry.deprecation_date.isoformat()
    return shown


def decimal(amount: Decimal) -> str:
    """A price as a plain decimal string: no exponent, no sign, no needless zero; the exact amount."""
    text = format(amount.copy_abs(), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def listed_model(id: str, created: int, owned_by: str) -> Mapping[str, Any]:
    """A model in the chat format's own shape."""
    return {"id": id, "object": "model", "created": created, "owned_by": owned_by}


def model_list(models: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The chat format's own list."""
    return {"object": "list", "data": list(models)}
