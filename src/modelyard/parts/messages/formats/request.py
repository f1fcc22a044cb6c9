"""A request in the messages format: its shape and bounds, read strictly."""

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from modelyard.domain.completion import (
    CompletionRequest,
    ResponseFormat,
    Sampling,
    Tool,
    ToolChoice,
    ToolMode,
    tool_choice_problems,
)
from modelyard.errors import InvalidInput, Problem, nearest
from modelyard.formats.chat.bounds import LONGEST_MODEL_NAME, MAX_TOKENS
from modelyard.formats.chat.tools import schema_format
from modelyard.formats.constraints import Length, Matching, Unsupported, Within
from modelyard.formats.converter import structure
from modelyard.parts.messages.formats.blocks import TextBlock, Turn, blank_texts, messages_of

_NAME = Matching("[A-Za-z0-9_-]{1,64}", "must be 1 to 64 characters of A-Z a-z 0-9 _ -")


@attrs.frozen
class CustomTool:
    """A tool that the client runs; `input_schema` is a JSON schema. Tools that the host would run are not there."""

    name: str = attrs.field(validator=_NAME)
    input_schema: Mapping[str, Any] = attrs.field()
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None


@attrs.frozen
class MessagesToolChoice:
    """Whether a tool may, must or must not be called; with "tool" the tool of this `name`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def __attrs_post_init__(self) -> None:
        if (self.type == "tool") != (self.name is not None):
            raise InvalidInput.at("name", msg='is required with the type "tool", and only then', type="missing")


@attrs.frozen
class MessagesMetadata:
    """Who asks: `user_id` names an end user of the caller."""

    user_id: str | None = attrs.field(default=None, validator=Length(0, 1024))


@attrs.frozen
class Thinking:
    """Whether the model may reason before it answers. It decides itself, and keeps to no budget of tokens."""

    type: Literal["disabled", "adaptive"]
    display: Literal["summarized"] | None = None


@attrs.frozen
class OutputSchema:
    """A demand that the text is JSON which is valid under a schema."""

    type: Literal["json_schema"]
    schema: Mapping[str, Any] = attrs.field()


@attrs.frozen
class OutputConfig:
    """How much the model reasons, if it has a choice, and the form of its text."""

    effort: str | None = attrs.field(default=None, validator=Length(0, 64))
    format: OutputSchema | None = None


@attrs.define(kw_only=True)
class CountedMessages:
    """The body of a request for the number of tokens. Null means the same as leaving a parameter out."""

    model: str = attrs.field(validator=Length(1, LONGEST_MODEL_NAME))
    messages: tuple[Turn, ...] = attrs.field(validator=Length(1, 100_000))
    system: str | tuple[TextBlock, ...] | None = None
    tools: tuple[CustomTool, ...] | None = attrs.field(default=None, validator=Length(0, 1024))
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None


@attrs.define(kw_only=True)
class MessagesBody(CountedMessages):
    """The body of a request. Null means the same as leaving a parameter out."""

    max_tokens: int = attrs.field(validator=Within(1, MAX_TOKENS))
    temperature: float | None = attrs.field(default=None, validator=Within(0, 1))
    top_p: float | None = attrs.field(default=None, validator=Within(0, 1, above=True))
    top_k: int | None = attrs.field(default=None, validator=Within(0, 2**31))
    stop_sequences: tuple[str, ...] | None = attrs.field(default=None, validator=Length(0, 4))
    stream: bool | None = None
    metadata: MessagesMetadata | None = None
    output_config: OutputConfig | None = None
    service_tier: str | None = attrs.field(default=None, validator=Length(0, 64))
    container: object = attrs.field(default=None, validator=Unsupported("is not supported: there are no containers"))
    mcp_servers: object = attrs.field(default=None, validator=Unsupported("is not supported: send tools"))

    def __attrs_post_init__(self) -> None:
        if self.stop_sequences and "" in self.stop_sequences:
            raise InvalidInput.at("stop_sequences", msg="must hold no empty string")


def read_messages_request(body: object, *loc: str | int, strict: bool = False) -> CompletionRequest:
    """Read a request. Raises `InvalidInput`; if it is `strict`, for blank texts, too."""
    parsed = structure(MessagesBody, body, *loc)
    if strict and (blank := [*blank_texts(parsed.system, parsed.messages)]):
        raise InvalidInput(blank[:100]).below(*loc)
    request = _request(parsed, body, *loc)
    given: dict[str, Any] = {"temperature": parsed.temperature, "top_p": parsed.top_p, "top_k": parsed.top_k}
    config = parsed.output_config or OutputConfig()
    return attrs.evolve(
        request,
        extras={} if config.effort is None else {"reasoning_effort": config.effort},
        response_format=ResponseFormat() if config.format is None else schema_format(config.format.schema),
        sampling=Sampling(**{name: value for name, value in given.items() if value is not None}),
        max_tokens=parsed.max_tokens,
        stop=parsed.stop_sequences or (),
        streamed=bool(parsed.stream),
        user=None if parsed.metadata is None else parsed.metadata.user_id,
    )


def read_counted(body: object, *loc: str | int) -> CompletionRequest:
    return _request(structure(CountedMessages, body, *loc), body, *loc)


def _request(parsed: CountedMessages, body: Any, *loc: str | int) -> CompletionRequest:
    tools = tuple(map(_tool, parsed.tools or ()))
    choice, several = _choice(parsed.tool_choice)
    known = frozenset(field.name for field in attrs.fields(type(parsed)))
    problems = [
        Problem((name,), f"is not a parameter of messages{nearest(name, known)}", "extra_forbidden")
        for name in body
        if name not in known
    ]
    problems += [attrs.evolve(one, loc=("tool_choice",)) for one in tool_choice_problems(choice, tools)]
    if problems:
        raise InvalidInput(problems).below(*loc)
    messages = messages_of(parsed.system, parsed.messages)
    return CompletionRequest(parsed.model, messages, tools=tools, tool_choice=choice, parallel_tool_calls=several)


def _tool(given: CustomTool) -> Tool:
    return Tool(given.name, given.description or "", given.input_schema, bool(given.strict))


def _choice(given: MessagesToolChoice | None) -> tuple[ToolChoice, bool]:
    if given is None:
        return ToolChoice(), True
    modes = {"auto": ToolMode.AUTO, "none": ToolMode.NONE}
    choice = ToolChoice(modes.get(given.type, ToolMode.REQUIRED), given.name)
    return choice, not given.disable_parallel_tool_use
