"""Assemble an answer from the deltas of a backend: validate them, cut at the token limit and at stop strings, fold.

It is done here for every backend, so that the rules hold no matter what a backend knows of them.
"""

from collections.abc import Iterable, Sequence
from itertools import repeat

import attrs

from modelyard.domain.completion import (
    Choice,
    CompletionRequest,
    Delta,
    FinishReason,
    Message,
    Role,
    ToolCall,
    ToolCallDelta,
    Usage,
    token_bytes,
)
from modelyard.domain.frozen_fast import maker
from modelyard.errors import BackendError, InvalidInput
from modelyard.platform.chat.delta_checks import validate_delta
from modelyard.platform.chat.stop_strings import StopStringBuffer
from modelyard.platform.chat.texts_fast import count_texts

_choice, _message = maker(Choice), maker(Message)


UNINTERRUPTED = 256
"""Deltas or log-probabilities of a backend that never waits, after which others have their turn."""

MAX_TEXT = 2**24
"""The most characters that a choice may have."""


DETAILED = 8
"""For how many characters one counts that comes with log-probabilities or token ids, by what it takes in memory."""


def check_length(request: CompletionRequest, length: int, of: str) -> None:
    """Raise `InvalidInput` at a field if several choices are longer together than a single one may be."""
    detailed = request.logprobs or request.return_token_ids or request.prompt_logprobs is not None
    most = MAX_TEXT // DETAILED if detailed else MAX_TEXT
    if length > most:
        raise InvalidInput.at(of, msg=f"gives answers of more than {most} characters; ask for fewer")


def in_order(shown: Iterable[Delta], begun: int) -> tuple[list[Delta], int]:
    """Return deltas, each after empty ones of the choices before it that have not begun, and how many have then.

    >>> [delta.index for delta in in_order([Delta("a", 1, index=2)], 1)[0]]
    [1, 2]
    """
    ordered: list[Delta] = []
    for delta in shown:
        ordered += [Delta(index=index) for index in range(begun, delta.index)]
        ordered.append(delta)
        begun = max(begun, delta.index + 1)
    return ordered, begun


class ResponseAssembler:
    """Takes the deltas of one call of a backend, which makes all choices of the request, or one of them.

    `report` is the last usage that the backend reported. `details` counts the log-probabilities that came since the
    caller last set it to 0, and `scored` the characters of prompts that came with theirs. `shown` is what a streamed
    request has yet to emit. `done` is True when every choice has ended; `cut` when no more is to be taken.
    """

    report: Usage | None = None
    done: bool = False
    details: int = 0
    scored: int = 0
    cut: bool = False

    def __init__(self, request: CompletionRequest, indexes: Sequence[int]) -> None:
        self.request = request
        self.choices: list[ChoiceAssembler] = list(map(ChoiceAssembler, indexes, repeat(request)))
        self.shown: list[Delta] = []

    def take(self, given: Delta | Sequence[Delta]) -> bool:
        """Take a delta, or several. Return whether there is something to do: to show, or to stop.

        Raises `BackendError`.
        """
        choices, several = self.choices, given if type(given) is list or type(given) is tuple else (given,)
        for delta in several[self._take_texts(several) :]:
            if self.done:
                break
            validate_delta(delta, len(choices))
            if delta.usage is not None:
                self.report = delta.usage
                if delta == Delta(index=delta.index, usage=delta.usage):
                    continue
            if delta.logprobs:
                self.details += len(delta.logprobs)
            if delta.prompt_logprobs:
                self.scored += sum([len(entry.token) for entry in delta.prompt_logprobs])
            choice = choices[delta.index]
            shown = choice.take(delta)
            if choice.ended:
                self.done = len(choices) == 1 or all(choice.ended for choice in choices)
            if self.request.streamed:
                self.shown += shown
        return self.done or self.cut or bool(self.shown) or self.details >= UNINTERRUPTED

    def _take_texts(self, deltas: Sequence[Delta]) -> int:
        """Take deltas of the first choice with nothing but text, as most have, up to the first other.

        Return how many there were. Taken one by one, they come to the same.
        """
        choice = self.choices[0]
        if not choice.takes_texts:
            return 0
        left, room = choice.limit - choice.tokens, MAX_TEXT - choice.length
        count, left, room = count_texts(deltas, left, room)
        choice.tokens, choice.length = choice.limit - left, MAX_TEXT - room
        taken = deltas[:count]
        choice.deltas += taken
        if self.request.streamed:
            self.shown += taken
        return count

    @property
    def length(self) -> int:
        return self.scored + sum([choice.length for choice in self.choices])

    @property
    def produced(self) -> bool:
        """Whether the backend has produced anything."""
        return self.report is not None or any(choice.produced for choice in self.choices)

    def fold(self) -> list[Choice]:
        """Return the choices. Raises `BackendError` for an incomplete answer, and one without counts."""
        choices, with_logprobs = [], self.request.logprobs
        for choice in self.choices:
            if not choice.ended:
                raise BackendError(f"choice {choice.index} ended without a finish reason")
            if choice.tokens == 0 and self.report is None and choice.produced:
                raise BackendError("the backend did not count the tokens of its answer")
            choices.append(fold_choice(choice.index, choice.deltas, with_logprobs))
        return choices

    def reasoning_tokens(self) -> int:
        """Return the tokens of reasoning, as reported, or as counted by a backend that reports nothing."""
        if self.report is not None:
            return min(self.report.reasoning_tokens, self.completion_tokens())
        return sum([choice.reasoning_tokens for choice in self.choices])

    def completion_tokens(self) -> int:
        """Return the tokens of all choices, never more than were requested.

        Reasoning that a server counts beside them comes on top: it is paid for, and servers that do so do not bound it.
        """
        if self.report is None:
            return self.choices[0].tokens if len(self.choices) == 1 else sum([one.tokens for one in self.choices])
        assert self.request.max_tokens is not None
        reasoning = self.report.reasoning_tokens
        most = self.request.max_tokens * len(self.choices)
        return min(self.report.completion_tokens - reasoning, most) + reasoning


