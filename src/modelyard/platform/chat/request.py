"""A request in an application's own words: keywords, and messages and tools as plain dicts in the usual shape."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

import attrs

from modelyard.domain.completion import (
    CompletionRequest,
    Message,
    Part,
    ResponseFormat,
    ResponseType,
    Role,
    Sampling,
    Tool,
    ToolCall,
    ToolChoice,
    ToolMode,
)
from modelyard.errors import InvalidInput, Problem

T = TypeVar("T")

Messages = str | Sequence[Message | Mapping[str, Any]]


class GenerationOptions(TypedDict, total=False):
    """What a completion can be asked for, besides model and messages. None means the default."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    seed: int | None
    n: int | None
    max_tokens: int | None
    stop: str | Sequence[str] | None
    logprobs: bool | None
    top_logprobs: int | None
    tools: Sequence[Tool | Mapping[str, Any]] | None
    tool_choice: ToolChoice | str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    response_format: ResponseFormat | Mapping[str, Any] | None
    return_token_ids: bool | None
    user: str | None
    metadata: Mapping[str, str] | None
    store: bool | None


class CompletionOptions(GenerationOptions, total=False):
    """What a completion can be asked for, by keyword. None means the default, as leaving it out does."""

    model: str
    messages: Messages


_SAMPLING = frozenset(field.name for field in attrs.fields(Sampling))
_OTHERS = frozenset(CompletionOptions.__annotations__) - _SAMPLING

# Least and most; the first of a pair of brackets says whether the least itself is allowed.
_BOUNDS: Mapping[str, tuple[str, float, float]] = {
    "temperature": ("[", 0, 2),
    "top_p": ("(", 0, 1),
    "top_k": ("[", -1, 2**31),
    "min_p": ("[", 0, 1),
    "frequency_penalty": ("[", -2, 2),
    "presence_penalty": ("[", -2, 2),
    "repetition_penalty": ("(", 0, 2**31),
    "seed": ("[", -(2**63), 2**63 - 1),
    "n": ("[", 1, 128),
    "max_tokens": ("[", 1, 2**53),
    "top_logprobs": ("[", 0, 20),
}
_WHOLE = frozenset({"top_k", "seed", "n", "max_tokens", "top_logprobs"})
_FLAGS = frozenset({"logprobs", "parallel_tool_calls", "return_token_ids", "store"})
_ROLES = {role.value: role for role in Role}
_MAX_STOPS = 4
_MAX_BIAS = 100


