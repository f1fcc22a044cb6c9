"""A chat completion as it is answered: whole, or as the chunks of a stream."""

from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Literal

import attrs

from modelyard.domain.completion import Choice, Completion, Delta, Message, TokenLogprob, ToolCall, ToolCallDelta, Usage
from modelyard.http.message import dump

# ---- shapes ------------------------------------------------------------------------------------------------------


@attrs.frozen
class AnsweredFunction:
    """A function and its arguments as JSON text."""

    name: str
    arguments: str


@attrs.frozen
class AnsweredToolCall:
    """A call that the model asks for."""

    id: str
    type: Literal["function"]
    function: AnsweredFunction


@attrs.frozen
class AnsweredMessage:
    """What the model said. `content` is null only beside tool calls."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: tuple[AnsweredToolCall, ...] | None = None


@attrs.frozen
class TopLogprob:
    """A token that might have been sampled."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None


@attrs.frozen
class TokenEntry:
    """A sampled token. An end-of-turn token has an empty text."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None
    top_logprobs: tuple[TopLogprob, ...]


@attrs.frozen
class Logprobs:
    """One entry per sampled token."""

    content: tuple[TokenEntry, ...]


@attrs.frozen
class AnsweredChoice:
    """One answer. Token ids are given on the training interface, elsewhere with `return_token_ids`."""

    index: int
    message: AnsweredMessage
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]
    logprobs: Logprobs | None
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None


@attrs.frozen
class PromptTokens:
    """What of the prompt was read from a cache."""

    cached_tokens: int


@attrs.frozen
class AnsweredUsage:
    """Tokens counted, over all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens | None = None


@attrs.frozen
class ChatCompletion:
    """A finished completion (specification 2.2)."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: tuple[AnsweredChoice, ...]
    usage: AnsweredUsage


@attrs.frozen
class ChunkFunction:
    """A piece of a call; the name in its first piece alone."""

    arguments: str
    name: str | None = None


@attrs.frozen
class ChunkToolCall:
    """A piece of a call; id and type in its first piece alone."""

    index: int
    function: ChunkFunction
    id: str | None = None
    type: Literal["function"] | None = None


@attrs.frozen
class ChunkDelta:
    """What a chunk adds to its choice."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: tuple[ChunkToolCall, ...] | None = None


@attrs.frozen
class ChunkChoice:
    """A chunk's piece of one choice."""

    index: int
    delta: ChunkDelta
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"] | None
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None


