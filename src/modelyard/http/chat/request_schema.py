"""A chat completion as it is asked for: the request's shape, checked strictly, and its meaning."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs

from modelyard.domain.completion import (
    CompletionRequest,
    ResponseFormat,
    ResponseType,
    Sampling,
    Tool,
    ToolChoice,
    ToolMode,
)
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.constraints import Length, Matching, Refused, Within
from modelyard.formats.converter import structure_members
from modelyard.http.chat.message_schema import WireMessage, plain_messages, read_messages

JsonObject = Mapping[str, Any]

_NAME = Matching("[A-Za-z0-9_-]{1,64}", "must be 1 to 64 characters of A-Z a-z 0-9 _ -")
_LONGEST_NAME = 1024
_MAX_TOKENS = 2**31
_SHORT = Length(0, 1024)

# ---- tools and formats -------------------------------------------------------------------------------------------


@attrs.frozen
class FunctionDefinition:
    """A function that the model may call; `parameters` is a JSON schema."""

    name: str = attrs.field(validator=_NAME)
    description: str = ""
    parameters: JsonObject = attrs.field(factory=dict)
    strict: bool = False


@attrs.frozen
class FunctionTool:
    """A tool."""

    type: Literal["function"]
    function: FunctionDefinition


@attrs.frozen
class FunctionName:
    """A function by name."""

    name: str = attrs.field(validator=_NAME)


@attrs.frozen
class NamedToolChoice:
    """The one tool that must be called."""

    type: Literal["function"]
    function: FunctionName


@attrs.frozen
class TextFormat:
    """Free text."""

    type: Literal["text"]


@attrs.frozen
class JsonObjectFormat:
    """Any JSON object."""

    type: Literal["json_object"]


@attrs.frozen
class NamedSchema:
    """A JSON schema under a name."""

    name: str = attrs.field(validator=_NAME)
    schema: JsonObject = attrs.field(factory=dict)
    strict: bool = False
    description: str = ""


@attrs.frozen
class JsonSchemaFormat:
    """JSON that is valid under a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


@attrs.frozen
class StreamOptions:
    """How a stream is told. `include_usage` adds a last chunk with the usage."""

    include_usage: bool = False


# ---- the request -------------------------------------------------------------------------------------------------


def _check_stop(instance: object, attribute: Any, value: str | tuple[str, ...] | None) -> None:
    strings = (value,) if isinstance(value, str) else value
    if strings is not None and (not strings or len(strings) > 4 or "" in strings):
        raise ValueError("must be a string or 1 to 4 strings, none of them empty")


def _check_bias(instance: object, attribute: Any, value: Mapping[str, float] | None) -> None:
    for token, bias in (value or {}).items():
        if not re.fullmatch("[0-9]{1,9}", token):
            raise ValueError("must have token ids as names")
        if not -100 <= bias <= 100:
            raise ValueError("must have values from -100 to 100")


def _check_metadata(instance: object, attribute: Any, value: Mapping[str, str] | None) -> None:
    if len(value or {}) > 16 or any(len(key) > 64 or len(text) > 512 for key, text in (value or {}).items()):
        raise ValueError("must have at most 16 members, with names of at most 64 and values of at most 512 characters")


