"""An answer of another server in the chat-completion format, whole or in chunks, read as deltas.

What is read is read leniently, and the rest is ignored: the answer is paid for. Whether it makes sense is checked when
it is assembled. Chunks are read by hand because there are many: structuring them takes thrice as long. Those that
differ from one before in their text alone are not even parsed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.completion import CompletionRequest, Delta, FinishReason, TokenLogprob, ToolCallDelta, Usage
from modelyard.domain.frozen_fast import maker
from modelyard.errors import BackendError
from modelyard.formats.json import dumps
from modelyard.parts.embeddings.fields import refused
from modelyard.parts.upstream.answers.calls import CallReader, pieces_of
from modelyard.parts.upstream.answers.choices import ChoiceNumbers
from modelyard.parts.upstream.answers.chunk_texts_fast import ChunkTexts
from modelyard.parts.upstream.answers.envelopes import enclosed
from modelyard.parts.upstream.answers.growing import SaidText
from modelyard.parts.upstream.answers.logprobs import (
    Passed,
    TokensOfText,
    fitting,
    read_ids,
    read_logprobs,
    read_token_ids,
)
from modelyard.parts.upstream.answers.reasons import read_reason, reason_in
from modelyard.parts.upstream.answers.usage import MAY_REPORT, UsageReader
from modelyard.parts.upstream.answers.values import (
    MOST_TOKENS,
    content_of,
    delta_of,
    has_unread,
    message_of,
    object_of,
    objects_of,
    reasoning_of,
    said_of,
    size_of,
    tokens_of,
)

_delta = maker(Delta)
_ANSWER_MEMBERS = MAY_REPORT | {"choices"}
"""Members of an answer, or of a part of it."""


class AnswerBrokenOff(Exception):
    """The server ended a choice before it was complete."""


class AnswerReader:
    """Takes the JSON of an answer, chunk by chunk or all at once, and returns its deltas.

    The finish reasons are held back until `end`, because text may follow them, and the usage belongs to the last delta.
    Where the server counts no tokens they are estimated by the bytes of the text, and the usage is marked so, as it is
    where the server counts fewer tokens than it shows. `note` is called once for each kind of what is not understood.
    """

    def __init__(self, request: CompletionRequest, note: Callable[[str], None] = lambda what: None) -> None:
        self._request, self._note = request, note
        self._noted: set[str] = set()
        self._has_choices = self._is_other = False
        self._choices = [_ChoiceReader(index, request, self.note) for index in range(request.n)]
        self._usage = UsageReader()
        self._numbers = ChoiceNumbers(self._choices, self.note)
        self._texts = ChunkTexts(self._choices, request.logprobs or request.return_token_ids)

    @property
    def complete(self) -> bool:
        """Whether every choice has its finish reason."""
        return all(choice.reason for choice in self._choices)

    @property
    def counted(self) -> bool:
        """Whether the server has reported the tokens of its answer."""
        return bool(self._usage.completion)

    def take_texts(self, events: Sequence[bytes], start: int) -> list[Delta]:
        """Return the deltas of the events from `start` on that need not be parsed; the first other event ends them."""
        if self._usage.reported or not self._numbers.are_certain:
            return []
        return self._texts.take_unparsed(events, start)

    def take(self, chunk: Any, event: bytes = b"") -> list[Delta]:
        """Return the deltas of a chunk, or of a whole answer. `event` is what the chunk was parsed from.

        Raises `AnswerBrokenOff`, and `BackendError` where token ids or log-probabilities were requested and do not
        come.
        """
        if self._numbers.are_certain and (text_only := self._texts.take(chunk, event)) is not None:
            return [text_only]
        data = object_of(chunk)
        self._usage.take(data)
        if "choices" not in data:
            self._is_other = self._is_other or bool(data)
            return [delta for inner in enclosed(data, _ANSWER_MEMBERS) for delta in self.take(inner)]
        choices = self._numbers.numbered(objects_of(data.get("choices")), data)
        self._has_choices = True
        for index, choice in choices:
            self._usage.take_choice(index, choice)
        deltas: list[Delta] = []
        for index, choice in choices:
            if index < len(self._choices):
                deltas += self._choices[index].take(
                    choice, data, self._usage.completion if len(self._choices) == 1 else 0
                )
            else:
                self.note("has more choices than were requested, which are left out")
        return deltas

    def end(self, finished: bool) -> list[Delta]:
        """Return the last deltas, with the finish reasons and the usage.

        `finished` means that the server has said that this is all: a choice without a reason has stopped. Raises
        `InvalidInput` when the answer is not complete.
        """
        deltas = [delta for choice in self._choices for delta in choice.rest()]
        if not all(choice.reason or (finished and choice.stopped) for choice in self._choices):
            if self._is_other and not self._has_choices:
                instead = "the url must be the base of a server's chat completions"
                raise refused(f"is not complete: it has no choices; {instead}", "incomplete")
            missing = sum(not choice.has_output and choice.reason is None for choice in self._choices)
            if 0 < missing < len(self._choices):
                instead = "offer the model without the capability choices"
                raise refused(
                    f"is not complete: {missing} of {len(self._choices)} choices are missing; {instead}", "incomplete"
                )
            raise refused("is not complete: not every choice has a finish reason", "incomplete")
        deltas += [choice.ended() for choice in self._choices]
        deltas[-1] = attrs.evolve(deltas[-1], usage=self.usage())
        return deltas

    def whole(self, answers: Sequence[Any]) -> list[Delta]:
        """Return the deltas of a whole answer, perhaps of several values. Raises what `take` and `end` raise.

        The last delta of a choice ends it, if the choice has any.
        """
        deltas = [delta for answer in answers for delta in self.take(answer)]
        for ended in self.end(finished=True):
            last = next((at for at in reversed(range(len(deltas))) if deltas[at].index == ended.index), None)
            if last is None or deltas[last].finish_reason or not ended.finish_reason:
                deltas.append(ended)
            else:
                deltas[last] = attrs.evolve(
                    deltas[last],
                    finish_reason=ended.finish_reason,
                    stop_string=ended.stop_string,
                    usage=ended.usage,
                )
        return deltas

    def with_usage(self, deltas: list[Delta]) -> list[Delta]:
        """Return the deltas with what the server has reported so far, for a caller who leaves after them."""
        if not deltas or self.complete or not self._usage.reported:
            return deltas
        usage, produced = self.usage(), self._produced
        usage = attrs.evolve(usage, completion_tokens=max(usage.completion_tokens, produced), estimated=True)
        return [*deltas[:-1], attrs.evolve(deltas[-1], usage=usage)]

    @property
    def _produced(self) -> int:
        return sum(choice.estimate for choice in self._choices)

    def usage(self) -> Usage:
        """Return the usage so far, estimated where it was not reported."""
        shown = sum(choice.shown for choice in self._choices)
        return self._usage.usage(_prompt_tokens(self._request), self._produced, shown)

    @property
    def costs(self) -> bool:
        """Whether the server has reported any usage, or has shown some of the answer."""
        return self._usage.reported or self.has_output

    @property
    def has_output(self) -> bool:
        """Whether the server has shown some of the answer."""
        return any(choice.has_output for choice in self._choices)

    def note(self, what: str) -> None:
        """Tell once what is odd, however often it comes."""
        if what not in self._noted:
            self._noted.add(what)
            self._note(what)


def _prompt_tokens(request: CompletionRequest) -> int:
    """Estimate the tokens of the prompt, with its tools."""
    if request.prompt is not None:
        given = request.prompt
        return len(given) if isinstance(given, tuple) else tokens_of(size_of(given))
    size = sum(size_of(message.text) for message in request.messages)
    size += sum(size_of(call.name + call.arguments) for message in request.messages for call in message.tool_calls)
    size += sum(size_of(tool.name + (tool.description or "")) + len(dumps(tool.parameters)) for tool in request.tools)
    return tokens_of(size) + 1 if size else 0


def _size_of_calls(calls: Sequence[ToolCallDelta]) -> int:
    """Return how many bytes of names and arguments these pieces have."""
    return sum([size_of((call.name or "") + call.arguments) for call in calls])


class _ChoiceReader:
    """Reads one choice, and keeps what is known of it so far.

    `shown` is how many of its tokens the server has shown one by one, by their ids or their log-probabilities, and
    `size` is the bytes of what it has written besides. No more tokens are estimated for them than were requested.
    """

    def __init__(self, index: int, request: CompletionRequest, note: Callable[[str], None]) -> None:
        self.index, self.request, self._note = index, request, note
        self.shown = self.size = self.estimated = 0
        self.reason: FinishReason | None = None
        self._limit = request.max_tokens
        self._stop_string: str | None = None
        self._calls = CallReader(index, [tool.name for tool in request.tools])
        has_details = request.logprobs or request.return_token_ids
        self._content, self._reasoning = SaidText(has_details), SaidText(has_details)
        self._held = TokensOfText()
        self._prompted = self._said_stop = self._has_details = False

    @property
    def has_output(self) -> bool:
        """Whether the choice has anything."""
        return self._has_passed or bool(self._held)

    @property
    def _has_passed(self) -> bool:
        return bool(self.size or self.shown or self._calls)

    @property
    def stopped(self) -> bool:
        """Whether it has ended without saying why: it was whole, or has named an empty reason."""
        return self._said_stop and self.has_output

    def waits(self, is_reasoning: bool) -> bool:
        """Return whether the next text, or reasoning, may not be passed on as it comes."""
        return self.reason is not None or not (self._reasoning if is_reasoning else self._content).is_plain

    @property
    def room(self) -> int:
        """The most tokens that may be estimated."""
        return MOST_TOKENS if self._limit is None else self._limit - self.shown

    @property
    def estimate(self) -> int:
        """The tokens of the choice: those that were shown, and others by the bytes of their text, which may wait."""
        return self.shown + self.estimated + self._held.tokens

    def count(self, size: int) -> int:
        """Return the tokens of the next piece of text, by its bytes: so many that all together make the estimate."""
        self.size += size
        before, room = self.estimated, self.room
        self.estimated = max(before, min(tokens_of(self.size), room))
        return self.estimated - before

    def take_text(self, content: str, reasoning: str) -> Delta | None:
        """Return the delta of a chunk that has only one of these; None if it is to be read in the general way."""
        if self.waits(bool(reasoning)):
            return None
        size = size_of(content or reasoning)
        self.said(size, bool(reasoning))
        return _delta(content, self.count(size), self.index, reasoning=reasoning)

    def said(self, size: int, is_reasoning: bool) -> None:
        """Note so many bytes of text or of reasoning, which were passed on as they came."""
        (self._reasoning if is_reasoning else self._content).size += size

    def take(self, choice: Mapping[str, Any], chunk: Mapping[str, Any], counted: int) -> list[Delta]:
        """Return its deltas. A whole answer has a `message` where a chunk has a `delta`, and its tokens are `counted`,
        or 0."""
        message, delta = message_of(choice.get("message")), delta_of(choice.get("delta"))
        whole = bool(message) and not any(value for name, value in delta.items() if name != "role")
        message, again = message if whole else delta, whole and self.has_output
        said = said_of(message)
        thought, content = content_of(choice.get("text") if said is None else said)
        reasoning, pieces = reasoning_of(message) or thought, pieces_of(message) or pieces_of(choice)
        if not (content or reasoning or pieces) and has_unread(said):
            self._note("has parts of a content without text, which are left out")
        entries, ids = read_logprobs(choice.get("logprobs")), read_token_ids(choice)
        if again:  # some servers end a stream with the whole answer
            entries, ids = ((), ()) if self._has_details else (entries, ids)
        is_last = bool(reason_in(choice))
        reasoning, content = self._new_texts(reasoning, content, whole, bool(pieces), is_last)
        calls = self._calls.take_again(pieces) if again else self._calls.take(pieces, whole)
        self._end(choice, size_of(content) + size_of(reasoning) + _size_of_calls(calls))
        self._has_details = self._has_details or bool(entries or ids)
        is_first = not self._has_passed
        content, entries, ids = self._paired(content, entries, ids, bool(reasoning or calls))
        if self.reason is FinishReason.STOP and entries and not reasoning:
            entries = fitting(entries, content)
        if len(ids) == len(entries):
            entries = tuple(attrs.evolve(entry, id=token) for entry, token in zip(entries, ids, strict=True))
        elif entries and ids:
            entries, ids = (entries, ()) if self.request.logprobs else ((), ids)
        prompt, written = self._prompt(choice, chunk), size_of(content) + size_of(reasoning) + _size_of_calls(calls)
        tokens = self._tokens(len(ids) or len(entries), written, counted if whole and not again else 0)
        if is_first and (content or calls or reasoning):
            self._check_details(entries, ids)
        call = calls[0] if calls else None
        first = Delta(content, tokens, self.index, call, entries, ids, prompt, reasoning=reasoning)
        deltas = [first] if content or calls or reasoning or tokens or prompt else []
        return deltas + [Delta(index=self.index, tool_call=call) for call in calls[1:]]

    def _new_texts(self, reasoning: str, content: str, whole: bool, has_calls: bool, is_last: bool) -> tuple[str, str]:
        """Return what the reasoning and the text of a chunk add, which has them `whole`, or pieces of them."""
        if whole:
            return self._reasoning.take_message(reasoning), self._content.take_message(content)
        reasoning, content = self._reasoning.take(reasoning, is_last), self._content.take(content, is_last)
        if content or has_calls:
            reasoning += self._reasoning.pause()
        return reasoning, content + (self._content.pause() if has_calls else "")

    def _paired(
        self, content: str, entries: tuple[TokenLogprob, ...], ids: tuple[int, ...], is_certain: bool
    ) -> Passed:
        """Return what can be passed on of these, and of what waited. Text waits for the details that were requested."""
        if not (self.request.logprobs or self.request.return_token_ids):
            return content, entries, ids
        self._held.take(content, entries, ids)
        if is_certain or (not self.request.logprobs and self._has_details):
            return self._held.end()
        return self._held.fitting()

    def rest(self) -> list[Delta]:
        """Return what still waits for its other half, for its name or for its details."""
        reasoning, content, calls = self._reasoning.end(), self._content.end(), self._calls.end()
        is_first = not self._has_passed
        held = self._held.text
        if is_first and (held or content or reasoning):
            self._check_details(self._held.entries, self._held.ids)
        _, entries, ids = self._held.end()
        content = held + content
        if self.reason is FinishReason.STOP:
            entries = fitting(entries, content)
        found = Delta(content, 0, self.index, None, entries, ids, reasoning=reasoning)
        deltas = [found] if content or reasoning or entries or ids else []
        deltas += [Delta(index=self.index, tool_call=call) for call in calls]
        if deltas:
            of_calls = 0 if self.shown else _size_of_calls(calls)  # else they have come with their pieces
            tokens = self._tokens(len(ids) or len(entries), size_of(content + reasoning) + of_calls, 0)
            deltas[0] = attrs.evolve(deltas[0], tokens=tokens)
        return deltas

    def ended(self) -> Delta:
        """Return its last delta. Of a choice with calls, servers say `stop`, too."""
        if self.reason is None:
            self._note("has no finish reason, which is read as 'stop'")
        reason = self.reason or FinishReason.STOP
        if reason is FinishReason.STOP and self._calls:
            reason = FinishReason.TOOL_CALLS
        return Delta(index=self.index, finish_reason=reason, stop_string=self._stop_string)

    def _tokens(self, shown: int, written: int, counted: int) -> int:
        """Return the tokens of the next deltas: those that are shown one by one, else as counted, or by their bytes."""
        self.shown += shown
        if shown or not counted or not written:
            return shown or self.count(written)
        self.size += written
        self.estimated = counted if self._limit is None else min(counted, self._limit)
        return self.estimated

    def _check_details(self, entries: tuple[TokenLogprob, ...], ids: tuple[int, ...]) -> None:
        """Raise `BackendError` when the first output of the choice lacks what was requested."""
        wanted = ((self.request.logprobs, entries, "logprobs"), (self.request.return_token_ids, ids, "token_ids"))
        missing = [name for requested, found, name in wanted if requested and not found]
        if missing:
            raise BackendError(
                f"the upstream server did not send the {' and '.join(missing)} that were requested; offer the model "
                f"without the capability {' and '.join(missing)}, or use a server that has it"
            )

    def _end(self, choice: Mapping[str, Any], written: int) -> None:
        """Note why the choice ends, and with which stop string, after so many bytes that come with it."""
        given = reason_in(choice)
        self._said_stop = self._said_stop or given is not None or "message" in choice
        ending = read_reason(given)
        if ending is None:
            return
        if self.reason is not None and (ending.is_broken_off or ending.is_cut):
            self._note("has another finish reason after its end, which is left out")
            return
        if ending.is_broken_off or (ending.is_cut and not written and not self.has_output):
            self.count(written)  # which was produced, and is paid for
            raise AnswerBrokenOff
        if not ending.is_known:
            self._note(f"has an unknown finish reason, which is read as '{ending.reason}'")
        self.reason = ending.reason
        stopped = choice.get("stop_reason")  # of vLLM; servers may also name a token here
        self._stop_string = stopped if isinstance(stopped, str) and stopped in self.request.stop else None

    def _prompt(self, choice: Mapping[str, Any], chunk: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the token ids of the prompt, once. Servers put them into the choice or next to all choices."""
        if self._prompted:
            return ()
        ids = read_ids(choice.get("prompt_token_ids")) or read_ids(chunk.get("prompt_token_ids"))
        self._prompted = bool(ids)
        return ids
