"""The bounds of a chat request's numbers, and a quick reader of the requests that have little else.

Most requests are a model, messages of a role and a string, and a few numbers. Reading them here costs a fraction of
structuring them, and loads neither the converter nor the classes of `modelyard.formats.chat.request`.
"""

from collections.abc import Mapping
from typing import Any

from modelyard.domain.completion import SAMPLING_PARAMETERS, CompletionRequest, Message, Role, Sampling
from modelyard.formats.constraints import Length, Within

MODEL_NAME = Length(1, 1024)
_TOKENS = Within(1, 2**31)

NUMBERS: Mapping[str, Within] = {
    "temperature": Within(0, 2),
    "top_p": Within(0, 1, above=True),
    "top_k": Within(-1, 2**31),
    "min_p": Within(0, 1),
    "frequency_penalty": Within(-2, 2),
    "presence_penalty": Within(-2, 2),
    "repetition_penalty": Within(0, 100, above=True),
    "seed": Within(-(2**63), 2**63 - 1),
    "n": Within(1, 128),
    "max_tokens": _TOKENS,
    "max_completion_tokens": _TOKENS,
}
"""The bounds of the parameters that are numbers and depend on no other."""

_INTEGERS = frozenset({"top_k", "seed", "n", "max_tokens", "max_completion_tokens"})
_PLAIN = frozenset({"model", "messages", "stream", *NUMBERS})
_PLAIN_ROLES: Mapping[Any, Role] = {role.value: role for role in Role if role is not Role.TOOL}


def plain_request(body: Any) -> CompletionRequest | None:
    """Read a body that has nothing but a model, plain messages, numbers, and perhaps `stream`.

    Returns None for any other body, and for one with a fault.
    """
    if type(body) is not dict or not body.keys() <= _PLAIN:
        return None
    model, streamed = body.get("model"), body.get("stream", False)
    if type(model) is not str or type(streamed) is not bool or not _is_unicode(model):
        return None
    messages = plain_messages(body.get("messages"))
    if not messages:
        return None
    try:
        MODEL_NAME(None, None, model)
        numbers = _plain_numbers(body)
    except ValueError:
        return None
    return CompletionRequest(model, messages, streamed=streamed, **(number_fields(numbers) if numbers else {}))


def _plain_numbers(body: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the numbers of a body. Raises ValueError for one that does not fit."""
    numbers = {}
    for name, value in body.items():
        if name not in NUMBERS or value is None:
            continue
        if type(value) is not int and (name in _INTEGERS or type(value) is not float):
            raise ValueError
        NUMBERS[name](None, None, value)
        numbers[name] = value if name in _INTEGERS else float(value)
    return numbers


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


def plain_messages(raw: Any) -> tuple[Message, ...] | None:
    """Read a list of messages that have nothing but a role and a string. Returns None for any other list.

    A `Message` that has nothing else either is taken as it is.
    """
    if type(raw) is not list:
        return None
    messages = []
    for given in raw:
        if type(given) is not dict:
            if not _is_plain(given):
                return None
            messages.append(given)
            continue
        content, role = given.get("content"), given.get("role")
        if len(given) != 2 or type(content) is not str or type(role) is not str or role not in _PLAIN_ROLES:
            return None
        if not _is_unicode(content):
            return None
        messages.append(Message(_PLAIN_ROLES[role], content))
    return tuple(messages)


def _is_plain(message: Any) -> bool:
    return (
        type(message) is Message
        and type(message.role) is Role
        and message.role is not Role.TOOL
        and type(message.content) is str
        and _is_unicode(message.content)
        and message.name is None
        and not message.tool_calls
        and message.tool_call_id is None
    )


def _is_unicode(text: str) -> bool:
    """Return whether the string can be written: one with half of a surrogate pair cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
