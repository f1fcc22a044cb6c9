"""Read plain requests: without it, `request` reads them, and a completion over HTTP takes 43 % more instructions.

Most requests are a model, messages, and a few numbers, flags and strings; agents add tools or a schema, the same ones
each time. Reading them here costs a fraction of structuring them, and loads neither the converter nor the classes of
`modelyard.formats.chat.request`.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from modelyard.domain.completion import CompletionRequest, ContentPart, Message, Role, ToolCall, ToolChoice, ToolMode
from modelyard.domain.frozen_fast import maker
from modelyard.errors import InvalidInput
from modelyard.formats.chat.bounds import LONGEST_MODEL_NAME, NUMBERS, ParsedRequest, is_unicode, number_fields
from modelyard.formats.json import MAX_DEPTH, MAX_STRUCTURE

_INTEGERS = frozenset({"top_k", "seed", "n", "max_tokens", "max_completion_tokens"})
_NUMBERS = NUMBERS.keys() - {"min_tokens"}
_BARE = frozenset({"model", "messages", "stream", "stream_options"})
_CHOICES = {"auto": ToolChoice(), "none": ToolChoice(ToolMode.NONE)}
_TOKEN_ID = re.compile("[0-9]{1,9}")
_HELD = object()
_scan: Any = json.JSONDecoder(parse_constant=lambda _: _HELD).scan_once  # type: ignore[attr-defined]
_request, _message = maker(CompletionRequest), maker(Message)
_ROLES: Mapping[Any, Role] = {role.value: role for role in Role}
_PLAIN_ROLES: Mapping[Any, Role] = {role.value: role for role in Role if role is not Role.TOOL}


class Held:
    """A member of a request that was read from its own text, under guard."""

    __slots__ = ("name", "text", "value")

    def __init__(self, name: str, text: str, value: object) -> None:
        self.name: str = name
        self.text: str = text
        self.value: Any = value


Hold = Callable[[str, str, int], Held]
"""Returns the member of this name whose value begins at this place of a text. Raises as parsers do."""

LONG = 2_000
"""The characters of a body from which on its messages are held, too."""

_MESSAGES, _TOOLS, _FORM = '"messages":', '"tools":', '"response_format":'


def read_plain_text(raw: bytes, details: bool = False, hold: Hold | None = None) -> ParsedRequest | None:
    """Read the JSON text of a body as `read_plain` does. Returns None for any other text, and where that is not sure.

    A plain request needs none of the guards of `modelyard.formats.json`: it is not deep, its numbers have bounds of
    their own, and the quotes are those of its strings, so that no string was lost with a member that stood twice. What
    `hold` reads is taken out before; it is at its place if there is nothing of it anywhere else.
    """
    if len(raw) > MAX_STRUCTURE:
        return None
    held: dict[str, Held] | None = None
    try:
        text = raw.decode()
        if (len(text) > LONG or _TOOLS in text or _FORM in text) and hold is not None:
            held = {}
            text = _without_held(text, hold, held)
        body, end = _scan(text, 0)
    except (ValueError, StopIteration, IndexError, RecursionError, InvalidInput):
        return None
    if end != len(text) or type(body) is not dict:
        return None
    if held is not None:
        for name in held:
            if body.get(name) is not _HELD:
                return None
            body[name] = held[name]
    parsed = read_plain(body, details)
    if parsed is None:
        return None
    messages = body["messages"]
    least = len(body) + 1 + (4 * len(messages) if type(messages) is list else 0)
    return parsed if has_all(text, body, least) else None


def has_all(text: str, value: Any, least: int, levels: int = MAX_DEPTH) -> bool:
    """Return whether no string of a text is lost in its value, in which there are at least so many.

    Raises ValueError for a value of more levels than these, if it has more strings.
    """
    quotes = text.count('"')
    if "\\" in text:
        bare = text.replace("\\\\", "") if "\\\\" in text else text
        quotes = bare.count('"') - bare.count('\\"')
    return quotes == 2 * least or quotes == 2 * _strings(value, levels)


def _without_held(text: str, hold: Hold, held: dict[str, Held]) -> str:
    """Take out what is `held`, and leave a mark."""
    for mark in (_MESSAGES, _TOOLS, _FORM) if len(text) > LONG else (_TOOLS, _FORM):
        at = text.find(mark) + len(mark)
        if at >= len(mark):
            at += text[at] == " "
            if text[at] in "[{":
                held[mark[1:-2]] = one = hold(mark[1:-2], text, at)
                text = f"{text[:at]}NaN{text[at + len(one.text) :]}"
    return text


def _strings(value: Any, levels: int) -> int:
    """Count the strings of a value, and the names of members, level by level."""
    found, level = 0, [value]
    while level:
        if levels == 0:
            raise ValueError("is nested too deeply")
        levels -= 1
        inner: list[Any] = []  # in this form: list[Any]() costs as much as all the rest
        for one in level:
            if type(one) is dict:
                found += len(one)
                one = one.values()
            for part in one:
                kind = type(part)
                if kind is str:
                    found += 1
                elif kind is dict or kind is list:
                    inner.append(part)
        level = inner
    return found


def read_plain(body: Any, details: bool = False) -> ParsedRequest | None:
    """Read a body as `request.read_request` does, if `plain_request` can."""
    if type(body) is not dict:
        return None
    streamed = body.get("stream", False)
    plain = plain_request(body, False if streamed is None else streamed)
    if plain is None:
        return None
    with_usage = False
    if "stream_options" in body and (options := body["stream_options"]) is not None:
        if not (
            plain.streamed and type(options) is dict and options.keys() <= {"include_usage", "include_obfuscation"}
        ):
            return None
        if any(type(value) is not bool for value in options.values()):
            return None
        with_usage = options.get("include_usage", False)
    with_logprobs = plain.logprobs or (details and body.get("logprobs") is not False)
    return ParsedRequest(plain, with_logprobs, details or plain.return_token_ids, with_usage)


def plain_request(body: Mapping[str, Any], streamed: object) -> CompletionRequest | None:
    """Read a body that has nothing but a model, plain messages, numbers, flags and strings, and what was `Held`.

    Returns None for any other body, and for one with a fault. The options of a stream are left to the caller.
    """
    model = body.get("model")
    if type(model) is not str or not model or len(model) > LONGEST_MODEL_NAME:
        return None
    if not (model.isascii() or is_unicode(model)):
        return None
    messages = plain_messages(body.get("messages"))
    if not messages or type(streamed) is not bool:
        return None
    if len(body) == (3 if "stream" in body else 2):
        return _request(model, messages, streamed=streamed)
    fields = _plain_fields(body)
    return None if fields is None else _request(model, messages, streamed=streamed, **fields)


def _plain_fields(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of all other members; None where one does not fit."""
    numbers: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    for name, value in body.items():
        if name in _BARE or (value is None and name.isascii()):
            continue
        if name in _NUMBERS:
            if not _fits(name, value):
                return None
            numbers[name] = value if name in _INTEGERS else float(value)
            continue
        read = _READERS.get(name)
        found = None if read is None else read(value)
        if found is None:
            return None
        (numbers if name == "logit_bias" else fields)[name] = found
    return fields | number_fields(numbers) if numbers else fields


