"""An answer in the messages format: whole, and as the events of a stream in their order."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs

from modelyard.domain.completion import Choice, Completion, Delta, FinishReason, ToolCall, ToolCallDelta, Usage
from modelyard.errors import BackendError
from modelyard.formats.json import dumps
from modelyard.parts.call_arguments import is_json
from modelyard.parts.messages.errors import messages_body
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
    """Write an answer. A call that the token limit cut is left out, as its arguments cannot be written.

    Raises `BackendError` for other arguments that are not JSON.
    """
    (choice,) = completion.choices
    blocks: list[bytes] = []
    if choice.message.reasoning:
        blocks.append(dumps(_thinking(choice.message.reasoning)))
    if choice.message.text:
        blocks.append(dumps({"type": "text", "text": choice.message.text}))
    blocks += [_call(call) for call in _whole_calls(choice)]
    message = {**_message(completion.id, completion.model, (), completion.usage), **_stopped(choice)}
    before, content, after = dumps(message).partition(_CONTENT)
    return b"".join([before, content[:-1], b",".join(blocks), content[-1:], after])


_CONTENT = b'"content":[]'
"""What no string of a JSON text can hold, as its quotes would be escaped."""


def _whole_calls(choice: Choice) -> list[ToolCall]:
    calls = list(choice.message.tool_calls)
    if choice.finish_reason is FinishReason.LENGTH and calls and not is_json(calls[-1].arguments):
        calls.pop()
    for call in calls:
        if not _is_input(call.arguments):
            raise _unusable(call.name)
    return calls


def _call(call: ToolCall) -> bytes:
    """Write a call. Its arguments stand as the model wrote them, so that a parser of any precision gets them whole."""
    given = b"{}" if _is_none(call.arguments) else call.arguments.encode()
    return dumps({"type": "tool_use", "id": call.id, "name": call.name})[:-1] + b',"input":' + given + b"}"


def _is_none(arguments: str) -> bool:
    """Return whether a call has no arguments, as models write it."""
    return arguments.strip() in ("", "null")


def _is_input(arguments: str) -> bool:
    return _is_none(arguments) or is_json(arguments)


def _unusable(name: str) -> BackendError:
    return BackendError(f"the model called {name} with arguments that are not JSON; ask again, or in the chat format")


def _thinking(text: str) -> Mapping[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": ""}


def _stopped(ended: Choice | Delta) -> Mapping[str, str | None]:
    reason = ended.finish_reason or FinishReason.STOP
    if reason is FinishReason.STOP and ended.stop_string is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": ended.stop_string}
    return {"stop_reason": _REASONS[reason], "stop_sequence": None}


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


@attrs.define(eq=False)
class _Block:
    """A block of a stream. `waiting` are the deltas that come once the blocks before it have ended."""

    kind: object  # "thinking", "text", or the index of a call
    begun: Mapping[str, Any]
    waiting: list[Mapping[str, Any]] = attrs.field(factory=list)
    started: bool = False
    arguments: list[str] = attrs.field(factory=list)

    @property
    def whole(self) -> bool:
        """Whether nothing more belongs to it, once another block begins."""
        return type(self.kind) is str or is_json("".join(self.arguments))


class MessagesEvents:
    """The events of one streamed answer: each block begins, gets its deltas and ends before the next begins.

    The pieces of calls that a model writes at the same time wait for the end of the calls before.
    """

    def __init__(self, id: str, model: str) -> None:
        self._begun = _message(id, model, (), Usage())
        self._started, self._index = False, -1
        self._open: deque[_Block] = deque()
        self._calls: dict[int, _Block] = {}
        self._last = Delta()

    def of_all(self, deltas: Iterable[Delta]) -> bytes:
        start, self._started = b"" if self._started else self._start(), True
        return start + b"".join(map(self._of, deltas))

    def end(self, usage: Usage) -> bytes:
        """Return the last events; arguments that are not JSON, and were not cut by the token limit, are an error."""
        ended = b""
        while self._open:
            ended += self._shown(self._open[0]) + self._closed()
        unusable = [call.begun["name"] for call in self._calls.values() if not _is_input("".join(call.arguments))]
        if unusable and self._last.finish_reason is not FinishReason.LENGTH:
            return ended + named_event(messages_body(_unusable(unusable[0]), 502))
        ending = {"type": "message_delta", "delta": _stopped(self._last), "usage": _usage(usage)}
        return ended + named_event(ending) + named_event({"type": "message_stop"})

    def _start(self) -> bytes:
        """Write the first events. Tokens are counted in the last event but one."""
        return named_event({"type": "message_start", "message": self._begun}) + named_event({"type": "ping"})

    def _of(self, delta: Delta) -> bytes:
        self._last = delta
        events = b""
        if delta.reasoning:
            events += self._text(_thinking(""), {"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.text:
            events += self._text({"type": "text", "text": ""}, {"type": "text_delta", "text": delta.text})
        if delta.tool_call is not None:
            events += self._piece(delta.tool_call)
        return events

    def _text(self, begun: Mapping[str, Any], delta: Mapping[str, Any]) -> bytes:
        if not self._open or self._open[-1].kind != begun["type"]:
            self._open.append(_Block(begun["type"], begun))
        self._open[-1].waiting.append(delta)
        return self._ready()

    def _piece(self, piece: ToolCallDelta) -> bytes:
        call = self._calls.get(piece.index)
        if call is None:
            begun: Mapping[str, Any] = {"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}}
            call = self._calls[piece.index] = _Block(piece.index, begun)
            self._open.append(call)
        if piece.arguments and (call.arguments or not _is_none(piece.arguments)):
            call.waiting.append({"type": "input_json_delta", "partial_json": piece.arguments})
            call.arguments.append(piece.arguments)
        return self._ready()

    def _ready(self) -> bytes:
        """Write what does not have to wait for the end of a block before."""
        events = self._shown(self._open[0])
        while len(self._open) > 1 and self._open[0].whole:
            events += self._closed() + self._shown(self._open[0])
        return events

    def _shown(self, block: _Block) -> bytes:
        events = b""
        if not block.started:
            block.started, self._index = True, self._index + 1
            events += named_event({"type": "content_block_start", "index": self._index, "content_block": block.begun})
        for delta in block.waiting:
            events += named_event({"type": "content_block_delta", "index": self._index, "delta": delta})
        block.waiting.clear()
        return events

    def _closed(self) -> bytes:
        self._open.popleft()
        return named_event({"type": "content_block_stop", "index": self._index})
