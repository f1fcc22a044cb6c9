"""Parts of an answer of another server in the chat-completion format: its usage, token ids and log-probabilities."""

from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.domain.completion import TokenLogprob, Usage, token_bytes, trimmed
from modelyard.formats.fields import each, mapping, natural, number, optional, refused, required, text

TOKEN_DETAILS = ("prompt_tokens_details", "completion_tokens_details")
"""The members of a usage that break its tokens down."""


def read_usage(value: Any) -> Usage:
    """Read the tokens that a server has counted."""
    data = mapping(value)
    of_prompt, of_answer = (optional(mapping, data, name, {}) for name in TOKEN_DETAILS)
    prompt, produced = optional(natural, data, "prompt_tokens", 0), optional(natural, data, "completion_tokens", 0)
    cached = min(optional(natural, of_prompt, "cached_tokens", 0), prompt)
    reasoning = min(optional(natural, of_answer, "reasoning_tokens", 0), produced)
    return Usage(prompt, produced, cached, reasoning_tokens=reasoning)


def read_token_ids(choice: Mapping[str, Any]) -> tuple[int, ...]:
    """Read the ids where vLLM puts them, or where LiteLLM puts those of a vLLM."""
    ids = optional(read_ids, choice, "token_ids", ())
    return ids or optional(read_ids, optional(mapping, choice, "provider_specific_fields", {}), "token_ids", ())


def read_ids(value: Any) -> tuple[int, ...]:
    """Read a list of token ids."""
    return each(natural, value)


def read_logprobs(value: Any) -> tuple[TokenLogprob, ...]:
    """Read the log-probabilities of a choice."""
    return optional(lambda entries: each(_sampled, entries), mapping(value), "content", ())


def _sampled(value: Any) -> TokenLogprob:
    """Read a token and its alternatives, the likeliest first: vLLM puts the sampled token before the others."""
    top = optional(lambda others: each(_entry, others), mapping(value), "top_logprobs", ())
    ordered = sorted(top, key=lambda other: -other.logprob)
    return attrs.evolve(_entry(value), top=tuple(ordered)) if top else _entry(value)


def _entry(value: Any) -> TokenLogprob:
    data = mapping(value)
    logprob = min(0.0, required(number, data, "logprob"))
    return TokenLogprob(required(text, data, "token"), logprob, optional(_byte_values, data, "bytes", None))


def _byte_values(value: Any) -> tuple[int, ...]:
    values = each(natural, value)
    if any(byte > 255 for byte in values):
        raise refused("must be bytes", "value_error")
    return values


def fitting(entries: tuple[TokenLogprob, ...], content: str) -> tuple[TokenLogprob, ...]:
    """Return the entries without the text of an end-of-turn token or of a stop string, which is not content."""
    written, size = b"".join(map(token_bytes, entries)), content.encode("utf-8", "surrogatepass")
    return tuple(trimmed(entries, len(size))) if written.startswith(size) else entries


REASONING_NAMES = ("reasoning_content", "reasoning")


def reasoning_of(message: Mapping[str, Any]) -> str:
    """Return reasoning under the name that the server has for it."""
    for name in REASONING_NAMES:
        given = message.get(name)
        if given and isinstance(given, str):
            return given
    return ""
