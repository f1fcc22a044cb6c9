"""An answer in the messages format: whole, and as the events of a stream in their order."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs

from modelyard.domain.completion import Choice, Completion, Delta, FinishReason, ToolCallDelta, Usage
from modelyard.errors import InvalidInput
from modelyard.formats.json import dumps, loads
from modelyard.parts.messages.formats.blocks import TextBlock, ThinkingBlock, ToolUseBlock

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]

_REASONS: Mapping[FinishReason, StopReason] = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.CONTENT_FILTER: "refusal",
}


# ---- the shape ---------------------------------------------------------------------------------------------------


@attrs.frozen
class MessagesUsage:
    """Tokens counted; those read from a cache are not among `input_tokens`."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int


@attrs.frozen
class AnsweredMessages:
    """An answer. With the reason "stop_sequence", `stop_sequence` names the sequence. If a server does not say at which
    sequence it ended the answer, the reason is "end_turn".
    """

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: tuple[TextBlock | ToolUseBlock | ThinkingBlock, ...]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage


@attrs.frozen
class MessagesEvent:
    """One event of a stream: `message_start`, `ping`, `content_block_start`, `content_block_delta`,
    `content_block_stop`, `message_delta`, `message_stop` or `error`, with the members of its type.
    """

    type: str
    index: int | None = None
    message: AnsweredMessages | None = None
    content_block: Mapping[str, Any] | None = None
    delta: Mapping[str, Any] | None = None
    usage: MessagesUsage | None = None
    error: Mapping[str, Any] | None = None


@attrs.frozen
class CountedTokens:
    """How many tokens a conversation has."""

    input_tokens: int


# ---- written -----------------------------------------------------------------------------------------------------


def messages_json(completion: Completion) -> bytes:
    (choice,) = completion.choices
    content: list[Mapping[str, Any]] = []
    if choice.message.reasoning:
        content.append(_thinking(choice.message.reasoning))
    if choice.message.text:
        content.append({"type": "text", "text": choice.message.text})
    for call in choice.message.tool_calls:
        content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)})
    stopped = _stopped(choice)
    return dumps({**_message(completion.id, completion.model, content, completion.usage), **stopped})


def _thinking(text: str) -> Mapping[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": ""}


def _stopped(ended: Choice | Delta) -> Mapping[str, str | None]:
    reason = ended.finish_reason or FinishReason.STOP
    if reason is FinishReason.STOP and ended.stop_string is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": ended.stop_string}
    return {"stop_reason": _REASONS[reason], "stop_sequence": None}


def _input(arguments: str) -> Any:
    """Return the arguments of a call; none if they were cut, or are not an object."""
    try:
        value = loads(arguments.encode())
    except InvalidInput:
        return {}
    return value if isinstance(value, dict) else {}


def _message(id: str, model: str, content: Iterable[Mapping[str, Any]], usage: Usage) -> Mapping[str, Any]:
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [*content],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(usage),
    }


def _usage(usage: Usage) -> Mapping[str, int]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
    }


def named_event(data: Mapping[str, Any]) -> bytes:
    written: bytes = f"event: {data['type']}\ndata: ".encode("ascii") + dumps(data) + b"\n\n"
    return written


class MessagesEvents:
    """The events of one streamed answer: each block begins, gets its deltas and ends before the next begins."""

    def __init__(self, id: str, model: str) -> None:
        self._begun = _message(id, model, (), Usage())
        self._started, self._index = False, -1
        self._open: object = None  # "thinking", "text", or the index of a tool call
        self._last = Delta()

    def of_all(self, deltas: Iterable[Delta]) -> bytes:
        start, self._started = b"" if self._started else self._start(), True
        return start + b"".join(map(self._of, deltas))

    def end(self, usage: Usage) -> bytes:
        ending = {"type": "message_delta", "delta": _stopped(self._last), "usage": _usage(usage)}
        return self._closed() + named_event(ending) + named_event({"type": "message_stop"})

    def _start(self) -> bytes:
        """Write the first events. Tokens are counted in the last event but one."""
        return named_event({"type": "message_start", "message": self._begun}) + named_event({"type": "ping"})

    def _of(self, delta: Delta) -> bytes:
        self._last = delta
        events = b""
        if delta.reasoning:
            events += self._block("thinking", _thinking(""))
            events += self._delta({"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.text:
            events += self._block("text", {"type": "text", "text": ""})
            events += self._delta({"type": "text_delta", "text": delta.text})
        if delta.tool_call is not None:
            events += self._piece(delta.tool_call)
        return events

    def _piece(self, piece: ToolCallDelta) -> bytes:
        block: dict[str, Any] = {"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}}
        events = self._block(piece.index, block)
        if piece.arguments:
            events += self._delta({"type": "input_json_delta", "partial_json": piece.arguments})
        return events

    def _block(self, kind: object, block: Mapping[str, Any]) -> bytes:
        """Begin a block of this kind, unless it is open."""
        if self._open == kind:
            return b""
        ended = self._closed()
        self._open, self._index = kind, self._index + 1
        return ended + named_event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        return named_event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _closed(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return named_event({"type": "content_block_stop", "index": self._index})
