"""An answer in the chat-completion format, whole or in chunks, read as the deltas that it means.

What a server says is checked for its shape alone; whether it makes sense is for the core to judge.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.domain.completion import CompletionRequest, Delta, FinishReason, ToolCallDelta, Usage
from modelyard.domain.logprobs import TokenLogprob, token_bytes, trimmed
from modelyard.formats.fields import each, mapping, natural, number, optional, refused, required, text

CHARACTERS_A_TOKEN = 4
"""What a token is taken for where nobody counted."""

_REASONS: Mapping[Any, FinishReason] = {reason.value: reason for reason in FinishReason}
_REASONING = ("reasoning_content", "reasoning")


class AnswerReader:
    """Takes an answer's JSON, chunk by chunk or all at once, and gives its deltas.

    The last delta of all is held back until `end`, because the usage, which comes after it, belongs to it. Where the
    server counts no tokens, a chunk is taken for one token, and a whole text is estimated; so is the usage then, and
    marked so. What a model thinks to itself is no content: its tokens count, its text is dropped.
    """

    def __init__(self, request: CompletionRequest) -> None:
        self._request = request
        self._choices = [_Choice(index, request) for index in range(request.n)]
        self._usage: Usage | None = None
        self._held: Delta | None = None

    def take(self, chunk: Any) -> list[Delta]:
        """What a chunk, or the whole answer, says. Raises `InvalidInput` for what has not the format's shape."""
        plain = mapping(chunk)
        self._usage = optional(_usage, plain, "usage", None) or self._usage
        said = optional(lambda choices: each(lambda choice: self._said(choice, plain), choices), plain, "choices", ())
        return [delta for deltas in said for delta in deltas]

    def end(self) -> Delta:
        """The last delta, with the usage. Raises `InvalidInput` when the answer is not complete."""
        if self._held is None:
            raise refused("is not complete: not every choice has a finish reason", "incomplete")
        return attrs.evolve(self._held, usage=self._usage or self._estimate())

    def _said(self, value: Any, chunk: Mapping[str, Any]) -> list[Delta]:
        said = mapping(value)
        index = optional(natural, said, "index", 0)
        if index >= len(self._choices):
            raise refused(f"is choice {index}, of {len(self._choices)} that were asked for", "out_of_range")
        deltas = self._choices[index].take(said, chunk, self._usage)
        if deltas and deltas[-1].finish_reason and all(choice.reason for choice in self._choices):
            self._held = deltas.pop()
        return deltas

    def _estimate(self) -> Usage:
        asked = sum(len(message.text) for message in self._request.messages)
        produced = sum(choice.tokens for choice in self._choices)
        return Usage(asked // CHARACTERS_A_TOKEN + 1, produced, estimated=True)


class _Choice:
    """One choice: what was said of it so far."""

    def __init__(self, index: int, request: CompletionRequest) -> None:
        self.index, self.request = index, request
        self.tokens = 0
        self.reason: FinishReason | None = None
        self._calls: set[int] = set()
        self._prompted = False

    def take(self, said: Mapping[str, Any], chunk: Mapping[str, Any], usage: Usage | None) -> list[Delta]:
        """Its deltas. A whole answer has a `message` where a chunk has a `delta`."""
        whole = "message" in said
        message = required(mapping, said, "message" if whole else "delta")
        content = optional(text, message, "content", "") or optional(text, message, "refusal", "")
        calls = optional(lambda called: each(self._call, list(enumerate(called))), message, "tool_calls", ())
        entries, ids = optional(_logprobs, said, "logprobs", ()), optional(_ids, said, "token_ids", ())
        reason = optional(self._ending, said, "finish_reason", None)
        spoken = bool(content or calls or any(message.get(name) for name in _REASONING))
        tokens = len(ids) or len(entries) or (self._uncounted(content, spoken, usage) if whole else int(spoken))
        prompt = self._prompt(said, chunk)
        if reason is FinishReason.STOP and entries:
            entries = _fitting(entries, content)
        if len(ids) == len(entries):
            entries = tuple(attrs.evolve(entry, id=token) for entry, token in zip(entries, ids, strict=True))
        self.tokens += tokens
        first = Delta(content, tokens, self.index, calls[0] if calls else None, entries, ids, prompt)
        deltas = [first] if spoken or tokens or prompt else []
        deltas += [Delta(index=self.index, tool_call=call) for call in calls[1:]]
        return self._ended(deltas, reason)

    def _ended(self, deltas: list[Delta], reason: FinishReason | None) -> list[Delta]:
        """A stream's end is a delta of its own, so that no text has to wait for the usage behind it."""
        if self.reason is not None:
            if deltas:
                raise refused("goes on behind its finish reason", "value_error")
            return []
        self.reason = reason
        if reason is None:
            return deltas
        if deltas and not self.request.streamed:
            return [*deltas[:-1], attrs.evolve(deltas[-1], finish_reason=reason)]
        return [*deltas, Delta(index=self.index, finish_reason=reason)]

    def _ending(self, value: Any) -> FinishReason:
        """Servers end a call that was forced by name with `stop`."""
        reason = _REASONS.get(text(value))
        if reason is None:
            raise refused(f"must be one of {', '.join(_REASONS)}", "literal_error")
        return FinishReason.TOOL_CALLS if reason is FinishReason.STOP and self._calls else reason

    def _uncounted(self, content: str, spoken: bool, usage: Usage | None) -> int:
        """How many tokens a whole text has of which no token is shown."""
        if usage is not None and self.request.n == 1:
            return usage.completion_tokens
        guess = len(content) // CHARACTERS_A_TOKEN + 1 if content else int(spoken)
        return guess if self.request.max_tokens is None else min(guess, self.request.max_tokens)

    def _prompt(self, said: Mapping[str, Any], chunk: Mapping[str, Any]) -> tuple[int, ...]:
        """The prompt's token ids, once. Servers say them of the choice or of the whole answer."""
        if self._prompted:
            return ()
        ids = optional(_ids, said, "prompt_token_ids", ()) or optional(_ids, chunk, "prompt_token_ids", ())
        self._prompted = bool(ids)
        return ids

    def _call(self, numbered: tuple[int, Any]) -> ToolCallDelta:
        """A piece of a call. A first piece has an id and a name, and no later one has, whatever the server says."""
        place, said = numbered[0], mapping(numbered[1])
        function = optional(mapping, said, "function", {})
        arguments = optional(text, function, "arguments", "")
        index = optional(natural, said, "index", place)
        if index in self._calls:
            return ToolCallDelta(index, arguments=arguments)
        self._calls.add(index)
        named = optional(text, said, "id", "") or f"call_{self.index}_{index}"
        return ToolCallDelta(index, named, required(text, function, "name"), arguments)


# ---- the parts ---------------------------------------------------------------------------------------------------


def _usage(value: Any) -> Usage:
    said = mapping(value)
    details = optional(mapping, said, "prompt_tokens_details", {})
    prompt = optional(natural, said, "prompt_tokens", 0)
    cached = optional(natural, details, "cached_tokens", 0)
    return Usage(prompt, optional(natural, said, "completion_tokens", 0), min(cached, prompt))


def _ids(value: Any) -> tuple[int, ...]:
    return each(natural, value)


def _logprobs(value: Any) -> tuple[TokenLogprob, ...]:
    return optional(lambda entries: each(_sampled, entries), mapping(value), "content", ())


def _sampled(value: Any) -> TokenLogprob:
    top = optional(lambda others: each(_entry, others), mapping(value), "top_logprobs", ())
    return attrs.evolve(_entry(value), top=top) if top else _entry(value)


def _entry(value: Any) -> TokenLogprob:
    said = mapping(value)
    logprob = min(0.0, required(number, said, "logprob"))
    return TokenLogprob(required(text, said, "token"), logprob, optional(_byte_values, said, "bytes", None))


def _byte_values(value: Any) -> tuple[int, ...]:
    values = each(natural, value)
    if any(byte > 255 for byte in values):
        raise refused("must be bytes", "value_error")
    return values


def _fitting(entries: tuple[TokenLogprob, ...], content: str) -> tuple[TokenLogprob, ...]:
    """The entries without the text of an end-of-turn token or of a stop string, which is no content."""
    spoken, size = b"".join(map(token_bytes, entries)), content.encode("utf-8", "surrogatepass")
    return tuple(trimmed(entries, len(size))) if spoken.startswith(size) else entries
