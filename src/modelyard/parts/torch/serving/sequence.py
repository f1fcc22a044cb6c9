"""One sequence in the engine, and the stream of deltas that is made of it."""

import codecs
import hashlib
import math
from collections.abc import Iterator
from collections.abc import Sequence as Many
from collections.abc import Sequence as Tokens
from enum import Enum
from typing import Any, Protocol

import attrs

from modelyard.domain.completion import (
    CompletionRequest,
    Delta,
    FinishReason,
    Sampling,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
)
from modelyard.errors import BackendError
from modelyard.parts.torch.reasoning import ReasoningReader
from modelyard.parts.torch.tool_calls import ToolReader


class Grammar(Protocol):
    """A constraint on an answer's tokens."""

    def allowed(self) -> bytes:
        """Return one byte for each token of the vocabulary, 0 if it may not come next."""
        ...

    def accept(self, token: int) -> bool:
        """Advance by a token; return whether the answer is complete and nothing else can follow."""
        ...


class SequenceState(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@attrs.frozen
class SampledToken:
    """A token that was sampled: its log-probability as the model gives it, and the likeliest ones (id, logprob).

    The last one of an answer carries the finish reason, so that a concurrent reader never sees one without the other.
    """

    token: int
    logprob: float
    top: Tokens[tuple[int, float]] = ()
    reason: FinishReason | None = None
    rank: int | None = None


@attrs.define(eq=False)
class Sequence:
    """A prompt and the tokens that follow it.

    `slot` is the adapter's place in the bank. `max_tokens` bounds the answer, and `ends` are the tokens that end it.
    `top_logprobs` is how many of the likeliest tokens are reported, `top_of_prompt` the same for the prompt's own
    tokens: their log-probabilities, except that of the first token, are then in `scored`. `sampled` grows; a reader, on
    any thread, remembers its position, and has all of it once the state is `ENDED`. `cached` is how many of its tokens
    are in the cache, `read` whether all but the last sampled one are, and `reused` how many of the prompt were there
    before. It is read `alone` if reading it in a batch has failed. `failure` is what went wrong.
    """

    prompt: list[int]
    sampling: Sampling
    max_tokens: int
    slot: int = 0
    top_logprobs: int = 0
    grammar: Grammar | None = None
    ends: frozenset[int] = frozenset()
    sampled: list[SampledToken] = attrs.field(factory=list)
    answer: list[int] = attrs.field(factory=list)
    state: SequenceState = SequenceState.WAITING
    failure: Exception | None = None
    cancelled: bool = False
    cached: int = 0
    reused: int = 0
    read: bool = False
    alone: bool = False
    top_of_prompt: int | None = None
    scored: list[SampledToken] = attrs.field(factory=list)

    @property
    def unscored(self) -> bool:
        """Whether the log-probabilities of its prompt are still to be computed, so that all of it must be read."""
        return self.top_of_prompt is not None and len(self.scored) < len(self.prompt) - 1

    @property
    def reason(self) -> FinishReason | None:
        return self.sampled[-1].reason if self.sampled else None

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.answer)

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.answer]

    def ends_at(self, end_tokens: frozenset[int]) -> None:
        """Set the tokens that end the answer: the model's, unless they are ignored, and those of the request."""
        own = frozenset() if self.sampling.ignore_eos else end_tokens
        self.ends = own.union(self.sampling.stop_token_ids)

    def shares_prefix_with(self, other: "Sequence") -> bool:
        """Return whether the other sequence can copy what is read of this one, because it continues in the same way."""
        start = self.cached
        end = min(start + 32, len(self.prompt) - 1, len(other.prompt) - 1)
        equal = (
            self.slot == other.slot
            and start < end
            and not other.unscored
            and self.prompt[start:end] == other.prompt[start:end]
        )
        return equal and self.prompt[:start] == other.prompt[:start]

    def take(self, sampled: SampledToken) -> bool:
        """Add a token, still to be shown; return whether the answer's grammar is complete.

        Raises the error that prevents the answer from continuing.
        """
        if self.failure is not None:
            raise self.failure
        if math.isnan(sampled.logprob):
            raise BackendError("the model's output is not a number: its weights, or those of its adapter, are broken")
        complete = self.grammar is not None and self.grammar.accept(sampled.token)
        self.answer.append(sampled.token)
        return complete

    def show(self, sampled: SampledToken, reason: FinishReason | None) -> None:
        self.sampled.append(sampled if reason is None else attrs.evolve(sampled, reason=reason))

    def end(self, failure: Exception | None = None) -> None:
        """End the sequence. The state is set last, because readers look at it first."""
        self.failure = failure
        self.state = SequenceState.ENDED


MAX_UNREAD = 64
"""The most tokens between two deltas of an answer that is not streamed; a caller that leaves pays for these deltas."""


