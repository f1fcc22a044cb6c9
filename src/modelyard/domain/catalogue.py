"""The model catalogue: which models are listed, and at what price (specification 2.1)."""

import json
import re
from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import attrs

from modelyard.domain.record import Index, Record, WrittenMapping, in_notebook
from modelyard.errors import InvalidInput, Problem


class Quantization(StrEnum):
    """The number format of a model's weights."""

    INT4 = "int4"
    INT8 = "int8"
    FP4 = "fp4"
    FP6 = "fp6"
    FP8 = "fp8"
    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"


class SamplingParameter(StrEnum):
    """Sampling parameters that the specification can list."""

    TEMPERATURE = "temperature"
    TOP_P = "top_p"
    TOP_K = "top_k"
    REPETITION_PENALTY = "repetition_penalty"
    FREQUENCY_PENALTY = "frequency_penalty"
    PRESENCE_PENALTY = "presence_penalty"
    STOP = "stop"
    SEED = "seed"


class Feature(StrEnum):
    """Features that the specification can list."""

    TOOLS = "tools"
    JSON_MODE = "json_mode"
    STRUCTURED_OUTPUTS = "structured_outputs"
    WEB_SEARCH = "web_search"
    REASONING = "reasoning"


E = TypeVar("E", bound=StrEnum)


def _exact(value: Decimal | str | int) -> Decimal:
    try:
        return Decimal(value) if type(value) in (str, int) else value  # type: ignore[return-value]
    except InvalidOperation:
        return value  # type: ignore[return-value]


def _is_exact(_: object, field: "attrs.Attribute[Decimal]", value: object) -> None:
    if not isinstance(value, Decimal):
        msg = f"must be an exact number, a Decimal or a string such as '0.5', not {value!r}"
        raise InvalidInput.at("pricing", field.name, msg=msg)


def _is_string(_: object, field: "attrs.Attribute[str]", value: object) -> None:
    if not isinstance(value, str):
        raise InvalidInput.at(field.name, msg=f"must be a string, not {value!r}", type="string_type")


def _is_whole(_: object, field: "attrs.Attribute[int]", value: object) -> None:
    if type(value) is not int:
        raise InvalidInput.at(field.name, msg=f"must be a whole number, not {value!r}", type="int_type")


def _are_strings(_: object, field: "attrs.Attribute[tuple[str, ...]]", values: object) -> None:
    for value in _listed(values, field.name):
        _is_string(_, field, value)  # type: ignore[arg-type]