class ChoiceAssembler:
    """Takes the deltas of one choice and returns those that the caller may see.

    `tokens` counts all that come, those of a stop string too, and `reasoning_tokens` those that are reasoning alone.
    `ended` is True when no more are needed. The request must have its `max_tokens`.
    """

    tokens: int = 0
    reasoning_tokens: int = 0
    length: int = 0
    ended: bool = False
    _cut = False
    _buffer: StopStringBuffer | None = None
    _calls: frozenset[int] = frozenset()

    def __init__(self, index: int, request: CompletionRequest) -> None:
        assert request.max_tokens is not None
        self.index: int = index
        self.deltas: list[Delta] = []
        self.limit: int = request.max_tokens
        self._one_call = not request.parallel_tool_calls
        if request.stop:
            self._buffer = StopStringBuffer(request.stop)

    @property
    def takes_texts(self) -> bool:
        """Whether a delta of text is all that it changes: it is kept and shown as it is."""
        return self.index == 0 and self._buffer is None and not self.ended

    @property
    def produced(self) -> bool:
        """Whether the backend has produced anything."""
        return self.tokens > 0 or self.length > 0 or bool(self._calls)

    def take(self, delta: Delta) -> Sequence[Delta]:
        """Take a delta, and return those that may be shown now. Raises `BackendError`."""
        if self._cut:
            return ()
        if self.ended:
            raise BackendError(f"choice {self.index} continued after its finish reason")
        reason = delta.finish_reason
        if self.tokens + delta.tokens > self.limit or delta.tool_call is not None or self._calls:
            delta, reason = self._bounded(delta)
        self.tokens += delta.tokens
        self.length += len(delta.text)
        if delta.reasoning:
            self.length += len(delta.reasoning)
            self.reasoning_tokens += 0 if delta.text or delta.tool_call else delta.tokens
        if self.length > MAX_TEXT:
            raise BackendError(f"choice {self.index} is longer than {MAX_TEXT} characters")
        if delta.usage is not None or delta.index != self.index or delta.finish_reason is not reason:
            delta = attrs.evolve(delta, index=self.index, finish_reason=reason, usage=None)
        shown = (delta,) if self._buffer is None else self._buffer.take(delta)
        if shown and shown[-1].finish_reason is not None:
            self.ended = True
            self._cut = self._cut or reason is None
        self.deltas += shown
        return shown

    def _bounded(self, delta: Delta) -> tuple[Delta, FinishReason | None]:
        """Cut a delta where the choice has reached its limit. Returns it, and why the choice ends with it."""
        reason, call = delta.finish_reason, delta.tool_call
        if self.tokens + delta.tokens > self.limit:
            delta, reason = first_tokens(delta, self.limit - self.tokens), FinishReason.LENGTH
        elif call is not None and call.index > 0 and self._one_call:
            delta, reason = attrs.evolve(delta, text="", tool_call=None), FinishReason.TOOL_CALLS
        self._cut = reason is not delta.finish_reason
        if delta.tool_call is not None:
            self._begin(delta.tool_call)
        if self._calls and reason is FinishReason.STOP:
            reason = FinishReason.TOOL_CALLS
        return delta, reason

    def _begin(self, call: ToolCallDelta) -> None:
        if call.index not in self._calls and not (call.id and call.name):
            raise BackendError(f"choice {self.index} calls a tool without an id or a name")
        self._calls |= {call.index}


