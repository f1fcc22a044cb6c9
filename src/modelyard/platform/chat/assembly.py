"""An answer as it comes: vetted, held to its token limit and its stop strings, and folded at its end.

So every backend is held to them alike, whatever it knows of these things itself.
"""

import math
from collections.abc import Sequence

import attrs

from modelyard.domain.completion import (
    Choice,
    CompletionRequest,
    Delta,
    FinishReason,
    ToolCallDelta,
    Usage,
    fold_choice,
)
from modelyard.domain.logprobs import TokenLogprob, token_bytes, trimmed
from modelyard.errors import BackendError

_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens", "images")


def validate_delta(delta: Delta, choices: int) -> None:
    """Raise `BackendError` unless this is a delta of one of so many choices, with values of their own types."""
    if type(delta) is not Delta:
        raise BackendError(f"the backend gave a {type(delta).__name__} in the place of a Delta")
    _vet_text(delta.text, "text")
    _vet_count(delta.tokens, "tokens")
    if type(delta.index) is not int or not 0 <= delta.index < choices:
        raise BackendError(f"the backend gave choice {delta.index!r}, asked for {choices}")
    if delta.finish_reason is not None and type(delta.finish_reason) is not FinishReason:
        raise BackendError(f"the backend gave the finish reason {delta.finish_reason!r}")
    if delta.logprobs:
        _vet_logprobs(delta)
    if delta.token_ids and len(delta.token_ids) != delta.tokens:
        raise BackendError(f"the backend gave {len(delta.token_ids)} token ids for {delta.tokens} tokens")
    if delta.tool_call is not None:
        _vet_call(delta.tool_call)
    if delta.usage is not None:
        _vet_usage(delta.usage)


def _vet_text(text: object, name: str) -> None:
    if type(text) is not str:
        raise BackendError(f"the backend gave a {type(text).__name__} as {name}")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BackendError(f"the backend gave {name} that is no Unicode text") from None


def _vet_count(count: object, name: str) -> None:
    if type(count) is not int or count < 0:
        raise BackendError(f"the backend gave {count!r} as its number of {name}")


def _vet_logprobs(delta: Delta) -> None:
    if len(delta.logprobs) != delta.tokens:
        raise BackendError(f"the backend gave {len(delta.logprobs)} logprobs for {delta.tokens} tokens")
    for entry in delta.logprobs:
        _vet_logprob(entry)
        for other in entry.top:
            _vet_logprob(other)


def _vet_logprob(entry: TokenLogprob) -> None:
    if type(entry) is not TokenLogprob or not isinstance(entry.logprob, int | float):
        raise BackendError(f"the backend gave a {type(entry).__name__} in the place of a TokenLogprob")
    if not math.isfinite(entry.logprob):
        raise BackendError(f"the backend gave the logprob {entry.logprob!r}")
    _vet_text(entry.token, "a token")


def _vet_call(call: ToolCallDelta) -> None:
    if type(call) is not ToolCallDelta:
        raise BackendError(f"the backend gave a {type(call).__name__} in the place of a ToolCallDelta")
    _vet_count(call.index, "a tool call")
    _vet_text(call.arguments, "arguments")
    for part, name in ((call.id, "a tool call's id"), (call.name, "a tool's name")):
        if part is not None:
            _vet_text(part, name)


def _vet_usage(usage: Usage) -> None:
    if type(usage) is not Usage:
        raise BackendError(f"the backend gave a {type(usage).__name__} in the place of a Usage")
    for name in _COUNTS:
        _vet_count(getattr(usage, name), name)
    if usage.cached_tokens > usage.prompt_tokens:
        raise BackendError("the backend gave more cached tokens than the prompt has")


MAX_TEXT = 2**24
"""Characters beyond which a choice is taken for nonsense."""