def _fits(name: str, value: Any) -> bool:
    if type(value) is not int and (name in _INTEGERS or type(value) is not float):
        return False
    least, most, above = NUMBERS[name]
    return (value > least if above else value >= least) and value <= most


# ---- members: None where one does not fit ------------------------------------------------------------------------


def _flag(value: Any) -> bool | None:
    return value if type(value) is bool else None


def _text(value: Any, most: int = 1024) -> str | None:
    return value if type(value) is str and len(value) <= most and is_unicode(value) else None


def _stop(value: Any) -> tuple[str, ...] | None:
    strings = [value] if type(value) is str else value
    if type(strings) is not list or not 0 < len(strings) <= 4:
        return None
    return tuple(strings) if all(type(one) is str and one and is_unicode(one) for one in strings) else None


def _metadata(value: Any) -> dict[str, str] | None:
    if type(value) is not dict or len(value) > 16:
        return None
    for name, text in value.items():
        if _text(name, 64) is None or _text(text, 512) is None:
            return None
    return value


def _bias(value: Any) -> dict[int, float] | None:
    if type(value) is not dict:
        return None
    for token, bias in value.items():
        if type(token) is not str or not _TOKEN_ID.fullmatch(token) or type(bias) not in (int, float):
            return None
        if not -100 <= bias <= 100:
            return None
    return {int(token): float(bias) for token, bias in value.items()}


