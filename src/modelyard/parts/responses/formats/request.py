"""A request for a response: its shape and bounds, read strictly."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs

from modelyard.domain.completion import (
    CompletionRequest,
    ResponseFormat,
    ResponseType,
    Tool,
    ToolChoice,
    ToolMode,
)
from modelyard.errors import InvalidInput, Problem, nearest
from modelyard.formats.chat.bounds import LONGEST_MODEL_NAME, MAX_TOKENS, NUMBERS, number_fields
from modelyard.formats.chat.hints import (
    CACHED,
    IDENTIFIES,
    PADDED,
    QUEUED,
    CacheOptions,
    Effort,
    Retention,
    ServiceTier,
    Verbosity,
)
from modelyard.formats.chat.request import check_metadata, extras_of
from modelyard.formats.chat.tools import JsonObject, JsonObjectFormat, TextFormat
from modelyard.formats.constraints import Length, Matching, Only, Unsupported, Within, hint
from modelyard.formats.converter import MAX_PROBLEMS, either, structure_exactly
from modelyard.parts.responses.formats.items import ItemReference, ResponseItem, read_items

_SHORT = Length(0, 1024)
_NAME = Matching("[A-Za-z0-9_-]{1,64}", "must be 1 to 64 characters of A-Z a-z 0-9 _ -")
_LOGPROBS = "message.output_text.logprobs"

# ---- the shape ---------------------------------------------------------------------------------------------------


@attrs.frozen
class ResponseFunction:
    """A function that the model may call; `parameters` is a JSON schema."""

    type: Literal["function"]
    name: str = attrs.field(validator=_NAME)
    parameters: JsonObject | None = None
    description: str | None = None
    strict: bool | None = None
    defer_loading: object = attrs.field(
        default=None, validator=Only((False,), "must be false: models are given all functions")
    )
    allowed_callers: object = attrs.field(
        default=None, validator=Only((["direct"],), 'must be ["direct"]: only the model itself calls functions')
    )


@attrs.frozen
class ChosenFunction:
    """The one function that must be called, or one of the functions that may be called."""

    type: Literal["function"]
    name: str = attrs.field(validator=_NAME)


@attrs.frozen
class ChosenFunctions:
    """A choice among some of the functions: the others are as if they were not there."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: tuple[ChosenFunction, ...] = attrs.field(validator=Length(1, 1024))


@attrs.frozen
class SchemaFormat:
    """JSON that is valid under a schema."""

    type: Literal["json_schema"]
    name: str = attrs.field(validator=_NAME)
    schema: JsonObject
    strict: bool | None = None
    description: str | None = None


@attrs.frozen
class TextOptions:
    """The form of the text, and how much of it there is to be."""

    format: TextFormat | JsonObjectFormat | SchemaFormat | None = None
    verbosity: Verbosity | None = None


Summary = Literal["auto", "concise", "detailed"]
UNSUMMARISED = "reasoning is shown as it is, which is all that a summary could say"


@attrs.frozen
class ReasoningOptions:
    """How much a model reasons, if it has a choice. Its reasoning is shown as it is; no summary of it is made."""

    effort: Effort | None = None
    summary: Summary | None = attrs.field(default=None, metadata=hint(UNSUMMARISED))
    generate_summary: Summary | None = attrs.field(default=None, metadata=hint(UNSUMMARISED))
    context: object = attrs.field(
        default=None, validator=Only(("auto", "all_turns"), "must be 'auto' or 'all_turns': models read all reasoning")
    )
    mode: object = attrs.field(default=None, validator=Only(("standard",), "must be 'standard'"))


@attrs.frozen
class EventOptions:
    """Options of a stream."""

    include_obfuscation: bool | None = attrs.field(default=None, metadata=hint(PADDED))


_HOSTED = "there are no hosted tools, whose results it would show"
INCLUDED: Mapping[str, str] = {
    "message.output_text.logprobs": "",
    "message.input_image.image_url": "items of the input are shown as they were sent",
    "reasoning.encrypted_content": "reasoning is shown as it is, and can be sent again so",
    "file_search_call.results": _HOSTED,
    "web_search_call.results": _HOSTED,
    "web_search_call.action.sources": _HOSTED,
    "computer_call_output.output.image_url": _HOSTED,
    "code_interpreter_call.outputs": _HOSTED,
}
"""What an answer may include, and why it changes nothing; "" if it does."""


def _check_included(instance: object, attribute: Any, value: tuple[str, ...] | None) -> None:
    unknown = [(at, name) for at, name in enumerate(value or ()) if name not in INCLUDED][:MAX_PROBLEMS]
    if unknown:
        known = either([repr(name) for name in INCLUDED])
        raise InvalidInput(
            [Problem((at,), f"must be {known}{nearest(name, INCLUDED)}", "literal_error") for at, name in unknown]
        )


