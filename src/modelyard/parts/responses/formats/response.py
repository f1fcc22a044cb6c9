"""A response: its shape, and its JSON."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal

import attrs

from modelyard.domain.completion import Choice, FinishReason, TokenLogprob, Usage
from modelyard.formats.chat.response import TokenEntry, logprobs_object
from modelyard.parts.responses.records import ModelResponse, item_id

Json = dict[str, Any]

# ---- the shape ---------------------------------------------------------------------------------------------------


@attrs.frozen
class AnsweredText:
    """A text of an answer."""

    type: Literal["output_text"]
    text: str
    annotations: tuple[Any, ...]
    logprobs: tuple[TokenEntry, ...]


@attrs.frozen
class OutputMessage:
    """A message of the model."""

    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: Literal["in_progress", "completed", "incomplete"]
    content: tuple[AnsweredText, ...]


@attrs.frozen
class OutputCall:
    """A call of a function; `arguments` is JSON text, as the model wrote it."""

    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: Literal["in_progress", "completed", "incomplete"]


@attrs.frozen
class AnsweredReasoning:
    """A text of the model's reasoning."""

    type: Literal["reasoning_text"]
    text: str


@attrs.frozen
class OutputReasoning:
    """The reasoning before the model's answer. No summary of it is made."""

    type: Literal["reasoning"]
    id: str
    status: Literal["in_progress", "completed", "incomplete"]
    summary: tuple[Any, ...]
    content: tuple[AnsweredReasoning, ...]


OutputItem = OutputReasoning | OutputMessage | OutputCall


@attrs.frozen
class InputTokens:
    """How much of the input was read from a cache."""

    cached_tokens: int
    cache_write_tokens: int


@attrs.frozen
class OutputTokens:
    """How much of the output is reasoning, if that is known."""

    reasoning_tokens: int


@attrs.frozen
class ResponseUsage:
    """The number of tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokens
    output_tokens: int
    output_tokens_details: OutputTokens
    total_tokens: int


@attrs.frozen
class ResponseFailure:
    """The reason why a response failed."""

    code: str
    message: str


@attrs.frozen
class Incompleteness:
    """The reason why a response is incomplete."""

    reason: Literal["max_output_tokens", "content_filter"]


@attrs.frozen
class ResponseObject:
    """A response, with the parameters of its request. Times are in Unix seconds."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    model: str
    output: tuple[OutputItem, ...]
    error: ResponseFailure | None
    incomplete_details: Incompleteness | None
    usage: ResponseUsage | None
    previous_response_id: str | None
    instructions: str | None
    metadata: Mapping[str, str]
    background: bool
    store: bool
    max_output_tokens: int | None
    max_tool_calls: int | None
    parallel_tool_calls: bool
    temperature: float
    top_p: float
    top_logprobs: int
    tool_choice: Any
    tools: tuple[Mapping[str, Any], ...]
    text: Mapping[str, Any]
    reasoning: Mapping[str, Any]
    truncation: Literal["auto", "disabled"]
    service_tier: str | None
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None


@attrs.frozen
class DeletedResponse:
    """A response that was deleted."""

    id: str
    object: Literal["response"]
    deleted: bool


@attrs.frozen
class CountedInput:
    """How many tokens an input has."""

    input_tokens: int
    object: Literal["response.input_tokens"]


# ---- written -----------------------------------------------------------------------------------------------------

_DEFAULTS: Mapping[str, Any] = {
    "instructions": None,
    "background": False,
    "store": True,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_logprobs": 0,
    "tool_choice": "auto",
    "truncation": "disabled",
    "service_tier": None,
    "user": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
}


def response_object(response: ModelResponse) -> Json:
    given = response.parameters
    shown = {name: given.get(name, default) for name, default in _DEFAULTS.items()}
    text, reasoning = given.get("text", {}), given.get("reasoning", {})
    return {
        "id": response.id,
        "object": "response",
        "created_at": _seconds(response.created_at),
        "completed_at": None if response.completed_at is None else _seconds(response.completed_at),
        "status": response.status.value,
        "model": response.model,
        "output": list(response.output),
        "error": dict(response.error) or None,
        "incomplete_details": {"reason": response.reason} if response.reason else None,
        "usage": dict(response.usage) or None,
        "previous_response_id": response.previous_id or None,
        "metadata": dict(response.metadata),
        **shown,
        "tools": [_tool(tool) for tool in given.get("tools", ())],
        "text": {**text, "format": text.get("format") or {"type": "text"}},
        "reasoning": {"effort": None, "summary": None, **reasoning},
    }


def _seconds(moment: datetime) -> int:
    return int(moment.timestamp())


def _tool(tool: Mapping[str, Any]) -> Json:
    return {"parameters": None, "strict": None, "description": None, **tool}


def usage_object(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def reason_of(finish: FinishReason) -> str:
    """Return why a response that ended so is incomplete; "" if it is complete."""
    reasons = {FinishReason.LENGTH: "max_output_tokens", FinishReason.CONTENT_FILTER: "content_filter"}
    return reasons.get(finish, "")


def output_of(choice: Choice, response_id: str) -> tuple[Json, ...]:
    """Return the items of an answer that was not streamed: its reasoning and its text, if any, and then its calls."""
    message, items = choice.message, list[Json]()
    if message.reasoning:
        items.append(reasoning_item(item_id("rs", response_id, 0), message.reasoning))
    if message.text or not (items or message.tool_calls):
        logprobs = [] if choice.logprobs is None else logprobs_of(choice.logprobs)
        items.append(message_item(item_id("msg", response_id, len(items)), message.text, logprobs))
    for call in message.tool_calls:
        items.append(call_item(item_id("fc", response_id, len(items)), call.id, call.name, call.arguments))
    if reason_of(choice.finish_reason):
        items[-1]["status"] = "incomplete"
    return tuple(items)


def logprobs_of(entries: Sequence[TokenLogprob]) -> list[Any]:
    """Return the JSON of log-probabilities. The encoder asks Python for each, so that other threads have their turn."""
    return list(map(MappingProxyType, logprobs_object(entries)["content"]))


def reasoning_item(id: str, text: str, status: str = "completed") -> Json:
    return {"id": id, "type": "reasoning", "status": status, "summary": [], "content": [reasoning_part(text)]}


def reasoning_part(text: str) -> Json:
    return {"type": "reasoning_text", "text": text}


def message_item(id: str, text: str, logprobs: list[Any], status: str = "completed") -> Json:
    content = [text_part(text, logprobs)]
    return {"id": id, "type": "message", "status": status, "role": "assistant", "content": content}


def text_part(text: str, logprobs: list[Any]) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def call_item(id: str, call_id: str, name: str, arguments: str, status: str = "completed") -> Json:
    call = {"call_id": call_id, "name": name, "arguments": arguments}
    return {"id": id, "type": "function_call", "status": status, **call}