@attrs.frozen(kw_only=True)
class ChatRequest:
    """What a client asks of a model (specification 2.2). Null is as good as absent for everything that is optional."""

    model: str = attrs.field(validator=Length(1, _LONGEST_NAME))
    messages: tuple[WireMessage, ...] = attrs.field(validator=Length(1), metadata={"parser": read_messages})
    temperature: float | None = attrs.field(default=None, validator=Within(0, 2))
    top_p: float | None = attrs.field(default=None, validator=Within(0, 1, above=True))
    top_k: int | None = attrs.field(default=None, validator=Within(-1, 2**31))
    min_p: float | None = attrs.field(default=None, validator=Within(0, 1))
    frequency_penalty: float | None = attrs.field(default=None, validator=Within(-2, 2))
    presence_penalty: float | None = attrs.field(default=None, validator=Within(-2, 2))
    repetition_penalty: float | None = attrs.field(default=None, validator=Within(0, 100, above=True))
    logit_bias: Mapping[str, float] | None = attrs.field(default=None, validator=_check_bias)
    seed: int | None = None
    n: int | None = attrs.field(default=None, validator=Within(1, 128))
    max_tokens: int | None = attrs.field(default=None, validator=Within(1, _MAX_TOKENS))
    max_completion_tokens: int | None = attrs.field(default=None, validator=Within(1, _MAX_TOKENS))
    stop: str | tuple[str, ...] | None = attrs.field(default=None, validator=_check_stop)
    logprobs: bool | None = None
    top_logprobs: int | None = attrs.field(default=None, validator=Within(0, 20))
    return_token_ids: bool | None = None
    tools: tuple[FunctionTool, ...] | None = attrs.field(default=None, validator=Length(1, 1024))
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    modalities: tuple[Literal["text"], ...] | None = None
    user: str | None = attrs.field(default=None, validator=_SHORT)
    metadata: Mapping[str, str] | None = attrs.field(default=None, validator=_check_metadata)
    store: bool | None = None
    safety_identifier: str | None = attrs.field(default=None, validator=_SHORT)
    service_tier: str | None = attrs.field(default=None, validator=_SHORT)
    reasoning_effort: str | None = attrs.field(default=None, validator=_SHORT)
    verbosity: str | None = attrs.field(default=None, validator=_SHORT)
    prompt_cache_key: str | None = attrs.field(default=None, validator=_SHORT)
    prompt_cache_retention: str | None = attrs.field(default=None, validator=_SHORT)
    audio: object = attrs.field(default=None, validator=Refused("is not supported: answers are text"))
    prediction: object = attrs.field(default=None, validator=Refused("is not supported"))
    web_search_options: object = attrs.field(default=None, validator=Refused("is not supported: models do not search"))
    functions: object = attrs.field(default=None, validator=Refused("is not supported any more: send tools"))
    function_call: object = attrs.field(default=None, validator=Refused("is not supported any more: send tool_choice"))


# ---- what it means -----------------------------------------------------------------------------------------------

_PLAIN = frozenset({"model", "messages", "stream"})
_FIELDS = frozenset(field.name for field in attrs.fields(ChatRequest))
_SAMPLING = frozenset(field.name for field in attrs.fields(Sampling))
_SAME = frozenset(
    {
        "model",
        "messages",
        "n",
        "logprobs",
        "top_logprobs",
        "parallel_tool_calls",
        "return_token_ids",
        "metadata",
        "store",
        "user",
    }
)
_EXTRAS = frozenset(
    {
        "safety_identifier",
        "service_tier",
        "reasoning_effort",
        "verbosity",
        "prompt_cache_key",
        "prompt_cache_retention",
    }
)


@attrs.define
class Asked:
    """A request, and how its answer is to be told."""

    request: CompletionRequest
    with_logprobs: bool
    with_ids: bool
    with_usage: bool


def read_chat_request(body: object, strict: bool = False, training: bool = False) -> Asked:
    """What a chat request's JSON asks for. With `strict`, fields that nobody knows are refused.

    On the training interface log-probabilities are told unless they were declined, and token ids always. Raises
    `InvalidInput` naming every problem below ("body",).
    """
    plain = _plain_request(body)
    if plain is not None:
        return Asked(plain, training, with_ids=training, with_usage=False)
    given = structure_members(ChatRequest, body, "body")
    with_logprobs = given.get("logprobs", training)
    problems = [*_contradictions(given, with_logprobs), *(_unknown(body) if strict else ())]
    if problems:
        raise InvalidInput(problems).below("body")
    options = given.get("stream_options")
    return Asked(
        _request(given),
        with_logprobs,
        with_ids=training or given.get("return_token_ids", False),
        with_usage=options is not None and options.include_usage,
    )