def _read_tools(raw: Any) -> tuple[ResponseFunction, ...]:
    """Read tools, and refuse hosted ones by their names."""
    for at, one in enumerate(raw if type(raw) is list else ()):
        kind = one.get("type") if type(one) is dict else None
        if type(kind) is str and kind != "function":
            msg = f"is {kind!r}, a tool that is not run here: send functions, and run them where you call"
            raise InvalidInput.at(at, "type", msg=msg)
    return structure_exactly(tuple[ResponseFunction, ...], raw)


def _read_choice(raw: Any) -> Any:
    kind = raw.get("type") if type(raw) is dict else None
    if type(kind) is str and kind not in ("function", "allowed_tools"):
        raise InvalidInput.at("type", msg=f"is {kind!r}, a tool that is not run here: choose among your functions")
    return structure_exactly(_Choice, raw)  # type: ignore[arg-type]


_Choice = Literal["none", "auto", "required"] | ChosenFunction | ChosenFunctions


@attrs.define(kw_only=True)
class CountedResponse:
    """The body of a request for the number of tokens of an input. Null means the same as leaving a parameter out."""

    CALLED: ClassVar[str] = "a count of input tokens"

    model: str = attrs.field(validator=Length(1, LONGEST_MODEL_NAME))
    input: str | tuple[ResponseItem, ...] = attrs.field(validator=Length(1), metadata={"parser": read_items})
    instructions: str | None = None
    previous_response_id: str | None = attrs.field(default=None, validator=Length(1, 256))
    tools: tuple[ResponseFunction, ...] | None = attrs.field(
        default=None, validator=Length(0, 1024), metadata={"parser": _read_tools}
    )
    tool_choice: _Choice | None = attrs.field(default=None, metadata={"parser": _read_choice})
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    conversation: object = attrs.field(
        default=None, validator=Unsupported("is not supported: send previous_response_id, or all items as input")
    )


@attrs.define(kw_only=True)
class ResponseRequest(CountedResponse):
    """The body of a request for a response. Null means the same as leaving a parameter out."""

    CALLED: ClassVar[str] = "a response"

    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: EventOptions | None = None
    max_output_tokens: int | None = attrs.field(default=None, validator=Within(1, MAX_TOKENS))
    temperature: float | None = attrs.field(default=None, validator=Within(*NUMBERS["temperature"]))
    top_p: float | None = attrs.field(default=None, validator=Within(*NUMBERS["top_p"]))
    top_logprobs: int | None = attrs.field(default=None, validator=Within(0, 20))
    include: tuple[str, ...] | None = attrs.field(default=None, validator=_check_included)
    max_tool_calls: int | None = attrs.field(
        default=None,
        validator=Within(1, MAX_TOKENS),
        metadata=hint("it bounds the calls of hosted tools, and there are none"),
    )
    metadata: Mapping[str, str] | None = attrs.field(default=None, validator=check_metadata)
    user: str | None = attrs.field(default=None, validator=_SHORT)
    safety_identifier: str | None = attrs.field(default=None, validator=_SHORT, metadata=hint(IDENTIFIES))
    service_tier: ServiceTier | None = attrs.field(default=None, metadata=hint(QUEUED))
    prompt_cache_key: str | None = attrs.field(default=None, validator=_SHORT, metadata=hint(CACHED))
    prompt_cache_options: CacheOptions | None = attrs.field(default=None, metadata=hint(CACHED))
    prompt_cache_retention: Retention | None = attrs.field(default=None, metadata=hint(CACHED))
    prompt: object = attrs.field(default=None, validator=Unsupported("is not supported: send instructions and input"))
    context_management: object = attrs.field(
        default=None, validator=Unsupported("is not supported: send fewer items, or truncation: auto")
    )


# ---- read --------------------------------------------------------------------------------------------------------


@attrs.frozen
class ParsedResponse:
    """The parsed request: the request to the model, still without messages, and what the platform does with it.

    `given` are the parameters as they came, without nulls and without the input; `raw` are the items of the input as
    they came.
    """

    request: CompletionRequest
    items: tuple[ResponseItem, ...]
    raw: tuple[Mapping[str, Any], ...]
    given: Mapping[str, Any]
    instructions: str | None = None
    previous_id: str | None = None
    store: bool = True
    background: bool = False
    truncates: bool = False

    @property
    def refers(self) -> bool:
        return self.previous_id is not None or any(isinstance(item, ItemReference) for item in self.items)