def _listed(values: object, field: str) -> Iterable[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidInput.at(field, msg=f"must be a list or tuple, not {values!r}", type="tuple_type")
    return values


def _member(kind: type[E], value: E | str, *place: str | int) -> E:
    try:
        return kind(value)
    except ValueError:
        msg = f"must be one of {', '.join(kind)}, not {value!r}"
        raise InvalidInput.at(*place, msg=msg, type="enum") from None


def _members(kind: type[E], values: Iterable[E | str], field: str) -> tuple[E, ...]:
    return tuple(_member(kind, value, field, at) for at, value in enumerate(_listed(values, field)))


def _quantization(value: Quantization | str) -> Quantization:
    return _member(Quantization, value, "quantization")


def _parameters(values: Iterable[SamplingParameter | str]) -> tuple[SamplingParameter, ...]:
    return _members(SamplingParameter, values, "supported_sampling_parameters")


def _features(values: Iterable[Feature | str]) -> tuple[Feature, ...]:
    return _members(Feature, values, "supported_features")


def _day(value: date | str | None) -> date | None:
    if value is None or type(value) is date:
        return value
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        msg = f"must be a date such as 2027-01-31, not {value!r}"
        raise InvalidInput.at("deprecation_date", msg=msg) from None


@attrs.frozen
class Pricing:
    """Prices in USD, exact: per token for the token kinds, per image for `image`, per request for `request`.

    `training` is per token that a job trains on. The catalogue of clients does not show it.

    Takes Decimals, strings and whole numbers. Raises `InvalidInput` for a float, which would not be exact.

    >>> dict(Pricing(prompt="0.0000001").texts)
    {'prompt': '0.0000001'}
    """

    prompt: Decimal = attrs.field(default=Decimal(0), converter=_exact, validator=_is_exact)
    completion: Decimal = attrs.field(default=Decimal(0), converter=_exact, validator=_is_exact)
    image: Decimal = attrs.field(default=Decimal(0), converter=_exact, validator=_is_exact)
    request: Decimal = attrs.field(default=Decimal(0), converter=_exact, validator=_is_exact)
    input_cache_read: Decimal = attrs.field(default=Decimal(0), converter=_exact, validator=_is_exact)
    training: Decimal = attrs.field(default=Decimal(0), converter=_exact, validator=_is_exact)

    lasting: ClassVar[bool] = True

    def of(self, prompt_tokens: int) -> "Pricing":
        """Return the prices that hold for a prompt of so many tokens; a part's may depend on that."""
        return self

    def dearest(self) -> "Pricing":
        """Return prices by which no request costs less than it will be booked at."""
        most = max(self.prompt, self.input_cache_read)
        return attrs.evolve(self, prompt=most, input_cache_read=most)

    @cached_property
    def texts(self) -> Mapping[str, str]:
        prices = {field.name: getattr(self, field.name) for field in attrs.fields(Pricing)}
        texts = {name: f"{price:f}" for name, price in prices.items() if price}
        return WrittenMapping(json.dumps(texts, separators=(",", ":")))


@attrs.frozen
class Datacenter:
    """Where a model runs: an ISO 3166 alpha-2 country code."""

    country_code: str = attrs.field(validator=_is_string)


def _is_pricing(_: object, field: "attrs.Attribute[Pricing]", value: object) -> None:
    if not isinstance(value, Pricing):
        raise InvalidInput.at(field.name, msg=f"must be a Pricing, not {value!r}")


def _places(values: Iterable[Datacenter | str]) -> tuple[Datacenter, ...]:
    return tuple(one if isinstance(one, Datacenter) else Datacenter(one) for one in _listed(values, "datacenters"))


@attrs.frozen
class CatalogueEntry:
    """A model that requests can name by its `id`. `created` is in Unix seconds, lengths are in tokens. Takes the
    strings of the specification instead of enums, dates and datacenters, too. Raises `InvalidInput`, located at the
    field, for a value of another type."""

    id: str = attrs.field(validator=_is_string)
    hub_id: str = attrs.field(validator=_is_string)
    name: str = attrs.field(validator=_is_string)
    created: int = attrs.field(validator=_is_whole)
    quantization: Quantization = attrs.field(converter=_quantization)
    context_length: int = attrs.field(validator=_is_whole)
    max_output_length: int = attrs.field(validator=_is_whole)
    pricing: Pricing = attrs.field(factory=Pricing, validator=_is_pricing)
    input_modalities: tuple[str, ...] = attrs.field(default=("text",), validator=_are_strings)
    output_modalities: tuple[str, ...] = attrs.field(default=("text",), validator=_are_strings)
    supported_sampling_parameters: tuple[SamplingParameter, ...] = attrs.field(default=(), converter=_parameters)
    supported_features: tuple[Feature, ...] = attrs.field(default=(), converter=_features)
    datacenters: tuple[Datacenter, ...] = attrs.field(default=(), converter=_places)
    deprecation_date: date | None = attrs.field(default=None, converter=_day)
    _repr_html_ = in_notebook


_MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@:+-]{0,254}")
_MODALITIES = frozenset({"text", "image", "audio", "video", "file"})
EMBEDDINGS = "embeddings"
_OUTPUTS = _MODALITIES | {EMBEDDINGS}
_MAX_LENGTH = 2**53
_MAX_PRICE_DIGITS = 30
_MAX_PRICE = Decimal(10**15)
PRICE_RULE = "must be at least 0 and below 10^15, with at most 30 digits and 30 decimal places"


def check_entry(entry: CatalogueEntry) -> None:
    problems = [*_text_problems(entry), *_number_problems(entry), *_list_problems(entry)]
    if problems:
        raise InvalidInput(problems)


