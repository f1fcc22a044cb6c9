"""A request in the messages format: its shape and bounds, read strictly."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

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
from modelyard.errors import InvalidInput
from modelyard.formats.chat.bounds import LONGEST_MODEL_NAME, MAX_TOKENS
from modelyard.formats.chat.hints import CACHED, QUEUED, CacheControl
from modelyard.formats.chat.tools import schema_format
from modelyard.formats.constraints import Length, Matching, Only, Unsupported, Within, hint
from modelyard.formats.converter import structure_exactly
from modelyard.parts.messages.formats.blocks import (
    CacheableBlock,
    TextBlock,
    Turn,
    blank_texts,
    messages_of,
    vendors_refusals,
)

_NAME = Matching("[A-Za-z0-9_-]{1,64}", "must be 1 to 64 characters of A-Z a-z 0-9 _ -")


@attrs.frozen
class CustomTool(CacheableBlock):
    """A tool that the client runs; `input_schema` is a JSON schema. Tools that the host would run are not there."""

    name: str = attrs.field(validator=_NAME)
    input_schema: Mapping[str, Any] = attrs.field()
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    defer_loading: object = attrs.field(
        default=None, validator=Only((False,), "must be false: models are given all tools")
    )
    allowed_callers: object = attrs.field(
        default=None, validator=Only((["direct"],), 'must be ["direct"]: only the model itself calls tools')
    )
    input_examples: object = attrs.field(
        default=None, validator=Only(([],), "is not supported: show examples in the description")
    )
    eager_input_streaming: bool | None = attrs.field(
        default=None, metadata=hint("the arguments of calls are always streamed as they come")
    )


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
    """Whether the model may reason before it answers. If it is "enabled", `budget_tokens` chooses the effort, as the
    fewest of `BUDGETS` that it does not exceed; no model counts how much it reasons. Reasoning is shown as it is.
    """

    type: Literal["disabled", "adaptive", "enabled"]
    display: Literal["summarized"] | None = None
    budget_tokens: int | None = attrs.field(default=None, validator=Within(1024, MAX_TOKENS))

    def __attrs_post_init__(self) -> None:
        if (self.type == "enabled") != (self.budget_tokens is not None):
            raise InvalidInput.at(
                "budget_tokens", msg='is required with the type "enabled", and only then', type="missing"
            )

    @property
    def effort(self) -> str | None:
        """The effort that stands for the budget, if there is one."""
        return next((effort for most, effort in BUDGETS if (self.budget_tokens or most + 1) <= most), None)


BUDGETS: tuple[tuple[int, str], ...] = ((4096, "low"), (16_384, "medium"), (MAX_TOKENS, "high"))
"""The most tokens of a budget, and the effort that it stands for."""


@attrs.frozen
class OutputSchema:
    """A demand that the text is JSON which is valid under a schema."""

    type: Literal["json_schema"]
    schema: Mapping[str, Any] = attrs.field()


@attrs.frozen
class OutputConfig:
    """How much the model reasons, if it has a choice, and the form of its text."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputSchema | None = None


@attrs.define(kw_only=True)
class CountedMessages:
    """The body of a request for the number of tokens. Null means the same as leaving a parameter out."""

    CALLED: ClassVar[str] = "messages"

    model: str = attrs.field(validator=Length(1, LONGEST_MODEL_NAME))
    messages: tuple[Turn, ...] = attrs.field(validator=Length(1, 100_000))
    system: str | tuple[TextBlock, ...] | None = None
    tools: tuple[CustomTool, ...] | None = attrs.field(default=None, validator=Length(0, 1024))
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    cache_control: CacheControl | None = attrs.field(default=None, metadata=hint(CACHED))
    output_config: OutputConfig | None = None
    output_format: OutputSchema | None = None
    thread: object = attrs.field(default=None, validator=Unsupported("is not supported: send the whole conversation"))

    def __attrs_post_init__(self) -> None:
        if self.output_format is not None and self.output_config is not None and self.output_config.format is not None:
            raise InvalidInput.at("output_format", msg="must be left out where output_config has a format")


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
    service_tier: Literal["auto", "standard_only"] | None = attrs.field(default=None, metadata=hint(QUEUED))
    container: object = attrs.field(default=None, validator=Unsupported("is not supported: there are no containers"))
    mcp_servers: object = attrs.field(default=None, validator=Unsupported("is not supported: send tools"))

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.stop_sequences and "" in self.stop_sequences:
            raise InvalidInput.at("stop_sequences", msg="must hold no empty string")


def read_messages_request(body: object, *loc: str | int, strict: bool = False) -> CompletionRequest:
    """Read a request. Raises `InvalidInput`; if it is `strict`, for what the vendor refuses, too."""
    parsed = structure_exactly(MessagesBody, body, *loc)
    request = _request(parsed, strict, *loc)
    given: dict[str, Any] = {"temperature": parsed.temperature, "top_p": parsed.top_p, "top_k": parsed.top_k}
    config = parsed.output_config or OutputConfig()
    form = config.format or parsed.output_format
    effort = config.effort or (None if parsed.thinking is None else parsed.thinking.effort)
    return attrs.evolve(
        request,
        extras={} if effort is None else {"reasoning_effort": effort},
        response_format=ResponseFormat() if form is None else schema_format(form.schema),
        sampling=Sampling(**{name: value for name, value in given.items() if value is not None}),
        max_tokens=parsed.max_tokens,
        stop=parsed.stop_sequences or (),
        streamed=bool(parsed.stream),
        user=None if parsed.metadata is None else parsed.metadata.user_id,
    )


def read_counted(body: object, *loc: str | int, strict: bool = False) -> CompletionRequest:
    return _request(structure_exactly(CountedMessages, body, *loc), strict, *loc)


def _request(parsed: CountedMessages, strict: bool, *loc: str | int) -> CompletionRequest:
    if strict and (refused := [*blank_texts(parsed.system, parsed.messages), *vendors_refusals(parsed.messages)]):
        raise InvalidInput(refused[:100]).below(*loc)
    tools = tuple(map(_tool, parsed.tools or ()))
    choice, several = _choice(parsed.tool_choice)
    problems = [attrs.evolve(one, loc=("tool_choice",)) for one in tool_choice_problems(choice, tools)]
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