def _plain_request(body: Any) -> CompletionRequest | None:
    """What a body asks for that has a model and plain messages and at most says whether to stream, as most do; None for
    any other, and for one with a fault. It is the same without, at twice the time.
    """
    if type(body) is not dict or not body.keys() <= _PLAIN:
        return None
    model, streamed = body.get("model"), body.get("stream", False)
    if type(model) is not str or not 1 <= len(model) <= _LONGEST_NAME or type(streamed) is not bool:
        return None
    messages = plain_messages(body.get("messages"))
    return CompletionRequest(model, messages, streamed=streamed) if messages else None


def _unknown(body: Any) -> list[Problem]:
    return [Problem((name,), "is no parameter", "extra_forbidden") for name in body if name not in _FIELDS]


def _contradictions(given: Mapping[str, Any], with_logprobs: bool) -> list[Problem]:
    """What single fields do not show."""
    problems = []
    if given.get("top_logprobs") and not with_logprobs:
        problems.append(Problem(("top_logprobs",), "needs logprobs: true"))
    if "stream_options" in given and not given.get("stream"):
        problems.append(Problem(("stream_options",), "needs stream: true"))
    if "tool_choice" in given:
        problems += _wrong_choice(given["tool_choice"], given.get("tools", ()))
    return problems


def _wrong_choice(choice: str | NamedToolChoice, tools: tuple[FunctionTool, ...]) -> list[Problem]:
    if isinstance(choice, NamedToolChoice) and choice.function.name not in {tool.function.name for tool in tools}:
        return [Problem(("tool_choice", "function", "name"), "must be the name of one of the tools")]
    if choice == "required" and not tools:
        return [Problem(("tool_choice",), "needs tools")]
    return []


def _request(given: Mapping[str, Any]) -> CompletionRequest:
    parts: dict[str, Any] = {}
    sampling, extras = {}, {}
    for name, value in given.items():
        if name in _SAME:
            parts[name] = value
        elif name in _SAMPLING:
            sampling[name] = value
        elif name in _EXTRAS:
            extras[name] = value
        elif name in _MEANINGS:
            parts[_MEANINGS[name][0]] = _MEANINGS[name][1](value)
    limit = given.get("max_completion_tokens") or given.get("max_tokens")
    if limit is not None:
        parts["max_tokens"] = limit
    if sampling:
        parts["sampling"] = _sampling(sampling)
    if extras:
        parts["extras"] = extras
    return CompletionRequest(**parts)


def _sampling(given: dict[str, Any]) -> Sampling:
    if given.get("top_k") in (0, -1):
        del given["top_k"]
    if "logit_bias" in given:
        given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
    return Sampling(**given)


def _tools(tools: tuple[FunctionTool, ...]) -> tuple[Tool, ...]:
    said = [tool.function for tool in tools]
    return tuple(Tool(tool.name, tool.description, tool.parameters, tool.strict) for tool in said)


def _tool_choice(choice: str | NamedToolChoice) -> ToolChoice:
    if isinstance(choice, NamedToolChoice):
        return ToolChoice(ToolMode.REQUIRED, choice.function.name)
    return ToolChoice(ToolMode(choice))


def _response_format(asked: TextFormat | JsonObjectFormat | JsonSchemaFormat) -> ResponseFormat:
    if isinstance(asked, JsonSchemaFormat):
        named = asked.json_schema
        return ResponseFormat(ResponseType.JSON_SCHEMA, named.name, named.schema, named.strict)
    return ResponseFormat(ResponseType(asked.type))


def _stop(stop: str | tuple[str, ...]) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else stop


_MEANINGS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "tools": ("tools", _tools),
    "tool_choice": ("tool_choice", _tool_choice),
    "response_format": ("response_format", _response_format),
    "stop": ("stop", _stop),
    "stream": ("streamed", bool),
}
"""Fields that are named or shaped otherwise in the domain."""