def _text_problems(entry: CatalogueEntry) -> list[Problem]:
    problems = []
    if not _MODEL_ID.fullmatch(entry.id):
        msg = "must be 1 to 255 characters of A-Z a-z 0-9 . _ / @ : + - and begin with one of A-Z a-z 0-9"
        problems.append(Problem(("id",), msg))
    for name in ("hub_id", "name"):
        value = getattr(entry, name)
        if not 1 <= len(value) <= 255 or not value.isprintable():
            problems.append(Problem((name,), "must be 1 to 255 printable characters"))
    for at, place in enumerate(entry.datacenters):
        if not re.fullmatch(r"[A-Z]{2}", place.country_code):
            problems.append(Problem(("datacenters", at, "country_code"), "must be an ISO 3166 alpha-2 code such as US"))
    return problems


def _number_problems(entry: CatalogueEntry) -> list[Problem]:
    problems = []
    for name, least in (("created", 0), ("context_length", 1), ("max_output_length", 1)):
        if not least <= getattr(entry, name) <= _MAX_LENGTH:
            problems.append(Problem((name,), f"must be a whole number from {least} to 2^53"))
    if entry.max_output_length > entry.context_length >= 1:
        problems.append(Problem(("max_output_length",), "must be at most context_length"))
    for field in attrs.fields(Pricing):
        price = getattr(entry.pricing, field.name)
        if not is_price(price):
            problems.append(Problem(("pricing", field.name), PRICE_RULE))
    return problems


def is_price(price: Decimal) -> bool:
    _, digits, exponent = price.as_tuple()
    if not isinstance(exponent, int):
        return False
    return 0 <= price < _MAX_PRICE and len(digits) <= _MAX_PRICE_DIGITS and exponent >= -_MAX_PRICE_DIGITS


def _list_problems(entry: CatalogueEntry) -> list[Problem]:
    problems = []
    for name, known in (("input_modalities", _MODALITIES), ("output_modalities", _OUTPUTS)):
        if unknown := sorted(set(getattr(entry, name)) - known):
            problems.append(Problem((name,), f"unknown modality {unknown[0]!r}; known are {', '.join(sorted(known))}"))
    return problems


@attrs.frozen
class RegisteredEntry:
    """A catalogue entry that the host registered, as it is stored: flat, prices exact, lists as tuples. `answers_as` is
    the backend's id of the model that answers, or the name of a trained model as a URI. `offer` is always "public" and
    indexes all entries."""

    id: str
    answers_as: str
    hub_id: str
    name: str
    created: int
    quantization: Quantization
    context_length: int
    max_output_length: int
    price_prompt: Decimal
    price_completion: Decimal
    price_image: Decimal
    price_request: Decimal
    price_input_cache_read: Decimal
    input_modalities: tuple[str, ...]
    output_modalities: tuple[str, ...]
    supported_sampling_parameters: tuple[str, ...]
    supported_features: tuple[str, ...]
    country_codes: tuple[str, ...]
    deprecation_date: str | None = None
    offer: str = "public"
    price_training: Decimal = Decimal(0)

    @classmethod
    def of(cls, entry: CatalogueEntry, answers_as: str) -> "RegisteredEntry":
        values = {field.name: getattr(entry, field.name) for field in attrs.fields(CatalogueEntry)}
        prices, places, last_day = (values.pop(name) for name in ("pricing", "datacenters", "deprecation_date"))
        for name in ("supported_sampling_parameters", "supported_features"):
            values[name] = tuple(map(str, values[name]))
        return cls(
            answers_as=answers_as,
            country_codes=tuple(place.country_code for place in places),
            deprecation_date=last_day and last_day.isoformat(),
            **{f"price_{name}": price for name, price in attrs.asdict(prices).items()},
            **values,
        )

    def entry(self) -> CatalogueEntry:
        prices = {field.name: getattr(self, f"price_{field.name}") for field in attrs.fields(Pricing)}
        values: dict[str, Any] = {f.name: getattr(self, f.name, None) for f in attrs.fields(CatalogueEntry)}
        values |= {"pricing": Pricing(**prices), "datacenters": self.country_codes}
        return CatalogueEntry(**values)


@attrs.frozen
class CatalogueRevision:
    offer: str
    number: int


_FIELDS = tuple(field.name for field in attrs.fields(RegisteredEntry))

RECORDS = (
    Record(RegisteredEntry, "catalogue_entries", ("id",), indexes={"listed": Index(("offer",))}, settings=_FIELDS),
    Record(CatalogueRevision, "catalogue_revisions", ("offer",)),
)