class ResponseAssembler:
    """Takes what one call of a backend gives: all choices of the request, or one of them.

    `report` is the backend's last word on its usage; `shown` is what a streamed request has yet to emit; `done` says
    that no choice wants more.
    """

    def __init__(self, request: CompletionRequest, indexes: Sequence[int]) -> None:
        self.request = request
        self.choices = [ChoiceAssembler(index, request) for index in indexes]
        self.report: Usage | None = None
        self.shown: list[Delta] = []
        self.done = False

    def take(self, delta: Delta) -> bool:
        """Returns whether there is something to do: to show, or to stop. Raises `BackendError`."""
        validate_delta(delta, len(self.choices))
        if delta.usage is not None:
            self.report = delta.usage
        choice = self.choices[delta.index]
        shown = choice.take(delta)
        if choice.ended:
            self.done = all(choice.ended for choice in self.choices)
        if self.request.streamed and shown:
            self.shown += shown
            return True
        return self.done

    @property
    def produced(self) -> bool:
        """Whether anything came."""
        return self.report is not None or any(choice.produced for choice in self.choices)

    @property
    def uncounted(self) -> bool:
        """Whether something came whose tokens nobody counted."""
        return self.report is None and any(choice.uncounted for choice in self.choices)

    def fold(self) -> list[Choice]:
        """The choices. Raises `BackendError` for an answer that is not complete or cannot be counted."""
        choices = [choice.fold(self.request.logprobs) for choice in self.choices]
        if self.uncounted:
            raise BackendError("the backend does not say how many tokens its answer has")
        return choices

    @property
    def completion_tokens(self) -> int:
        """The tokens of all choices, and never more than were asked for."""
        if self.report is None:
            return sum([choice.tokens for choice in self.choices])
        assert self.request.max_tokens is not None
        return min(self.report.completion_tokens, self.request.max_tokens * len(self.choices))

    @property
    def estimated(self) -> bool:
        """Whether the backend itself calls its report an estimate."""
        return self.report is not None and self.report.estimated


class ChoiceAssembler:
    """Takes a backend's deltas of one choice and gives those that the caller may see.

    `tokens` counts them as they come, those of a stop string too. `ended` says that no more are wanted. The request's
    `max_tokens` must be known.
    """

    def __init__(self, index: int, request: CompletionRequest) -> None:
        assert request.max_tokens is not None
        self.index, self.tokens, self.ended = index, 0, False
        self.deltas: list[Delta] = []
        self._most, self._one_call = request.max_tokens, not request.parallel_tool_calls
        self._hold = StopStringBuffer(request.stop) if request.stop else None
        self._length, self._cut = 0, False
        self._calls: set[int] = set()

    @property
    def produced(self) -> bool:
        """Whether anything came."""
        return self.tokens > 0 or self._length > 0 or bool(self._calls)

    @property
    def uncounted(self) -> bool:
        """Whether something came of which the backend did not say how many tokens it is."""
        return self.tokens == 0 and self.produced

    def take(self, delta: Delta) -> Sequence[Delta]:
        """What may be shown now that this has come. Raises `BackendError`."""
        if self._cut:
            return ()
        if self.ended:
            raise BackendError(f"choice {self.index} went on after its finish reason")
        delta = self._counted(delta)
        shown = (delta,) if self._hold is None else self._hold.take(delta)
        if shown and shown[-1].finish_reason is not None:
            self.ended = True
            self._cut = self._cut or delta.finish_reason is None
        self.deltas += shown
        return shown

    def fold(self, with_logprobs: bool) -> Choice:
        """The choice. Raises `BackendError` when it has no finish reason."""
        if not self.ended:
            raise BackendError(f"choice {self.index} ended without a finish reason")
        return fold_choice(self.index, self.deltas, with_logprobs)

    def _counted(self, delta: Delta) -> Delta:
        """The delta under the choice's own index, cut where the choice has had all that it may have."""
        reason = delta.finish_reason
        if self.tokens + delta.tokens > self._most:
            delta, reason = first_tokens(delta, self._most - self.tokens), FinishReason.LENGTH
        elif self._one_call and delta.tool_call is not None and delta.tool_call.index > 0:
            delta, reason = attrs.evolve(delta, text="", tool_call=None), FinishReason.TOOL_CALLS
        self._cut = reason is not delta.finish_reason
        if delta.tool_call is not None:
            self._begin(delta.tool_call)
        if reason is FinishReason.STOP and self._calls:
            reason = FinishReason.TOOL_CALLS
        self.tokens += delta.tokens
        self._length += len(delta.text)
        if self._length > MAX_TEXT:
            raise BackendError(f"choice {self.index} is longer than {MAX_TEXT} characters")
        if delta.usage is None and delta.index == self.index and delta.finish_reason is reason:
            return delta
        return attrs.evolve(delta, index=self.index, finish_reason=reason, usage=None)

    def _begin(self, call: ToolCallDelta) -> None:
        if call.index not in self._calls and not (call.id and call.name):
            raise BackendError(f"choice {self.index} calls a tool without an id or a name")
        self._calls.add(call.index)


