"""A request in the chat-completion format: its shape and bounds, read strictly."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, cast

import attrs

from modelyard.domain.completion import (
    ANSWER_EXTRAS,
    SAMPLING_PARAMETERS,
    CompletionRequest,
    Message,
    ResponseFormat,
    ResponseType,
    tool_choice_problems,
)
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.chat.bounds import LONGEST_MODEL_NAME, NUMBERS, ParsedRequest, number_fields
from modelyard.formats.chat.hints import (
    CACHED,
    GUESSED,
    IDENTIFIES,
    PADDED,
    QUEUED,
    WITHOUT_EFFECT,
    CacheOptions,
    Effort,
    Retention,
    ServiceTier,
    Verbosity,
    sent,
)
from modelyard.formats.chat.messages import ChatMessage, TextPart, read_messages
from modelyard.formats.chat.tools import (
    AllowedTools,
    FunctionTool,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedToolChoice,
    StructuredOutputs,
    TextFormat,
    allowed_tools,
    read_response_format,
    read_structured_outputs,
    read_tool,
    read_tool_choice,
    schema_format,
)
from modelyard.formats.constraints import Length, Only, Unsupported, Within, hint
from modelyard.formats.converter import structure_exactly

_SHORT = Length(0, 1024)

# ---- the shape ---------------------------------------------------------------------------------------------------


@attrs.frozen
class StreamOptions:
    """Options of a stream. `include_usage` adds a last chunk with the usage."""

    include_usage: bool = False
    include_obfuscation: bool | None = attrs.field(default=None, metadata=hint(PADDED))
    continuous_usage_stats: object = attrs.field(
        default=None, validator=Only((False,), "must be false: the last chunk has the usage")
    )


@attrs.frozen
class PredictedText:
    """Text that the answer may repeat."""

    type: Literal["content"]
    content: str | tuple[TextPart, ...]


@attrs.frozen
class EngineDetails:
    """What an answer is to tell of the engine that made it, as servers of one kind do. Answers here tell nothing."""

    extra_fields: tuple[str, ...] = ()


def read_prediction(raw: Any) -> Mapping[str, Any]:
    """Check a prediction, and return it as it is sent to servers."""
    structure_exactly(PredictedText, raw)
    return cast("Mapping[str, Any]", raw)


def _bounds(name: str) -> Within:
    return Within(*NUMBERS[name])


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


def check_metadata(instance: object, attribute: Any, value: Mapping[str, str] | None) -> None:
    """Check the metadata of a request, as a validator does."""
    if len(value or {}) > 16 or any(len(key) > 64 or len(text) > 512 for key, text in (value or {}).items()):
        raise ValueError("must have at most 16 members, with names of at most 64 and values of at most 512 characters")


@attrs.define(kw_only=True)
class GenerationBody:
    """The members that requests for a chat completion and for the completion of a prompt have in common."""

    model: str = attrs.field(validator=Length(1, LONGEST_MODEL_NAME))
    temperature: float | None = attrs.field(default=None, validator=_bounds("temperature"))
    top_p: float | None = attrs.field(default=None, validator=_bounds("top_p"))
    top_k: int | None = attrs.field(default=None, validator=_bounds("top_k"))
    min_p: float | None = attrs.field(default=None, validator=_bounds("min_p"))
    frequency_penalty: float | None = attrs.field(default=None, validator=_bounds("frequency_penalty"))
    presence_penalty: float | None = attrs.field(default=None, validator=_bounds("presence_penalty"))
    repetition_penalty: float | None = attrs.field(default=None, validator=_bounds("repetition_penalty"))
    logit_bias: Mapping[str, float] | None = attrs.field(default=None, validator=_check_bias)
    seed: int | None = attrs.field(default=None, validator=_bounds("seed"))
    min_tokens: int | None = attrs.field(default=None, validator=_bounds("min_tokens"))
    ignore_eos: bool | None = None
    stop_token_ids: tuple[int, ...] | None = attrs.field(default=None, validator=Length(0, 128))
    n: int | None = attrs.field(default=None, validator=_bounds("n"))
    stop: str | tuple[str, ...] | None = attrs.field(default=None, validator=_check_stop)
    return_token_ids: bool | None = None
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Mapping[str, Any] | str | None = None
    guided_choice: tuple[str, ...] | None = attrs.field(default=None, validator=Length(1, 1024))
    guided_regex: str | None = attrs.field(default=None, validator=Length(1, 10_000))
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = attrs.field(default=None, validator=_SHORT)
    nvext: EngineDetails | None = attrs.field(
        default=None, metadata=hint("answers tell nothing of the engine that made them")
    )


@attrs.define(kw_only=True)
class ChatRequest(GenerationBody):
    """The body of a request (specification 2.2). Null means the same as leaving a parameter out."""

    CALLED: ClassVar[str] = "a chat completion"

    messages: tuple[ChatMessage, ...] = attrs.field(validator=Length(1), metadata={"parser": read_messages})
    max_tokens: int | None = attrs.field(default=None, validator=_bounds("max_tokens"))
    max_completion_tokens: int | None = attrs.field(default=None, validator=_bounds("max_completion_tokens"))
    logprobs: bool | None = None
    top_logprobs: int | None = attrs.field(default=None, validator=Within(0, 20))
    return_tokens_as_token_ids: bool | None = None
    tools: tuple[FunctionTool, ...] | None = attrs.field(default=None, validator=Length(1, 1024))
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    modalities: tuple[Literal["text"], ...] | None = None
    metadata: Mapping[str, str] | None = attrs.field(default=None, validator=check_metadata)
    store: bool | None = None
    chat_template_kwargs: Mapping[str, Any] | None = attrs.field(default=None, validator=Length(0, 64))
    reasoning_effort: Effort | None = None
    verbosity: Verbosity | None = None
    safety_identifier: str | None = attrs.field(default=None, validator=_SHORT, metadata=hint(IDENTIFIES))
    service_tier: ServiceTier | None = attrs.field(default=None, metadata=hint(QUEUED))
    prompt_cache_key: str | None = attrs.field(default=None, validator=_SHORT, metadata=hint(CACHED))
    prompt_cache_options: CacheOptions | None = attrs.field(default=None, metadata=hint(CACHED))
    prompt_cache_retention: Retention | None = attrs.field(default=None, metadata=hint(CACHED))
    prediction: Mapping[str, Any] | None = attrs.field(
        default=None, metadata={"parser": read_prediction, "described_as": PredictedText, **hint(GUESSED)}
    )
    audio: object = attrs.field(default=None, validator=Unsupported("is not supported: answers are text"))
    web_search_options: object = attrs.field(
        default=None, validator=Unsupported("is not supported: models do not search")
    )
    functions: object = attrs.field(default=None, validator=Unsupported("is not supported any more: send tools"))
    function_call: object = attrs.field(
        default=None, validator=Unsupported("is not supported any more: send tool_choice")
    )


# ---- read --------------------------------------------------------------------------------------------------------

PARAMETERS = frozenset(field.name for field in attrs.fields(ChatRequest))

_OF_ALL = ("model", "return_token_ids", "user")
_OF_CHATS = ("logprobs", "top_logprobs", "parallel_tool_calls", "metadata", "store")
_EXTRAS = (*ANSWER_EXTRAS, *WITHOUT_EFFECT)
_SAMPLED = frozenset({*NUMBERS, *SAMPLING_PARAMETERS})
_FORMS = ("response_format", "structured_outputs", "guided_json", "guided_choice", "guided_regex")


def read_request(body: object, *loc: str | int, details: bool = False) -> ParsedRequest:
    """Read the JSON of a request.

    With `details`, the answer shows log-probabilities unless they were declined, and token ids always. Raises
    `InvalidInput` naming every problem and every unknown member at any depth, each located below `loc`.
    """
    parsed = structure_exactly(ChatRequest, body, *loc)
    assert isinstance(body, dict)
    try:
        request = _request(parsed, body)
    except InvalidInput as error:
        raise error.below(*loc) from None
    with_logprobs = details if parsed.logprobs is None else parsed.logprobs
    problems = [*_contradictions(parsed, with_logprobs), *tool_choice_problems(request.tool_choice, request.tools)]
    if problems:
        raise InvalidInput(problems).below(*loc)
    with_usage = parsed.stream_options is not None and parsed.stream_options.include_usage
    with_ids, as_ids = details or bool(parsed.return_token_ids), bool(parsed.return_tokens_as_token_ids)
    return ParsedRequest(request, with_logprobs, with_ids, with_usage, as_ids)


def _contradictions(parsed: ChatRequest, with_logprobs: bool) -> list[Problem]:
    """Return the problems that single parameters do not show."""
    limit = parsed.max_tokens if parsed.max_completion_tokens is None else parsed.max_completion_tokens
    problems = contradictions(parsed, limit)
    if parsed.top_logprobs and not with_logprobs:
        problems.append(Problem(("top_logprobs",), "needs logprobs: true"))
    return problems


def contradictions(parsed: GenerationBody, limit: int | None) -> list[Problem]:
    """Return the problems that single parameters do not show; `limit` is the most tokens that were asked for."""
    problems = []
    if parsed.stream_options is not None and not parsed.stream:
        problems.append(Problem(("stream_options",), "needs stream: true"))
    if parsed.min_tokens and limit is not None and parsed.min_tokens > limit:
        problems.append(Problem(("min_tokens",), f"must be at most {limit}, the most tokens that were asked for"))
    forms = [name for name in _FORMS if getattr(parsed, name) is not None]
    problems += [Problem((name,), f"cannot be combined with {forms[0]}") for name in forms[1:]]
    return problems


def _request(parsed: ChatRequest, names: Iterable[str]) -> CompletionRequest:
    """Return the request of a body that has members of these names."""
    fields = generation_fields(parsed, names) | _given(parsed, _OF_CHATS)
    if parsed.tools is not None:
        fields["tools"] = allowed_tools([read_tool(tool) for tool in parsed.tools], parsed.tool_choice)
    if parsed.tool_choice is not None:
        fields["tool_choice"] = read_tool_choice(parsed.tool_choice)
    return CompletionRequest(**fields, messages=cast("tuple[Message, ...]", parsed.messages), extras=extras_of(parsed))


def extras_of(parsed: object) -> dict[str, Any]:
    """Return what is sent to servers as it is."""
    return {name: sent(value) for name, value in _given(parsed, _EXTRAS).items()}


def generation_fields(parsed: GenerationBody, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a request that the members of these names make, but for those that only chats have."""
    numbers = _given(parsed, [name for name in names if name in _SAMPLED])
    if "logit_bias" in numbers:
        numbers["logit_bias"] = {int(token): bias for token, bias in numbers["logit_bias"].items()}
    fields = _given(parsed, _OF_ALL) | number_fields(numbers) | {"streamed": bool(parsed.stream)}
    if parsed.stop is not None:
        fields["stop"] = (parsed.stop,) if isinstance(parsed.stop, str) else parsed.stop
    form = _form(parsed)
    return fields if form is None else fields | {"response_format": form}


def _given(parsed: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the members of these names that are there."""
    return {name: value for name in names if (value := getattr(parsed, name, None)) is not None}


def _form(parsed: GenerationBody) -> ResponseFormat | None:
    """Return the form of the answer, in whichever words it was requested."""
    if parsed.response_format is not None:
        return read_response_format(parsed.response_format)
    if parsed.structured_outputs is not None:
        return read_structured_outputs(parsed.structured_outputs, "structured_outputs")
    if parsed.guided_json is not None:
        return schema_format(parsed.guided_json, "guided_json")
    if parsed.guided_choice is not None:
        return ResponseFormat(ResponseType.CHOICE, choices=parsed.guided_choice)
    return None if parsed.guided_regex is None else ResponseFormat(ResponseType.REGEX, pattern=parsed.guided_regex)