class ChoiceStream:
    """Turns the sampled tokens of one choice into deltas: token by token if streamed or if a stop string may end it."""

    def __init__(
        self,
        index: int,
        sequence: Sequence,
        request: CompletionRequest,
        token_bytes: Many[bytes],
        tools: ToolReader | None = None,
        prompt_bytes: Many[bytes] = (),
        reasoning: ReasoningReader | None = None,
    ) -> None:
        self.sequence: Sequence = sequence
        self.emitted: int = 0
        self._index, self._request, self._bytes, self._tools = index, request, token_bytes, tools
        self._prompt_bytes, self._reasoning = prompt_bytes, reasoning
        self._unshown: list[SampledToken] = []
        self._first = True
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ended, self._calls = False, 0
        self._at_once = 1 if request.streamed or request.stop else MAX_UNREAD

    @property
    def due(self) -> int:
        """The number of sampled tokens that the next delta needs, unless the answer ends."""
        return self.emitted + self._at_once

    @property
    def ended(self) -> bool:
        return self._ended

    def deltas(self) -> Iterator[Delta]:
        """Yield what has been sampled since the last call.

        Raises the sequence's failure after its tokens. Another thread may step meanwhile, so the state is read first:
        if it is `ENDED`, the tokens are complete.
        """
        sequence = self.sequence
        over = sequence.state is SequenceState.ENDED
        while self.due <= len(sequence.sampled) or (over and self.emitted < len(sequence.sampled)):
            yield from self._next(min(self.due, len(sequence.sampled)))
        if over and not self._ended:
            self._ended = True
            if self._unshown:
                yield self._delta("", self._unshown, last=True)
            if sequence.failure is not None:
                raise sequence.failure

    def _next(self, upto: int) -> Iterator[Delta]:
        fresh = self.sequence.sampled[self.emitted : upto]
        self.emitted = upto
        self._ended = fresh[-1].reason is not None
        if self._reasoning is None:
            yield from self._answered(self._text(fresh, self._ended), fresh)
        else:
            yield from self._reasoned(self._reasoning, fresh)

    def _text(self, fresh: Many[SampledToken], last: bool) -> str:
        """Return the text of these tokens, without characters that may continue unless they are the last."""
        return self._decoder.decode(b"".join(map(self._written, fresh)), final=last)

    def _reasoned(self, reader: ReasoningReader, fresh: Many[SampledToken]) -> Iterator[Delta]:
        """Yield reasoning and content apart, each with its tokens; tokens of the marks come with the reasoning."""
        found = ""
        for place, sampled in enumerate(fresh, 1):
            last = self._ended and place == len(fresh)
            reasoning, content = reader.take(self._text([sampled], last), last)
            found += reasoning
            if reader.ended:
                self._reasoning = None
                if found:
                    yield self._delta("", self._unshown, last=False, reasoning=found)
                    self._unshown = []
                content += self._text(fresh[place:], self._ended)
                yield from self._answered(content, [*self._unshown, *fresh[place - 1 :]])
                return
            self._unshown.append(sampled)
        if found or self._ended or len(self._unshown) >= MAX_UNREAD:
            yield self._delta("", self._unshown, last=True, reasoning=found)
            self._unshown = []

    def _answered(self, text: str, fresh: Many[SampledToken]) -> Iterator[Delta]:
        content, *calls = self._pieces(text)
        yield self._delta(content, fresh, last=not calls)
        for place, call in enumerate(calls, 1):
            yield Delta(index=self._index, tool_call=call, finish_reason=self._reason(place == len(calls)))

    def _reason(self, last: bool) -> FinishReason | None:
        if not (self._ended and last):
            return None
        called = self._calls and self.sequence.reason is FinishReason.STOP
        return FinishReason.TOOL_CALLS if called else self.sequence.reason

    def _pieces(self, text: str) -> list[Any]:
        if self._tools is None:
            return [text]
        found = list(self._tools.take(text, self._ended))
        calls = [one for one in found if isinstance(one, ToolCall)]
        numbered = enumerate(calls, self._calls)
        self._calls += len(calls)
        content = "".join(one for one in found if isinstance(one, str))
        return [
            content,
            *(ToolCallDelta(number, _short(call.id), call.name, call.arguments) for number, call in numbered),
        ]

    def _delta(self, text: str, fresh: Many[SampledToken], *, last: bool, reasoning: str = "") -> Delta:
        request, first, self._first = self._request, self._first, False
        return Delta(
            text=text,
            tokens=len(fresh),
            index=self._index,
            logprobs=tuple(map(self._logprob, fresh)) if request.logprobs else (),
            token_ids=tuple(sampled.token for sampled in fresh) if request.return_token_ids else (),
            prompt_token_ids=tuple(self.sequence.prompt) if request.return_token_ids and first else (),
            finish_reason=self._reason(last),
            prompt_logprobs=tuple(map(self._of_prompt, self.sequence.scored)) if first else (),
            reasoning=reasoning,
        )

    def _of_prompt(self, scored: SampledToken) -> TokenLogprob:
        top = tuple(_entry(token, self._prompt_bytes[token], logprob) for token, logprob in scored.top)
        own = _entry(scored.token, self._prompt_bytes[scored.token], scored.logprob, top)
        return attrs.evolve(own, rank=scored.rank)

    def _written(self, sampled: SampledToken) -> bytes:
        """Return the bytes of a token; a token that ends the answer has none, as it is not content."""
        ending = sampled.reason is FinishReason.STOP and sampled.token in self._request.sampling.stop_token_ids
        return b"" if ending else self._bytes[sampled.token]

    def _logprob(self, sampled: SampledToken) -> TokenLogprob:
        top = tuple(_entry(token, self._bytes[token], logprob) for token, logprob in sampled.top)
        return _entry(sampled.token, self._written(sampled), sampled.logprob, top)


def _entry(token: int, raw: bytes, logprob: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    return TokenLogprob(raw.decode(errors="replace"), logprob, tuple(raw), top, token)


def _short(id: str) -> str:
    """Return nine letters and digits: the templates of Mistral accept no other call ids."""
    return hashlib.sha256(id.encode()).hexdigest()[:9]
