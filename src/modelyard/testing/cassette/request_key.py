"""What a request asks, as JSON data that a person can read: what a cassette keeps of it and compares.

Sampling parameters stand beside the others under their own names, as clients send them, and what has its default is
left out. What cannot change an answer (`user`, `metadata`, `store`) is left out too, and so is what the platform filled
in: a seed that it drew, and a token limit that takes all the room that the model has.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import SAMPLING_PARAMETERS, CompletionRequest
from modelyard.formats.converter import structure_exactly, unstructure

Asked = Mapping[str, Any]

WITHOUT_EFFECT = ("user", "metadata", "store")
FIELDS = frozenset(
    {*SAMPLING_PARAMETERS, *(field.name for field in attrs.fields(CompletionRequest))} - {"sampling", *WITHOUT_EFFECT}
)
"""The names under which a request's parts are kept and compared."""

_DRAWN_SEED = 2**32
"""From this magnitude on a seed counts as drawn by the platform, whose seeds have 64 bits: one in 2^31 lies below."""


def asked_by(request: CompletionRequest, entry: CatalogueEntry, prompt_tokens: int | None) -> dict[str, Any]:
    """The JSON data of a request, given what it was resolved to and how many tokens its prompt has."""
    asked: dict[str, Any] = unstructure(request)
    asked |= asked.pop("sampling", {})
    for name in WITHOUT_EFFECT:
        asked.pop(name, None)
    if request.max_tokens == min(entry.max_output_length, entry.context_length - (prompt_tokens or 0)):
        asked.pop("max_tokens", None)
    if abs(request.sampling.seed or 0) >= _DRAWN_SEED:
        asked.pop("seed", None)
    return asked


def about_the_prompt(asked: Asked) -> dict[str, Any]:
    """The part that is the same for whoever counts the prompt, before the platform has filled anything in."""
    return {name: value for name, value in asked.items() if name not in ("max_tokens", "seed", "n")}


def request_of(asked: Asked) -> CompletionRequest:
    """The request again. Raises `InvalidInput` for what `asked_by` does not give."""
    sampling = {name: asked[name] for name in SAMPLING_PARAMETERS if name in asked}
    others = {name: value for name, value in asked.items() if name not in SAMPLING_PARAMETERS}
    return structure_exactly(CompletionRequest, others | {"sampling": sampling})
