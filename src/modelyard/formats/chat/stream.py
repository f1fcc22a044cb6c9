"""A streamed answer in the chat-completion format: the shape of its chunks, and their text."""

from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Literal

import attrs

from modelyard.domain.completion import Delta, ToolCallDelta, Usage
from modelyard.formats.chat.response import AnsweredUsage, Logprobs, json_text, logprobs_object, usage_text
from modelyard.formats.json import dumps

DONE = b"data: [DONE]\n\n"


def event(data: Mapping[str, Any]) -> bytes:
    """Write a server-sent event (HTML standard, 9.2.6)."""
    return b"data: " + dumps(data) + b"\n\n"


# ---- the shape ---------------------------------------------------------------------------------------------------


@attrs.frozen
class ChunkFunction:
    """A piece of a call; only the first has the name."""

    arguments: str
    name: str | None = None


@attrs.frozen
class ChunkToolCall:
    """A piece of a call; only the first has id and type."""

    index: int
    function: ChunkFunction
    id: str | None = None
    type: Literal["function"] | None = None


@attrs.frozen
class ChunkDelta:
    """The addition of a chunk to its choice."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: tuple[ChunkToolCall, ...] | None = None
    reasoning_content: str | None = None


@attrs.frozen
class ChunkChoice:
    """A piece of one choice."""

    index: int
    delta: ChunkDelta
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"] | None
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    stop_reason: str | None = None


@attrs.frozen
class ChatCompletionChunk:
    """One event of a streamed completion."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: AnsweredUsage | None = None


# ---- written -----------------------------------------------------------------------------------------------------


class Chunks:
    """The events of one streamed completion.

    With `with_usage` each carries a null `usage` until the last, which has the sum.
    """

    def __init__(
        self,
        id: str,
        created: int,
        model: str,
        *,
        with_usage: bool = False,
        with_logprobs: bool = False,
        with_ids: bool = False,
        as_ids: bool = False,
    ) -> None:
        self._head = {"id": id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._tail = {"usage": None} if with_usage else {}
        self._with_usage, self._with_logprobs, self._with_ids = with_usage, with_logprobs, with_ids
        self._as_ids = as_ids
        self._halves: dict[int, tuple[str, str]] = {}

    def of_all(self, deltas: Iterable[Delta]) -> bytes:
        """Write several deltas. Most have nothing but text, so that they differ in it alone."""
        details = self._with_logprobs or self._with_ids
        texts = []
        for delta in deltas:
            halves = self._halves.get(delta.index)
            if halves is None or details or delta.finish_reason is not None or delta.tool_call is not None:
                texts.append(self.of(delta).decode("ascii"))
            elif delta.reasoning:
                texts.append(self._reasoning(delta).decode("ascii"))
            elif text := delta.text:
                texts.append(f"{halves[0]}{quoted(text)}{halves[1]}")
        return "".join(texts).encode("ascii")

    def of(self, delta: Delta) -> bytes:
        """Write a delta: before a choice's first the role, then the content, and after its last the finish reason."""
        halves = self._halves.get(delta.index)
        if halves is None:
            return self._opening(delta) + self.of(delta)
        if delta.tool_call or (self._with_logprobs and delta.logprobs) or (self._with_ids and delta.token_ids):
            events = self._content(delta)
        elif delta.reasoning:
            events = self._reasoning(delta)
        else:
            events = f"{halves[0]}{quoted(delta.text)}{halves[1]}".encode("ascii") if delta.text else b""
        if delta.finish_reason is not None:
            stopped = {} if delta.stop_string is None else {"stop_reason": delta.stop_string}
            events += self._event({**_choice_chunk(delta.index, {}, delta.finish_reason), **stopped})
        return events

    def usage(self, usage: Usage) -> bytes:
        """Write the chunk with the usage, where it was requested."""
        if not self._with_usage:
            return b""
        head = json_text({**self._head, "choices": []})[:-1]
        return f'data: {head},"usage":{usage_text(usage)}}}\n\n'.encode("ascii")

    def end(self, usage: Usage) -> bytes:
        """Write what follows the last delta."""
        return self.usage(usage) + DONE

    def _opening(self, delta: Delta) -> bytes:
        """Write the role. The text chunks that follow differ in their text alone, so both halves around it are kept."""
        usual = self._event(_choice_chunk(delta.index, {"content": _MARK})).decode()
        before, _, after = usual.rpartition(quoted(_MARK))
        self._halves[delta.index] = before, after
        choice = _choice_chunk(delta.index, {"role": "assistant", "content": ""})
        if self._with_ids and delta.prompt_token_ids:
            choice["prompt_token_ids"] = list(delta.prompt_token_ids)
        return self._event(choice)

    def _reasoning(self, delta: Delta) -> bytes:
        """Write reasoning, and the text that comes with it, if any: most comes alone."""
        before, after = self._halves[delta.index]
        written = f'{before.removesuffix(_NAME)}"reasoning_content":{quoted(delta.reasoning)}{after}'.encode("ascii")
        return written + (f"{before}{quoted(delta.text)}{after}".encode("ascii") if delta.text else b"")

    def _content(self, delta: Delta) -> bytes:
        content: dict[str, Any] = {"reasoning_content": delta.reasoning} if delta.reasoning else {}
        if delta.text or not (delta.tool_call or delta.reasoning):
            content["content"] = delta.text
        if delta.tool_call is not None:
            content["tool_calls"] = [tool_call_piece(delta.tool_call)]
        choice = _choice_chunk(delta.index, content)
        if self._with_logprobs and delta.logprobs:
            choice["logprobs"] = logprobs_object(delta.logprobs, self._as_ids)
        if self._with_ids and delta.token_ids:
            choice["token_ids"] = list(delta.token_ids)
        return self._event(choice)

    def _event(self, choice: Mapping[str, Any]) -> bytes:
        return event({**self._head, "choices": [choice], **self._tail})


_MARK = "\0"
_NAME = '"content":'


def _choice_chunk(index: int, delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def tool_call_piece(piece: ToolCallDelta) -> dict[str, Any]:
    """Return the JSON of a piece of a call. Only the first piece has an id, a type and a name."""
    if piece.id is None:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"index": piece.index, "id": piece.id, "type": "function", "function": function}
