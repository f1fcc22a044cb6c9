"""The key of a request: JSON data that a cassette stores and compares, and that a person can read. Sampling parameters
are on the same level as the others, and default values are left out. So are fields that cannot change an answer
(`user`, `metadata`, `store`), and those that the platform filled in: a seed that it drew, and a token limit that is all
that the model has room for."""

from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import SAMPLING_PARAMETERS, CompletionRequest
from modelyard.formats.converter import structure_exactly, unstructure

RequestKey = Mapping[str, Any]

WITHOUT_EFFECT = ("user", "metadata", "store")
FIELDS = frozenset(
    {*SAMPLING_PARAMETERS, *(field.name for field in attrs.fields(CompletionRequest))} - {"sampling", *WITHOUT_EFFECT}
)

_DRAWN_SEED = 2**32
"""A seed of this magnitude or more counts as drawn by the platform: of its 64-bit seeds one in 2^31 lies below."""


def request_key(request: CompletionRequest, entry: CatalogueEntry, prompt_tokens: int | None) -> dict[str, Any]:
    key: dict[str, Any] = unstructure(request)
    key |= key.pop("sampling", {})
    for name in WITHOUT_EFFECT:
        key.pop(name, None)
    if request.max_tokens == min(entry.max_output_length, entry.context_length - (prompt_tokens or 0)):
        key.pop("max_tokens", None)
    if abs(request.sampling.seed or 0) >= _DRAWN_SEED:
        key.pop("seed", None)
    return key


def prompt_part(key: RequestKey) -> dict[str, Any]:
    """Return the part of a key that is known before the platform fills anything in, when the prompt is counted."""
    return {name: value for name, value in key.items() if name not in ("max_tokens", "seed", "n")}


def request_of(key: RequestKey) -> CompletionRequest:
    sampling = {name: key[name] for name in SAMPLING_PARAMETERS if name in key}
    others = {name: value for name, value in key.items() if name not in SAMPLING_PARAMETERS}
    return structure_exactly(CompletionRequest, others | {"sampling": sampling})