def _choice(value: Any) -> ToolChoice | None:
    return _CHOICES.get(value) if type(value) is str else None


def _held(value: Any) -> Any:
    return value.value if type(value) is Held else None


_READERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("logprobs", "return_token_ids", "parallel_tool_calls", "store"), _flag),
    **dict.fromkeys(("tools", "response_format"), _held),
    "user": _text,
    "stop": _stop,
    "metadata": _metadata,
    "logit_bias": _bias,
    "tool_choice": _choice,
}


# ---- messages ----------------------------------------------------------------------------------------------------


def plain_messages(raw: Any) -> tuple[Message, ...] | None:
    """Read a list of messages of text, calls of tools and their answers. Returns None for any other list.

    A `Message` that has nothing but a role and a string is taken as it is.
    """
    if type(raw) is not list:
        return raw.value if type(raw) is Held else None
    if len(raw) > _FEW and (alike := _alike(raw)) is not None:
        return alike
    messages = []
    for given in raw:
        if type(given) is not dict:
            if not _is_plain(given):
                return None
            messages.append(given)
            continue
        content, role = given.get("content"), given.get("role")
        known = _PLAIN_ROLES.get(role) if type(role) is str else None
        if len(given) == 2 and type(content) is str and known is not None:
            if not (content.isascii() or is_unicode(content)):
                return None
            messages.append(_message(known, content))
            continue
        other = _other_message(given, _ROLES.get(role) if type(role) is str else None)
        if other is None:
            return None
        messages.append(other)
    return tuple(messages)


def _alike(raw: list[Any]) -> tuple[Message, ...] | None:
    """Read messages that all have nothing but a role and a string, as most of a long conversation do."""
    if set(map(type, raw)) != {dict} or set(map(len, raw)) != {2}:
        return None
    try:
        contents = [given["content"] for given in raw]
        roles = [given["role"] for given in raw]
        if set(map(type, contents)) != {str} or set(map(type, roles)) != {str} or not is_unicode("".join(contents)):
            return None
        return tuple(map(_message, [_PLAIN_ROLES[role] for role in roles], contents))
    except KeyError:
        return None


_FEW = 4


def _other_message(given: Mapping[str, Any], role: Role | None) -> Message | None:
    """Read a message with a name, parts of text, or calls, or the answer to a call."""
    members = {name: value for name, value in given.items() if value is not None or not name.isascii()}
    members.pop("role", None)
    content, name = members.pop("content", None), members.pop("name", None)
    calls: tuple[ToolCall, ...] | None = ()
    id_ = members.pop("tool_call_id", None) if role is Role.TOOL else None
    if role is Role.ASSISTANT and "tool_calls" in members:
        calls = _calls(members.pop("tool_calls"))
    if role is None or members or not (name is None or _text(name) is not None):
        return None
    if role is Role.TOOL and (type(id_) is not str or not is_unicode(id_)):
        return None
    text = _parts(content) if type(content) is list else content if type(content) is str else None
    if calls is None or not (_is_content(text) or (content is None and calls)):
        return None
    return _message(role, text, name, calls, id_)


def _is_content(text: Any) -> bool:
    return type(text) is tuple or (type(text) is str and is_unicode(text))


def _parts(given: Any) -> tuple[ContentPart, ...] | None:
    parts = []
    for part in given:
        if type(part) is not dict or len(part) != 2 or part.get("type") != "text":
            return None
        text = part.get("text")
        if type(text) is not str or not is_unicode(text):
            return None
        parts.append(ContentPart("text", text))
    return tuple(parts) or None


def _calls(given: Any) -> tuple[ToolCall, ...] | None:
    if type(given) is not list:
        return None
    calls = []
    for call in given:
        if type(call) is not dict or call.keys() != {"id", "type", "function"} or call["type"] != "function":
            return None
        function = call["function"]
        if type(function) is not dict or function.keys() != {"name", "arguments"}:
            return None
        values = call["id"], function["name"], function["arguments"]
        if not all(type(value) is str and is_unicode(value) for value in values):
            return None
        calls.append(ToolCall(*values))
    return tuple(calls) or None


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