def build_request(options: CompletionOptions, streamed: bool) -> CompletionRequest:
    """The request that these keywords make. Raises `InvalidInput` naming everything that does not fit."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    problems = [Problem((name,), msg) for name, msg in _faults(given)]
    if problems:
        raise InvalidInput(problems)
    for name, convert in _CONVERT.items():
        if name in given:
            given[name] = convert(given[name])
    sampling = {name: given.pop(name) for name in _SAMPLING & given.keys()}
    if sampling:
        given["sampling"] = Sampling(**sampling)
    return CompletionRequest(**given, streamed=streamed)


def _faults(given: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for name in ("model", "messages"):
        if name not in given:
            yield name, "is required"
    for name, value in given.items():
        if name in _BOUNDS:
            if not _within(name, value):
                least, most = _BOUNDS[name][1:]
                kind = "whole number" if name in _WHOLE else "number"
                yield name, f"must be a {kind} {'from' if _BOUNDS[name][0] == '[' else 'above'} {least} to {most}"
        elif name in _FLAGS:
            if type(value) is not bool:
                yield name, "must be True or False"
        elif name not in _OTHERS and name not in _SAMPLING:
            yield name, "is no parameter of a completion"
        elif name in ("model", "user") and type(value) is not str:
            yield name, "must be a text"


def _within(name: str, value: Any) -> bool:
    opening, least, most = _BOUNDS[name]
    if type(value) is not int and (name in _WHOLE or type(value) is not float):
        return False
    return (least < value if opening == "(" else least <= value) and value <= most


# ---- plain dicts in the usual shape ----------------------------------------------------------------------------


def messages_of(value: Any) -> tuple[Message, ...]:
    """Messages of a text (what the user says), of `Message` values, or of dicts. Raises `InvalidInput`."""
    listed = (Message(Role.USER, value),) if isinstance(value, str) else _listed("messages", value)
    messages = []
    for at, message in enumerate(listed):
        if type(message) is not Message:
            message = _shaped(_message, message, "messages", at)
        if not message.text.isascii():
            _shaped(str.encode, message.text, "messages", at)
        messages.append(message)
    if not messages:
        raise InvalidInput.at("messages", msg="must hold at least one message")
    return tuple(messages)


def _message(plain: Mapping[str, Any]) -> Message:
    role, content = plain["role"], plain.get("content")
    role = _ROLES.get(role) or Role(role)
    if type(content) is str and len(plain) == 2:
        return Message(role, content)  # as most are
    calls = plain.get("tool_calls")
    if content is not None and type(content) is not str:
        content = tuple(_content_part(part) for part in content)
    return Message(
        role,
        content,
        plain.get("name"),
        tuple([_tool_call(call) for call in calls]) if calls else (),
        plain.get("tool_call_id"),
    )


def _content_part(plain: Any) -> Part:
    if type(plain) is Part:
        return plain
    if plain["type"] == "text":
        return Part("text", _text(plain["text"]))
    return Part(_text(plain["type"]), data={name: value for name, value in plain.items() if name != "type"})


def _tool_call(plain: Any) -> ToolCall:
    if type(plain) is ToolCall:
        return plain
    function = plain["function"]
    return ToolCall(_text(plain["id"]), _text(function["name"]), _text(function["arguments"]))


def _tools(value: Any) -> tuple[Tool, ...]:
    return tuple(
        tool if type(tool) is Tool else _shaped(_tool, tool, "tools", at)
        for at, tool in enumerate(_listed("tools", value))
    )


def _tool(plain: Mapping[str, Any]) -> Tool:
    function = plain["function"]
    return Tool(
        _text(function["name"]),
        function.get("description") or "",
        function.get("parameters") or {},
        bool(function.get("strict")),
    )


def _tool_choice(value: Any) -> ToolChoice:
    if type(value) is ToolChoice:
        return value
    if isinstance(value, str):
        return _shaped(lambda mode: ToolChoice(ToolMode(mode)), value, "tool_choice")
    return _shaped(lambda plain: ToolChoice(ToolMode.REQUIRED, _text(plain["function"]["name"])), value, "tool_choice")


def _response_format(value: Any) -> ResponseFormat:
    return value if type(value) is ResponseFormat else _shaped(_format, value, "response_format")


def _format(plain: Mapping[str, Any]) -> ResponseFormat:
    kind = ResponseType(plain["type"])
    if kind is not ResponseType.JSON_SCHEMA:
        return ResponseFormat(kind)
    inner = plain["json_schema"]
    return ResponseFormat(kind, _text(inner["name"]), inner.get("schema") or {}, bool(inner.get("strict")))


def _logit_bias(value: Any) -> Mapping[int, float]:
    bias = _shaped(lambda plain: {int(token): float(amount) for token, amount in plain.items()}, value, "logit_bias")
    if not all(-_MAX_BIAS <= amount <= _MAX_BIAS for amount in bias.values()):
        raise InvalidInput.at("logit_bias", msg=f"must hold numbers from -{_MAX_BIAS} to {_MAX_BIAS}")
    return bias


def _metadata(value: Any) -> Mapping[str, str]:
    return _shaped(lambda plain: {_text(name): _text(text) for name, text in plain.items()}, value, "metadata")


def _stop(value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else tuple(_listed("stop", value))
    if len(stops) > _MAX_STOPS or not all(type(stop) is str and stop for stop in stops):
        raise InvalidInput.at("stop", msg=f"must be a text or at most {_MAX_STOPS} texts, none of them empty")
    return stops


_CONVERT = {
    "messages": messages_of,
    "tools": _tools,
    "tool_choice": _tool_choice,
    "response_format": _response_format,
    "stop": _stop,
    "logit_bias": _logit_bias,
    "metadata": _metadata,
}


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("a text was expected")
    return value


def _listed(name: str, value: Any) -> Iterable[Any]:
    if not isinstance(value, Sequence):
        raise InvalidInput.at(name, msg="must be a list")
    return value


def _shaped(convert: Callable[[Any], T], plain: Any, *loc: str | int) -> T:
    try:
        return convert(plain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput.at(*loc, msg=f"is not in the shape of the chat-completion format ({error!r})") from error
