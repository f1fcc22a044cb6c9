"""Read plain requests: without it, `request` reads them, and a completion over HTTP takes 43 % more instructions.

Most requests are a model, messages of a role and a string, and a few numbers and flags. Reading them here costs a
fraction of structuring them, and loads neither the converter nor the classes of `modelyard.formats.chat.request`.
"""

import json
from collections.abc import Mapping
from typing import Any

from modelyard.domain.completion import CompletionRequest, Message, Role
from modelyard.domain.frozen_fast import maker
from modelyard.formats.chat.bounds import LONGEST_MODEL_NAME, NUMBERS, ParsedRequest, is_unicode, number_fields
from modelyard.formats.json import MAX_STRUCTURE

_INTEGERS = frozenset({"top_k", "seed", "min_tokens", "n", "max_tokens", "max_completion_tokens"})
_FLAGS = frozenset({"logprobs", "return_token_ids", "parallel_tool_calls", "store"})
_BARE = frozenset({"model", "messages", "stream"})
_PLAIN = (_BARE | NUMBERS.keys() | _FLAGS) - {"min_tokens"}
_scan: Any = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_request, _message = maker(CompletionRequest), maker(Message)
_PLAIN_ROLES: Mapping[Any, Role] = {role.value: role for role in Role if role is not Role.TOOL}


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
