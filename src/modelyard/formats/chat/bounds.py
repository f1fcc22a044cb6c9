"""The bounds of what a chat request has, and a request as it was read."""

from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.domain.completion import SAMPLING_PARAMETERS, CompletionRequest, Sampling

LONGEST_MODEL_NAME = 1024
MAX_TOKENS = 2**31

NUMBERS: Mapping[str, tuple[float, float, bool]] = {
    "temperature": (0, 2, False),
    "top_p": (0, 1, True),
    "top_k": (-1, 2**31, False),
    "min_p": (0, 1, False),
    "frequency_penalty": (-2, 2, False),
    "presence_penalty": (-2, 2, False),
    "repetition_penalty": (0, 100, True),
    "seed": (-(2**63), 2**63 - 1, False),
    "min_tokens": (0, MAX_TOKENS, False),
    "n": (1, 128, False),
    "max_tokens": (1, MAX_TOKENS, False),
    "max_completion_tokens": (1, MAX_TOKENS, False),
}
"""The parameters that are numbers: the least and the most that each may be, and whether it must be above the least."""


@attrs.define
class ParsedRequest:
    """A request, and what its answer is to show."""

    request: CompletionRequest
    with_logprobs: bool
    with_ids: bool
    with_usage: bool
    as_ids: bool = False


def number_fields(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `CompletionRequest` that its numbers, and its `logit_bias`, make."""
    fields: dict[str, Any] = {}
    sampling = {name: value for name, value in numbers.items() if name in SAMPLING_PARAMETERS}
    if sampling.get("top_k") in (0, -1):
        del sampling["top_k"]
    if sampling:
        fields["sampling"] = Sampling(**sampling)
    if "n" in numbers:
        fields["n"] = numbers["n"]
    limit = numbers.get("max_completion_tokens", numbers.get("max_tokens"))
    if limit is not None:
        fields["max_tokens"] = limit
    return fields


def is_unicode(text: str) -> bool:
    """Return whether the string can be written: one with half of a surrogate pair cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