def first_tokens(delta: Delta, count: int) -> Delta:
    """The first `count` tokens of a delta. Where nothing says which text is whose, it is cut in proportion."""
    if delta.logprobs:
        size = sum(len(token_bytes(entry)) for entry in delta.logprobs[:count])
        text = delta.text.encode()[:size].decode(errors="ignore")
    else:
        text = delta.text[: len(delta.text) * count // delta.tokens]
    return attrs.evolve(
        delta,
        text=text,
        tokens=count,
        tool_call=delta.tool_call if count else None,
        logprobs=delta.logprobs[:count],
        token_ids=delta.token_ids[:count],
    )


# ---- stop strings ------------------------------------------------------------------------------------------------


class StopStringBuffer:
    """Holds deltas back while their text may be the beginning of a stop string, and cuts them where one is complete.

    The stop string that is complete first counts, so how the text is cut into deltas changes nothing. Log-probabilities
    stay with the text: an entry is never shown before the text that its bytes belong to is certain.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held: list[Delta] = []
        self._text = ""

    def take(self, delta: Delta) -> Sequence[Delta]:
        """What is certain now; the last has the finish reason `stop` when a stop string was found."""
        self._held.append(delta)
        self._text += delta.text
        found = [(at + len(stop), at) for stop in self._stops if (at := self._text.find(stop)) >= 0]
        if found:
            return self._cut(min(found)[1])
        return self._certain() if delta.finish_reason is None else self.release()

    def release(self) -> Sequence[Delta]:
        """Everything that is held."""
        held, self._held, self._text = self._held, [], ""
        return held

    def _certain(self) -> Sequence[Delta]:
        """The deltas before anything that may still become a stop string."""
        safe = len(self._text) - _begun(self._text, self._stops)
        count = chars = shown_chars = lead = 0
        for at, delta in enumerate(self._held, 1):
            chars += len(delta.text)
            if chars > safe:
                break
            lead += _lead_of(delta)
            if lead >= 0:
                count, shown_chars, lead = at, chars, 0
        shown, self._held = self._held[:count], self._held[count:]
        self._text = self._text[shown_chars:]
        return shown

    def _cut(self, at: int) -> Sequence[Delta]:
        """Everything that is held, without the text from `at` on."""
        chars, size = at, len(self._text[:at].encode())
        shown = []
        for delta in self.release():
            entries = [] if delta.tool_call is not None else trimmed(delta.logprobs, size)
            size -= sum(len(token_bytes(entry)) for entry in entries)
            shown.append(
                attrs.evolve(
                    delta,
                    text=delta.text[: max(chars, 0)],
                    logprobs=tuple(entries) or delta.logprobs,
                    tool_call=delta.tool_call if chars > 0 else None,
                    finish_reason=None,
                )
            )
            chars -= len(delta.text)
        shown[-1] = attrs.evolve(shown[-1], finish_reason=FinishReason.STOP)
        return shown


def _begun(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of the text may be the beginning of a stop string."""
    longest = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:length]):
                longest = length
                break
    return longest


def _lead_of(delta: Delta) -> int:
    """By how many bytes the delta's text outdoes its entries; those of a tool call belong to no text."""
    if not delta.logprobs or delta.tool_call is not None:
        return 0
    return len(delta.text.encode()) - sum(len(token_bytes(entry)) for entry in delta.logprobs)
