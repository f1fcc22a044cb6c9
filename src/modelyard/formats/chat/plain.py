"""The bounds of a chat request's numbers, and a quick reader of the requests that have little else.

Most requests are a model, messages of a role and a string, and a few numbers and flags. Reading them here costs a
fraction of structuring them, and loads neither the converter nor the classes of `modelyard.formats.chat.request`.
"""

import json
from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.domain.completion import SAMPLING_PARAMETERS, CompletionRequest, Message, Role, Sampling
from modelyard.domain.frozen import maker
from modelyard.formats.json import MAX_STRUCTURE

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

_INTEGERS = frozenset({"top_k", "seed", "min_tokens", "n", "max_tokens", "max_completion_tokens"})
_FLAGS = frozenset({"logprobs", "return_token_ids", "parallel_tool_calls", "store"})
_BARE = frozenset({"model", "messages", "stream"})
_PLAIN = (_BARE | NUMBERS.keys() | _FLAGS) - {"min_tokens"}
_scan: Any = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_request, _message = maker(CompletionRequest), maker(Message)
_PLAIN_ROLES: Mapping[Any, Role] = {role.value: role for role in Role if role is not Role.TOOL}


@attrs.define
class ParsedRequest:
    """A request, and what its answer is to show."""

    request: CompletionRequest
    with_logprobs: bool
    with_ids: bool
    with_usage: bool
    as_ids: bool = False


def read_plain_text(raw: bytes, details: bool = False) -> ParsedRequest | None:
    """Read the JSON text of a body as `read_plain` does. Returns None for any other text, and where that is not sure.

    A plain request needs none of the guards of `modelyard.formats.json`: it is not deep, its numbers have bounds of
    their own, and the quotes are those of its strings, so that no string was lost with a member that stood twice.
    """
    if len(raw) > MAX_STRUCTURE:
        return None
    try:
        text = raw.decode()
        body, end = _scan(text, 0)
    except (ValueError, StopIteration, RecursionError):
        return None
    parsed = read_plain(body, details) if end == len(text) else None
    if parsed is None:
        return None
    quotes = text.count('"')
    if "\\" in text:
        if "\\\\" in text:
            return None
        quotes -= text.count('\\"')
    # the names of the members, the model, and four strings in each message
    return parsed if quotes == 2 * (len(body) + 1 + 4 * len(body["messages"])) else None


def read_plain(body: Any, details: bool = False) -> ParsedRequest | None:
    """Read a body as `request.read_request` does, if `plain_request` can."""
    plain = plain_request(body, body.get("stream", False)) if type(body) is dict else None
    if plain is None:
        return None
    with_logprobs = plain.logprobs or (details and body.get("logprobs") is not False)
    return ParsedRequest(plain, with_logprobs, details or plain.return_token_ids, False)


def plain_request(body: Mapping[str, Any], streamed: object) -> CompletionRequest | None:
    """Read a body that has nothing but a model, plain messages, numbers and flags.

    Returns None for any other body, and for one with a fault.
    """
    bare = len(body) == (3 if "stream" in body else 2)  # with a model and messages, which are read below
    if not bare and not body.keys() <= _PLAIN:
        return None
    model = body.get("model")
    if type(model) is not str or not model or len(model) > LONGEST_MODEL_NAME:
        return None
    if not (model.isascii() or is_unicode(model)):
        return None
    messages = plain_messages(body.get("messages"))
    if not messages or type(streamed) is not bool:
        return None
    if bare:
        return _request(model, messages, streamed=streamed)
    fields = _plain_fields(body)
    return None if fields is None else _request(model, messages, streamed=streamed, **fields)


def _plain_fields(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of numbers and flags; None where one does not fit."""
    numbers, flags = {}, {}
    for name, value in body.items():
        if value is None or name in _BARE:
            continue
        if name in _FLAGS:
            if type(value) is not bool:
                return None
            flags[name] = value
        elif _fits(name, value):
            numbers[name] = value if name in _INTEGERS else float(value)
        else:
            return None
    return flags | number_fields(numbers)


def _fits(name: str, value: Any) -> bool:
    if type(value) is not int and (name in _INTEGERS or type(value) is not float):
        return False
    least, most, above = NUMBERS[name]
    return (value > least if above else value >= least) and value <= most


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
        known = _PLAIN_ROLES.get(role) if type(role) is str else None
        if len(given) != 2 or type(content) is not str or known is None:
            return None
        if not (content.isascii() or is_unicode(content)):
            return None
        messages.append(_message(known, content))
    return tuple(messages)


def _is_plain(message: Any) -> bool:
    return (
        type(message) is Message
        and type(message.role) is Role
        and message.role is not Role.TOOL
        and type(message.content) is str
        and is_unicode(message.content)
        and message.name is None
        and not message.tool_calls
        and message.tool_call_id is None
    )


def is_unicode(text: str) -> bool:
    """Return whether the string can be written: one with half of a surrogate pair cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