def read_response_request(body: Any, *loc: str | int) -> ParsedResponse:
    """Read the JSON of a request. Raises `InvalidInput` naming every problem, each located below `loc`."""
    parsed = structure_exactly(ResponseRequest, body, *loc)
    problems = _contradictions(parsed)
    if problems:
        raise InvalidInput(problems).below(*loc)
    raw, items = body["input"], parsed.input
    assert not isinstance(items, str)
    listed = raw if isinstance(raw, list) else [{"type": "message", "role": "user", "content": raw}]
    return ParsedResponse(
        _request(parsed),
        items,
        tuple(listed),
        _as_given({name: value for name, value in body.items() if name != "input"}),
        parsed.instructions,
        parsed.previous_response_id,
        parsed.store is not False,
        bool(parsed.background),
        parsed.truncation == "auto",
    )


def read_counted_response(body: Any, *loc: str | int) -> ParsedResponse:
    structure_exactly(CountedResponse, body, *loc)
    return read_response_request(body, *loc)


def _as_given(value: Any) -> Any:
    """Return parameters without the nulls, which stand for what was left out; schemas stay as they are."""
    if isinstance(value, list):
        return [_as_given(one) for one in value]
    if not isinstance(value, dict):
        return value
    free = ("parameters", "schema")
    return {name: one if name in free else _as_given(one) for name, one in value.items() if one is not None}


def _contradictions(parsed: ResponseRequest) -> list[Problem]:
    problems = []
    if parsed.stream_options is not None and not parsed.stream:
        problems.append(Problem(("stream_options",), "needs stream: true"))
    if parsed.background and parsed.store is False:
        problems.append(Problem(("background",), "needs store: true"))
    return problems + _problems_of_choice(parsed)


def _problems_of_choice(parsed: ResponseRequest) -> list[Problem]:
    choice, names = parsed.tool_choice, {tool.name for tool in parsed.tools or ()}
    says = "must be the name of one of the tools"
    if isinstance(choice, ChosenFunction):
        return [] if choice.name in names else [Problem(("tool_choice", "name"), says)]
    if isinstance(choice, ChosenFunctions):
        place = ("tool_choice", "tools")
        return [Problem((*place, at, "name"), says) for at, one in enumerate(choice.tools) if one.name not in names]
    return [Problem(("tool_choice",), "needs tools")] if choice == "required" and not names else []


def _request(parsed: ResponseRequest) -> CompletionRequest:
    numbers = {name: value for name in ("temperature", "top_p") if (value := getattr(parsed, name)) is not None}
    extras = extras_of(parsed)
    if parsed.reasoning is not None and parsed.reasoning.effort is not None:
        extras["reasoning_effort"] = parsed.reasoning.effort
    if parsed.text is not None and parsed.text.verbosity is not None:
        extras["verbosity"] = parsed.text.verbosity
    return CompletionRequest(
        parsed.model,
        (),
        max_tokens=parsed.max_output_tokens,
        logprobs=bool(parsed.top_logprobs) or _LOGPROBS in (parsed.include or ()),
        top_logprobs=parsed.top_logprobs or 0,
        tools=_tools(parsed),
        tool_choice=_tool_choice(parsed.tool_choice),
        parallel_tool_calls=parsed.parallel_tool_calls is not False,
        response_format=_format(parsed.text),
        streamed=bool(parsed.stream),
        user=parsed.user,
        metadata=parsed.metadata or {},
        extras=extras,
        **number_fields(numbers),
    )


def _tools(parsed: ResponseRequest) -> tuple[Tool, ...]:
    choice, tools = parsed.tool_choice, parsed.tools or ()
    if isinstance(choice, ChosenFunctions):
        allowed = {one.name for one in choice.tools}
        tools = tuple(tool for tool in tools if tool.name in allowed)
    return tuple([Tool(one.name, one.description or "", one.parameters or {}, bool(one.strict)) for one in tools])


def _tool_choice(choice: str | ChosenFunction | ChosenFunctions | None) -> ToolChoice:
    if isinstance(choice, ChosenFunction):
        return ToolChoice(ToolMode.REQUIRED, choice.name)
    if isinstance(choice, ChosenFunctions):
        return ToolChoice(ToolMode(choice.mode))
    return ToolChoice() if choice is None else ToolChoice(ToolMode(choice))


def _format(text: TextOptions | None) -> ResponseFormat:
    form = None if text is None else text.format
    if form is None:
        return ResponseFormat()
    if isinstance(form, SchemaFormat):
        return ResponseFormat(ResponseType.JSON_SCHEMA, form.name, form.schema, bool(form.strict))
    return ResponseFormat(ResponseType(form.type))