@attrs.frozen
class ChatCompletionChunk:
    """One event of a streamed completion."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: AnsweredUsage | None = None


# ---- the whole answer --------------------------------------------------------------------------------------------


def completion_json(completion: Completion, with_logprobs: bool, with_ids: bool) -> bytes:
    """The answer of a request that does not stream.

    What every answer has is written straight into its place: that costs a third of making dicts and encoding them.
    """
    choices = ",".join([_choice(choice, with_logprobs, with_ids) for choice in completion.choices])
    return (
        f'{{"id":{quoted(completion.id)},"object":"chat.completion","created":{completion.created},'
        f'"model":{quoted(completion.model)},"choices":[{choices}],"usage":{_usage(completion.usage)}}}'
    ).encode("ascii")


def _choice(choice: Choice, with_logprobs: bool, with_ids: bool) -> str:
    logprobs = _json(logprobs_body(choice.logprobs)) if with_logprobs and choice.logprobs is not None else "null"
    ids = _ids(choice) if with_ids else ""
    return (
        f'{{"index":{choice.index},"message":{_message(choice.message)},'
        f'"finish_reason":"{choice.finish_reason}","logprobs":{logprobs}{ids}}}'
    )


def _ids(choice: Choice) -> str:
    tokens, prompt = _json(choice.token_ids or None), _json(choice.prompt_token_ids or None)
    return f',"token_ids":{tokens},"prompt_token_ids":{prompt}'


def _message(message: Message) -> str:
    content = "null" if message.content is None else quoted(message.text)
    calls = f',"tool_calls":{_json([_called(call) for call in message.tool_calls])}' if message.tool_calls else ""
    return f'{{"role":"assistant","content":{content}{calls}}}'


def _called(call: ToolCall) -> Mapping[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(usage: Usage) -> str:
    details = f',"prompt_tokens_details":{{"cached_tokens":{usage.cached_tokens}}}' if usage.cached_tokens else ""
    return (
        f'{{"prompt_tokens":{usage.prompt_tokens},"completion_tokens":{usage.completion_tokens},'
        f'"total_tokens":{usage.total_tokens}{details}}}'
    )


def _json(value: object) -> str:
    return dump(value).decode("ascii")


def logprobs_body(entries: Sequence[TokenLogprob]) -> Mapping[str, Any]:
    """Token by token."""
    return {"content": [{**_token(entry), "top_logprobs": [_token(other) for other in entry.top]} for entry in entries]}


def _token(entry: TokenLogprob) -> dict[str, Any]:
    return {
        "token": entry.token,
        "logprob": entry.logprob,
        "bytes": None if entry.bytes is None else list(entry.bytes),
    }


# ---- the chunks of a stream --------------------------------------------------------------------------------------

DONE = b"data: [DONE]\n\n"


def event(data: Mapping[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + dump(data) + b"\n\n"


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
    ) -> None:
        self._head = {"id": id, "object": "chat.completion.chunk", "created": created, "model": model}
        self._tail = {"usage": None} if with_usage else {}
        self._with_usage, self._with_logprobs, self._with_ids = with_usage, with_logprobs, with_ids
        self._halves: dict[int, tuple[str, str]] = {}

    def of(self, delta: Delta) -> bytes:
        """What one delta says: at a choice's first the role, then its content, and at its last the reason."""
        halves = self._halves.get(delta.index)
        if halves is None:
            return self._opening(delta) + self.of(delta)
        if delta.tool_call or (self._with_logprobs and delta.logprobs) or (self._with_ids and delta.token_ids):
            events = self._content(delta)
        else:
            events = f"{halves[0]}{quoted(delta.text)}{halves[1]}".encode("ascii") if delta.text else b""
        if delta.finish_reason is not None:
            events += self._event(_choice_chunk(delta.index, {}, delta.finish_reason))
        return events

    def usage(self, usage: Usage) -> bytes:
        """The chunk with the usage, where it was asked for."""
        if not self._with_usage:
            return b""
        head = _json({**self._head, "choices": []})[:-1]
        return f'data: {head},"usage":{_usage(usage)}}}\n\n'.encode("ascii")

    def _opening(self, delta: Delta) -> bytes:
        """The role. The chunks of nothing but text that follow differ in the text alone, so their halves are kept."""
        usual = self._event(_choice_chunk(delta.index, {"content": _MARK})).decode()
        before, _, after = usual.rpartition(quoted(_MARK))
        self._halves[delta.index] = before, after
        choice = _choice_chunk(delta.index, {"role": "assistant", "content": ""})
        if self._with_ids and delta.prompt_token_ids:
            choice["prompt_token_ids"] = list(delta.prompt_token_ids)
        return self._event(choice)

    def _content(self, delta: Delta) -> bytes:
        said: dict[str, Any] = {"content": delta.text} if delta.text or not delta.tool_call else {}
        if delta.tool_call is not None:
            said["tool_calls"] = [_tool_call(delta.tool_call)]
        choice = _choice_chunk(delta.index, said)
        if self._with_logprobs and delta.logprobs:
            choice["logprobs"] = logprobs_body(delta.logprobs)
        if self._with_ids and delta.token_ids:
            choice["token_ids"] = list(delta.token_ids)
        return self._event(choice)

    def _event(self, choice: Mapping[str, Any]) -> bytes:
        return event({**self._head, "choices": [choice], **self._tail})


_MARK = "\0"


def _choice_chunk(index: int, said: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": said, "logprobs": None, "finish_reason": finish_reason}


def _tool_call(piece: ToolCallDelta) -> Mapping[str, Any]:
    """Id, type and name come with the first piece of a call alone."""
    if piece.id is None:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"index": piece.index, "id": piece.id, "type": "function", "function": function}
