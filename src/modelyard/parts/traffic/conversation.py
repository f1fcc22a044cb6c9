"""Conversations read from traced calls: chat completions, responses, and spans about generative AI."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.completion import Choice, FinishReason, Message, Role, Tool
from modelyard.errors import InvalidInput
from modelyard.formats.chat.messages import RecordedMessage, RecordedTool, message_of, tool_of
from modelyard.formats.converter import structure
from modelyard.formats.json import dumps, without_nulls
from modelyard.parts.responses.formats.items import messages_of, read_items, stored_items

WHOLE = (FinishReason.STOP, FinishReason.TOOL_CALLS)
"""The finish reasons of answers that were not cut off."""

_ENDS = frozenset({*WHOLE, "tool_call", "end_turn"})

Exchange = tuple[tuple[Message, ...], tuple[Tool, ...], tuple[Choice, ...]]
"""The messages, the tools, and the answers."""

Conversation = tuple[str, tuple[Message, ...], tuple[Tool, ...], tuple[Choice, ...]]
"""The name of the model that was requested, the messages, the tools, and the answers."""


def conversation_of(inputs: Mapping[str, Any], output: Any) -> Conversation:
    """Read the inputs and the output of a call. Raises `InvalidInput` if no client of models sends such values."""
    inputs, output = without_nulls(inputs), without_nulls(output) if isinstance(output, Mapping) else {}
    model = str(inputs.get("model", output.get("model")))
    try:
        if output.get("object") == "response":
            return (model, *_of_response(inputs, output))
        if isinstance(output.get("choices"), list):
            return (model, *_of_chat(inputs, output["choices"]))
        if isinstance(output.get("messages"), list):
            return (model, *_of_span(inputs, output["messages"]))
    except (KeyError, TypeError, AttributeError):
        raise InvalidInput.at("inputs", msg="must be those of a request to a model") from None
    return model, (), (), ()


def tools_of(given: Any) -> tuple[Tool, ...]:
    return tuple(
        Tool(one["name"], one.get("description") or "", one.get("parameters") or {}, bool(one.get("strict")))
        for one in given or ()
        if one.get("type", "function") == "function"
    )


# ---- chat completions ------------------------------------------------------------------------------------------------


@attrs.frozen
class _TracedChoice:
    message: RecordedMessage
    finish_reason: str = FinishReason.STOP.value


def _of_chat(inputs: Mapping[str, Any], choices: Sequence[Any]) -> Exchange:
    messages = tuple(map(message_of, structure(tuple[RecordedMessage, ...], inputs.get("messages", []))))
    tools = tuple(map(tool_of, structure(tuple[RecordedTool, ...], inputs.get("tools", []))))
    read = [structure(_TracedChoice, one) for one in choices if messages]
    answers = (Choice(at, message_of(one.message), _end(one.finish_reason)) for at, one in enumerate(read))
    return messages, tools, tuple(answers)


def _end(reason: object) -> FinishReason:
    return FinishReason.STOP if reason in _ENDS else FinishReason.LENGTH


# ---- responses -------------------------------------------------------------------------------------------------------


def _of_response(inputs: Mapping[str, Any], output: Mapping[str, Any]) -> Exchange:
    """Read a response with its input; nothing if it continues another, because the rest is not in the call."""
    asked, instructions = inputs.get("input"), inputs.get("instructions")
    if inputs.get("previous_response_id") or not asked:
        return (), (), ()
    before = (Message(Role.SYSTEM, instructions),) if isinstance(instructions, str) else ()
    answered = messages_of(stored_items(output.get("output", [])))
    reason = FinishReason.STOP if output.get("status", "completed") == "completed" else FinishReason.LENGTH
    messages = (*before, *messages_of(read_items(asked)))
    return messages, tools_of(inputs.get("tools")), tuple(Choice(0, one, reason) for one in answered[-1:])


# ---- spans -----------------------------------------------------------------------------------------------------------


def _of_span(inputs: Mapping[str, Any], answers: Sequence[Any]) -> Exchange:
    """Read messages in the conventions of OpenTelemetry: a role, and parts that are texts, calls and their results."""
    system = inputs.get("system_instructions")
    before = [{"role": "system", "parts": system if isinstance(system, list) else [system]}] if system else []
    messages = tuple(message for one in [*before, *inputs.get("messages", [])] for message in _messages_of(one))
    choices = [
        Choice(at, message, _end(one.get("finish_reason", FinishReason.STOP.value)))
        for at, one in enumerate(answers)
        for message in _messages_of(one)
    ]
    tools = structure(tuple[RecordedTool, ...], [_function(one) for one in inputs.get("tools", [])])
    return messages, tuple(map(tool_of, tools)), tuple(choices)


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    named = {name: tool[name] for name in ("name", "description", "parameters") if name in tool}
    return tool if "function" in tool else {"type": "function", "function": named}


def _messages_of(one: Any) -> Sequence[Message]:
    """Read a message of a span; results of tool calls become a message each."""
    if not isinstance(one, Mapping):
        raise InvalidInput.at("messages", msg="must be objects")
    parts = one.get("parts", [{"type": "text", "content": one.get("content", "")}])
    parts = [{"type": "text", "content": part} if isinstance(part, str) else part for part in parts]
    texts, calls, results = list[str](), list[Any](), list[Any]()
    for part in parts:
        kind = part.get("type")
        if kind == "text":
            texts.append(str(part.get("content", "")))
        elif kind == "tool_call":
            called = {"name": part.get("name"), "arguments": _as_text(part.get("arguments", {}))}
            calls.append({"id": str(part.get("id", "")), "type": "function", "function": called})
        elif kind == "tool_call_response":
            content = _as_text(part.get("response", part.get("result", "")))
            results.append({"role": "tool", "tool_call_id": str(part.get("id", "")), "content": content})
        elif kind != "reasoning":
            raise InvalidInput.at("messages", msg=f"has a part of the type {kind}")
    whole = {"role": one.get("role"), "content": "\n".join(texts), **({"tool_calls": calls} if calls else {})}
    raw = results or [whole]
    return [message_of(read) for read in structure(tuple[RecordedMessage, ...], raw)]


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value).decode()
