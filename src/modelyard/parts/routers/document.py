"""A model as routers read it: the provider format 2.4, with typed modalities that own their prices."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from decimal import Decimal
from itertools import pairwise
from typing import Any

from modelyard.domain.catalogue import CatalogueEntry, Feature, SamplingParameter
from modelyard.parts.routers.prices import MINUTES, PriceRule
from modelyard.parts.routers.records import CAPACITY, RouterListing

VERSION = "2.4"

Data = dict[str, Any]

PARAMETERS: Mapping[str, Data] = {
    SamplingParameter.TEMPERATURE: {"type": "range", "min": 0, "max": 2},
    SamplingParameter.TOP_P: {"type": "range", "min": 0, "max": 1},
    SamplingParameter.TOP_K: {"type": "integer", "min": 0},
    SamplingParameter.REPETITION_PENALTY: {"type": "range", "min": 0, "max": 2},
    SamplingParameter.FREQUENCY_PENALTY: {"type": "range", "min": -2, "max": 2},
    SamplingParameter.PRESENCE_PENALTY: {"type": "range", "min": -2, "max": 2},
    SamplingParameter.STOP: {"type": "array", "max_items": 4},
    SamplingParameter.SEED: {"type": "integer"},
}
FEATURES: Mapping[str, str] = {
    Feature.TOOLS: "tools",
    Feature.JSON_MODE: "response_format",
    Feature.STRUCTURED_OUTPUTS: "structured_outputs",
    Feature.REASONING: "reasoning",
}
"""The features that the format has as parameters of an output."""


def listing(entry: CatalogueEntry, said: RouterListing, today: date) -> Data:
    """Return the document of a model. One that is past its last day is not ready."""
    ended = entry.deprecation_date is not None and entry.deprecation_date < today
    document: Data = {
        "schema_version": VERSION,
        "id": entry.id,
        "hugging_face_id": entry.hub_id,
        "name": entry.name,
        "created": entry.created,
        "quantization": str(entry.quantization),
        "input_modalities": [_input(entry, said, kind) for kind in entry.input_modalities],
        "output_modalities": [_output(entry, said, kind) for kind in entry.output_modalities],
        "is_ready": said.is_ready and not ended,
    }
    if entry.pricing.request:
        document["pricing"] = [_price("request", "request", entry.pricing.request)]
    if found := _capacity(said, "root"):
        document["capacity"] = found
    if entry.datacenters:
        document["datacenters"] = [{"country_code": one.country_code} for one in entry.datacenters]
    if entry.deprecation_date is not None:
        document["deprecation_date"] = f"{entry.deprecation_date}T00:00:00Z"
    return document


def _input(entry: CatalogueEntry, said: RouterListing, kind: str) -> Data:
    shown: Data = {"type": kind}
    if kind == "text":
        shown["supported_inputs"] = {"max_context_length": {"value": entry.context_length, "unit": "token"}}
        shown |= _owned(
            [
                *prices("prompt", "token", entry.pricing.prompt, said.rules, "prompt"),
                *prices("cached_prompt", "token", entry.pricing.input_cache_read, said.rules, "input_cache_read"),
            ],
            _capacity(said, "input"),
        )
    elif kind == "image":
        shown |= _owned([*prices("prompt", "image", entry.pricing.image, said.rules, "image")], [])
    return shown


def _output(entry: CatalogueEntry, said: RouterListing, kind: str) -> Data:
    if kind != "text":
        return {"type": kind, "supported_parameters": {}}
    longest = {"type": "integer", "min": 1, "max": entry.max_output_length, "unit": "token"}
    parameters: Data = {str(name): dict(PARAMETERS[name]) for name in entry.supported_sampling_parameters}
    flags = {FEATURES[name]: {"type": "boolean"} for name in entry.supported_features if name in FEATURES}
    shown: Data = {
        "type": kind,
        "max_length": {"value": entry.max_output_length, "unit": "token"},
        "streaming": True,
        "supported_parameters": {"max_tokens": longest, **parameters, **flags},
    }
    found = [*prices("completion", "token", entry.pricing.completion, said.rules, "completion")]
    return shown | _owned(found, _capacity(said, "output"))


def _owned(pricing: Sequence[Data], capacity: Sequence[Data]) -> Data:
    return {name: found for name, found in (("pricing", pricing), ("capacity", capacity)) if found}


def _capacity(said: RouterListing, place: str) -> list[Data]:
    found = []
    for name, value in said.capacity.items():
        where, type_, unit, per = CAPACITY[name]
        if where == place:
            found.append({"type": type_, "unit": unit, **({} if per is None else {"per": per}), "value": value})
    return found


# ---- prices ----------------------------------------------------------------------------------------------------------

Steps = tuple[tuple[int, Decimal], ...]
"""Prices by how many tokens a prompt has at least, the first from 0."""


def prices(type_: str, unit: str, base: Decimal, rules: Sequence[PriceRule], kind: str) -> Iterator[Data]:
    """Yield the entries of one kind of price: for hours in which no rule of hours holds, and for each time of day that
    differs. An entry has an override for each length of prompts from which its price is another."""
    rules = [rule for rule in rules if kind in rule.prices]
    whole_day = _steps(base, [rule for rule in rules if rule.window is None], kind)
    if base or len(whole_day) > 1 or any(rule.window for rule in rules):
        yield _entry(type_, unit, whole_day)
    for start, end in _segments(rules):
        steps = _steps(base, [rule for rule in rules if rule.holds_at(start)], kind)
        if steps != whole_day:
            yield _entry(type_, unit, steps, {"utc_start": _clock(start), "utc_end": _clock(end % MINUTES)})


def _segments(rules: Sequence[PriceRule]) -> Iterable[tuple[int, int]]:
    """Return the times of a day between which no rule begins or ends, from midnight on."""
    ends = sorted({0, MINUTES, *(minute for rule in rules for minute in rule.window or ())})
    return pairwise(ends) if len(ends) > 2 else ()


def _steps(base: Decimal, rules: Sequence[PriceRule], kind: str) -> Steps:
    steps: list[tuple[int, Decimal]] = []
    for tokens in sorted({0, *(rule.from_prompt_tokens for rule in rules)}):
        held = [rule.prices[kind] for rule in rules if rule.from_prompt_tokens <= tokens]
        price = held[-1] if held else base
        if not steps or steps[-1][1] != price:
            steps.append((tokens, price))
    return tuple(steps)


def _entry(type_: str, unit: str, steps: Steps, window: Mapping[str, int] | None = None) -> Data:
    overrides = [{"when": {"prompt_tokens": {"gte": tokens}}, "cost_usd": f"{price:f}"} for tokens, price in steps[1:]]
    return _price(type_, unit, steps[0][1]) | dict(window or {}) | ({"overrides": overrides} if overrides else {})


def _price(type_: str, unit: str, price: Decimal) -> Data:
    return {"type": type_, "unit": unit, "cost_usd": f"{price:f}"}


def _clock(minute: int) -> int:
    return minute // 60 * 100 + minute % 60