def first_tokens(delta: Delta, count: int) -> Delta:
    """Return the first `count` tokens of a delta. Without log-probabilities, and of reasoning, text is cut in
    proportion.
    """
    reasoning = ""
    if delta.logprobs and not delta.reasoning:
        size = sum(len(token_bytes(entry)) for entry in delta.logprobs[:count])
        text = delta.text.encode()[:size].decode(errors="ignore")
    else:
        kept = (len(delta.reasoning) + len(delta.text)) * count // delta.tokens
        reasoning = delta.reasoning[:kept]
        text = delta.text[: kept - len(reasoning)]
    return attrs.evolve(
        delta,
        text=text,
        tokens=count,
        tool_call=delta.tool_call if count else None,
        logprobs=delta.logprobs[:count],
        token_ids=delta.token_ids[:count],
        reasoning=reasoning,
    )


_FIRST = (0,)


def assemblers_of(request: CompletionRequest, makes_choices: bool) -> list[ResponseAssembler]:
    """Return one assembler for all choices, or one for each choice with a seed of its own."""
    if request.n == 1:
        return [ResponseAssembler(request, _FIRST)]
    if makes_choices:
        return [ResponseAssembler(request, range(request.n))]
    return [ResponseAssembler(choice_of(request, index), [index]) for index in range(request.n)]


def choice_of(request: CompletionRequest, index: int) -> CompletionRequest:
    """Return what is asked for one of several choices, with a seed of its own."""
    sampling = request.sampling
    seed = (sampling.seed or 0) + index
    return request.choosing(1, sampling.seeded(seed if seed < 2**63 else seed - 2**64))


def fold_choice(index: int, given: Iterable[Delta], with_logprobs: bool) -> Choice:
    """Fold the deltas of a choice, in order."""
    deltas = given if isinstance(given, list) else list(given)
    texts = [delta.text for delta in deltas]
    detailed = [
        delta
        for delta in deltas
        if delta.tool_call is not None
        or delta.reasoning
        or delta.token_ids
        or delta.logprobs
        or delta.prompt_token_ids
        or delta.prompt_logprobs
    ]
    stop = deltas[-1].stop_string if deltas else None
    reason = next((delta.finish_reason for delta in reversed(deltas) if delta.finish_reason), FinishReason.STOP)
    content = texts[0] if len(texts) == 1 else "".join(texts)
    if not detailed:
        return _choice(
            index, _message(Role.ASSISTANT, content), reason, () if with_logprobs else None, stop_string=stop
        )
    calls = _fold_calls(detailed)
    return _choice(
        index,
        _message(
            Role.ASSISTANT,
            None if calls and not content else content,
            tool_calls=calls,
            reasoning="".join([delta.reasoning for delta in detailed]) or None,
        ),
        reason,
        tuple([entry for delta in detailed for entry in delta.logprobs]) if with_logprobs else None,
        tuple([id_ for delta in detailed for id_ in delta.token_ids]),
        next((delta.prompt_token_ids for delta in detailed if delta.prompt_token_ids), ()),
        next((delta.prompt_logprobs for delta in detailed if delta.prompt_logprobs), ()),
        stop,
    )


def _fold_calls(deltas: Iterable[Delta]) -> tuple[ToolCall, ...]:
    calls: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        if delta.tool_call is not None:
            calls.setdefault(delta.tool_call.index, []).append(delta.tool_call)
    return tuple([_fold_call(calls[at]) for at in sorted(calls)])


def _fold_call(pieces: list[ToolCallDelta]) -> ToolCall:
    first = pieces[0]
    return ToolCall(first.id or "", first.name or "", "".join(piece.arguments for piece in pieces))
