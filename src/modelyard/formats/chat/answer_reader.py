"""An answer of another server in the chat-completion format, whole or in chunks, read as deltas.

Only the shape is checked here, and leniently: what servers leave out has a default. Whether an answer makes sense is
checked when it is assembled. Chunks are read by hand because there are many: structuring them takes thrice as long.
Those that differ from one before in their text alone are not even parsed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.completion import CompletionRequest, Delta, FinishReason, TokenLogprob, ToolCallDelta, Usage
from modelyard.domain.frozen_fast import maker
from modelyard.errors import BackendError
from modelyard.formats.chat.answer_parts import (
    fitting,
    read_ids,
    read_logprobs,
    read_token_ids,
    read_usage,
    reasoning_of,
)
from modelyard.formats.chat.chunk_texts_fast import ChunkTexts
from modelyard.formats.fields import each, mapping, natural, optional, refused, required, text

CHARACTERS_PER_TOKEN = 4
"""The estimate where no tokens were counted."""

_REASONS: Mapping[Any, FinishReason] = {reason.value: reason for reason in FinishReason}
_delta = maker(Delta)
_BROKEN_OFF = frozenset({"abort", "error"})
"""Reasons of servers that stop before the answer is complete: vLLM and SGLang, when they shut down or are paused."""


class AnswerBrokenOff(Exception):
    """The server ended a choice before it was complete."""


class AnswerReader:
    """Takes the JSON of an answer, chunk by chunk or all at once, and returns its deltas.

    The very last delta is held back until `end`, because the usage that comes after it belongs to it. Where the server
    counts no tokens, a chunk counts as one token, and a whole text is estimated. The usage is then marked as estimated,
    as it is where the server counts fewer tokens than it shows.
    Servers have two names for reasoning; one of them is enough.
    """

    def __init__(self, request: CompletionRequest) -> None:
        self._request = request
        self._choices = [_ChoiceReader(index, request) for index in range(request.n)]
        self._usage: Usage | None = None
        self._held: Delta | None = None
        self._texts = ChunkTexts(self._choices, request.logprobs or request.return_token_ids)

    def take_texts(self, events: Sequence[bytes], start: int) -> list[Delta]:
        """Return the deltas of the events from `start` on that need not be parsed; the first other event ends them."""
        return self._texts.take_unparsed(events, start)

    def take(self, chunk: Any, event: bytes = b"") -> list[Delta]:
        """Return the deltas of a chunk, or of a whole answer. `event` is what the chunk was parsed from.

        Raises `InvalidInput` for one of another shape, `AnswerBrokenOff`, and `BackendError` where token ids or
        log-probabilities were requested and do not come.
        """
        if (text_only := self._texts.take(chunk, event)) is not None:
            return [text_only]
        data = mapping(chunk)
        self._usage = optional(read_usage, data, "usage", None) or self._usage
        found = optional(lambda given: each(lambda choice: self._deltas(choice, data), given), data, "choices", ())
        return [delta for deltas in found for delta in deltas]

    def end(self) -> Delta:
        """Return the last delta, with the usage. Raises `InvalidInput` when the answer is not complete."""
        if self._held is None:
            raise refused("is not complete: not every choice has a finish reason", "incomplete")
        return attrs.evolve(self._held, usage=self._counted())

    def _deltas(self, value: Any, chunk: Mapping[str, Any]) -> list[Delta]:
        choice = mapping(value)
        index = optional(natural, choice, "index", 0)
        if index >= len(self._choices):
            raise refused(f"is choice {index}, where {len(self._choices)} were requested", "out_of_range")
        deltas = self._choices[index].take(choice, chunk, self._usage)
        if deltas and deltas[-1].finish_reason and all(reader.reason for reader in self._choices):
            self._held = deltas.pop()
        return deltas

    def _counted(self) -> Usage:
        """Return the server's usage; an estimate where it reports none, or fewer tokens than it has shown."""
        if self._usage is None:
            return self._estimate()
        shown = sum(reader.shown for reader in self._choices)
        if self._usage.completion_tokens >= shown:
            return self._usage
        return attrs.evolve(self._usage, completion_tokens=shown, estimated=True)

    def _estimate(self) -> Usage:
        given = self._request.prompt or ""
        prompt = sum(len(message.text) for message in self._request.messages)
        prompt += len(given) * (1 if isinstance(given, str) else CHARACTERS_PER_TOKEN)
        produced = sum(reader.tokens for reader in self._choices)
        return Usage(prompt // CHARACTERS_PER_TOKEN + 1, produced, estimated=True)


class _ChoiceReader:
    """Reads one choice, and keeps what is known of it so far.

    `tokens` counts or estimates its tokens. `shown` is at least how many the server has shown: by their ids, their
    log-probabilities, or a chunk for each.
    """

    def __init__(self, index: int, request: CompletionRequest) -> None:
        self.index, self.request = index, request
        self.tokens = self.shown = 0
        self.reason: FinishReason | None = None
        self._calls: set[int] = set()
        self._prompted = False

    def take_text(self, content: str, reasoning: str) -> Delta | None:
        """Return the delta of a chunk that has only one of these; None after the finish reason, which is refused
        elsewhere.
        """
        if self.reason is not None:
            return None
        self.tokens += 1
        self.shown += 1
        return _delta(content, 1, self.index, reasoning=reasoning)

    def take(self, choice: Mapping[str, Any], chunk: Mapping[str, Any], usage: Usage | None) -> list[Delta]:
        """Return its deltas. A whole answer has a `message` where a chunk has a `delta`."""
        whole = "message" in choice
        message = required(mapping, choice, "message" if whole else "delta")
        content = optional(text, message, "content", "") or optional(text, message, "refusal", "")
        reasoning = reasoning_of(message)
        calls = optional(self._all_calls, message, "tool_calls", ())
        entries, ids = optional(read_logprobs, choice, "logprobs", ()), read_token_ids(choice)
        reason = optional(self._finish_reason, choice, "finish_reason", None)
        has_output = bool(content or calls or reasoning)
        shown = reasoning + content
        tokens = len(ids) or len(entries) or (self._estimate(shown, has_output, usage) if whole else int(has_output))
        prompt = self._prompt(choice, chunk)
        if has_output:
            self._check_details(entries, ids)
        if reason is FinishReason.STOP and entries and not reasoning:
            entries = fitting(entries, content)
        if len(ids) == len(entries):
            entries = tuple(attrs.evolve(entry, id=token) for entry, token in zip(entries, ids, strict=True))
        self.tokens += tokens
        self.shown += tokens if entries or ids or not whole else 0
        call = calls[0] if calls else None
        first = Delta(content, tokens, self.index, call, entries, ids, prompt, reasoning=reasoning)
        deltas = [first] if has_output or tokens or prompt else []
        deltas += [Delta(index=self.index, tool_call=call) for call in calls[1:]]
        stopped = choice.get("stop_reason")  # of vLLM; servers may also name a token here
        return self._ended(deltas, reason, stopped if stopped in self.request.stop else None)

    def _check_details(self, entries: tuple[TokenLogprob, ...], ids: tuple[int, ...]) -> None:
        """Raise `BackendError` when the first output of the choice lacks what was requested."""
        if self.tokens:
            return
        wanted = ((self.request.logprobs, entries, "logprobs"), (self.request.return_token_ids, ids, "token_ids"))
        missing = [name for requested, found, name in wanted if requested and not found]
        if missing:
            raise BackendError(
                f"the upstream server did not send the {' and '.join(missing)} that were requested; offer the model "
                f"without the capability {' and '.join(missing)}, or use a server that has it"
            )

    def _ended(self, deltas: list[Delta], reason: FinishReason | None, stopped: str | None) -> list[Delta]:
        """Add the finish reason, and its stop string: in a stream as a delta of its own, so that no text has to
        wait for the usage.
        """
        if self.reason is not None:
            if deltas:
                raise refused("continues after its finish reason", "value_error")
            return []
        self.reason = reason
        if reason is None:
            return deltas
        if deltas and not self.request.streamed:
            return [*deltas[:-1], attrs.evolve(deltas[-1], finish_reason=reason, stop_string=stopped)]
        return [*deltas, Delta(index=self.index, finish_reason=reason, stop_string=stopped)]

    def _finish_reason(self, value: Any) -> FinishReason:
        """Return the reason; of a call that was forced by name the right one, as servers end it with `stop`."""
        reason = _REASONS.get(text(value))
        if value in _BROKEN_OFF:
            raise AnswerBrokenOff
        if reason is None:
            raise refused(f"must be one of {', '.join(_REASONS)}", "literal_error")
        return FinishReason.TOOL_CALLS if reason is FinishReason.STOP and self._calls else reason

    def _estimate(self, content: str, has_output: bool, usage: Usage | None) -> int:
        """Return how many tokens a whole text has where no token is shown."""
        if usage is not None and self.request.n == 1:
            return usage.completion_tokens
        guess = len(content) // CHARACTERS_PER_TOKEN + 1 if content else int(has_output)
        return guess if self.request.max_tokens is None else min(guess, self.request.max_tokens)

    def _prompt(self, choice: Mapping[str, Any], chunk: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the token ids of the prompt, once. Servers put them into the choice or next to all choices."""
        if self._prompted:
            return ()
        ids = optional(read_ids, choice, "prompt_token_ids", ()) or optional(read_ids, chunk, "prompt_token_ids", ())
        self._prompted = bool(ids)
        return ids

    def _all_calls(self, value: Any) -> tuple[ToolCallDelta, ...]:
        return each(self._call, list(enumerate(each(lambda call: call, value))))

    def _call(self, numbered: tuple[int, Any]) -> ToolCallDelta:
        """Return a piece of a call. Only its first piece has an id and a name, no matter what the server sends."""
        place, call = numbered[0], mapping(numbered[1])
        function = optional(mapping, call, "function", {})
        arguments = optional(text, function, "arguments", "")
        index = optional(natural, call, "index", place)
        if index in self._calls:
            return ToolCallDelta(index, arguments=arguments)
        self._calls.add(index)
        call_id = optional(text, call, "id", "") or f"call_{self.index}_{index}"
        return ToolCallDelta(index, call_id, required(text, function, "name"), arguments)
