"""One answer under way in the engine."""

import codecs
import hashlib
import math
from collections.abc import Iterator
from collections.abc import Sequence as Many
from collections.abc import Sequence as Tokens
from enum import Enum
from typing import Any, Protocol

import attrs

from modelyard.domain.completion import CompletionRequest, Delta, FinishReason, Sampling, ToolCall, ToolCallDelta
from modelyard.domain.logprobs import TokenLogprob
from modelyard.errors import BackendError
from modelyard.formats.chat.tool_calls import ToolReader


class Grammar(Protocol):
    """What an answer's tokens must obey."""

    def allowed(self) -> bytes:
        """One byte for each token of the vocabulary, 0 where it may not come next."""
        ...

    def accept(self, token: int) -> bool:
        """Go on behind a token. Returns whether the answer may end here and nothing else can follow."""
        ...


class State(Enum):
    """Where a sequence is."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@attrs.frozen
class Sampled:
    """A token that was sampled: its log-probability as the model gives it, and the likeliest ones (id, logprob).

    The last one of an answer says why it is the last: so whoever reads along never sees the one without the other.
    """

    token: int
    logprob: float
    top: Tokens[tuple[int, float]] = ()
    reason: FinishReason | None = None


@attrs.define(eq=False)
class Sequence:
    """A prompt and the tokens that follow it.

    `slot` is the adapter's place in the bank. `max_tokens` bounds the answer; `top_logprobs` says how many of the
    likeliest tokens are told. `sampled` grows; whoever reads it, on any thread, remembers how far, and has all of it
    once the state is `ENDED`. `cached` is how many of its tokens lie in the cache, `read` whether all but the last that
    was sampled do; it is read `alone` when reading it beside others has failed. `failure` is what went wrong.
    """

    prompt: list[int]
    sampling: Sampling
    max_tokens: int
    slot: int = 0
    top_logprobs: int = 0
    grammar: Grammar | None = None
    sampled: list[Sampled] = attrs.field(factory=list)
    answer: list[int] = attrs.field(factory=list)
    state: State = State.WAITING
    failure: Exception | None = None
    cancelled: bool = False
    cached: int = 0
    read: bool = False
    alone: bool = False

    @property
    def reason(self) -> FinishReason | None:
        """Why the answer is complete, once it is."""
        return self.sampled[-1].reason if self.sampled else None

    @property
    def length(self) -> int:
        """How many tokens it has, prompt and answer."""
        return len(self.prompt) + len(self.answer)

    @property
    def tokens(self) -> list[int]:
        """All of them."""
        return [*self.prompt, *self.answer]

    def leads(self, other: "Sequence") -> bool:
        """Whether the other can take over what is read of this one, which has a row: it goes on in the same way."""
        start = self.cached
        end = min(start + 32, len(self.prompt) - 1, len(other.prompt) - 1)
        alike = self.slot == other.slot and start < end and self.prompt[start:end] == other.prompt[start:end]
        return alike and self.prompt[:start] == other.prompt[:start]

    def take(self, sampled: Sampled) -> bool:
        """Add a token, still to be shown. Returns whether the answer's grammar is complete. Raises what keeps it from
        going on.
        """
        if self.failure is not None:
            raise self.failure
        if math.isnan(sampled.logprob):
            raise BackendError("the model's output is no number: its weights, or those of its adapter, are broken")
        complete = self.grammar is not None and self.grammar.accept(sampled.token)
        self.answer.append(sampled.token)
        return complete

    def show(self, sampled: Sampled, reason: FinishReason | None) -> None:
        """Let readers see the token that was taken, and why the answer is complete with it, if it is."""
        self.sampled.append(sampled if reason is None else attrs.evolve(sampled, reason=reason))

    def end(self, failure: Exception | None = None) -> None:
        """It is over. The state comes last, as readers look at nothing else before."""
        self.failure = failure
        self.state = State.ENDED


UNTOLD = 64
"""Tokens at most that were sampled and not told, where nobody reads along: who goes away pays for what was told."""


class Speaker:
    """Tells one choice of a request, from what its sequence has sampled so far: token by token where somebody reads
    along, or where a stop string may end it.
    """

    def __init__(
        self,
        index: int,
        sequence: Sequence,
        request: CompletionRequest,
        token_bytes: Many[bytes],
        tools: ToolReader | None = None,
    ) -> None:
        self.sequence, self.told = sequence, 0
        self._index, self._request, self._bytes, self._tools = index, request, token_bytes, tools
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ended, self._calls = False, 0
        self._at_once = 1 if request.streamed or request.stop else UNTOLD

    @property
    def due(self) -> int:
        """How many tokens there must be for the next to be told, if it goes on."""
        return self.told + self._at_once

    @property
    def ended(self) -> bool:
        """Whether all has been told."""
        return self._ended

    def tell(self) -> Iterator[Delta]:
        """What has come since it was asked last.

        Raises what the sequence failed with, behind its tokens. Meanwhile another thread may step: so whether it is
        over is looked at first, and then its tokens, which are complete if it was.
        """
        sequence = self.sequence
        over = sequence.state is State.ENDED
        while self.due <= len(sequence.sampled) or (over and self.told < len(sequence.sampled)):
            yield from self._next(min(self.due, len(sequence.sampled)))
        if over and not self._ended:
            self._ended = True
            if sequence.failure is not None:
                raise sequence.failure

    def _next(self, upto: int) -> Iterator[Delta]:
        first, fresh = self.told == 0, self.sequence.sampled[self.told : upto]
        self.told = upto
        self._ended = fresh[-1].reason is not None
        text = self._decoder.decode(b"".join(self._bytes[one.token] for one in fresh), final=self._ended)
        said, *calls = self._pieces(text)
        yield self._said(said, fresh, first, last=not calls)
        for place, call in enumerate(calls, 1):
            yield Delta(index=self._index, tool_call=call, finish_reason=self._reason(place == len(calls)))

    def _reason(self, last: bool) -> FinishReason | None:
        """Why the answer ended, with the last delta of it."""
        if not (self._ended and last):
            return None
        called = self._calls and self.sequence.reason is FinishReason.STOP
        return FinishReason.TOOL_CALLS if called else self.sequence.reason

    def _pieces(self, text: str) -> list[Any]:
        """Content, and behind it the tool calls that are complete now."""
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

    def _said(self, text: str, fresh: Many[Sampled], first: bool, last: bool) -> Delta:
        request = self._request
        return Delta(
            text=text,
            tokens=len(fresh),
            index=self._index,
            logprobs=tuple(map(self._logprob, fresh)) if request.logprobs else (),
            token_ids=tuple(sampled.token for sampled in fresh) if request.return_token_ids else (),
            prompt_token_ids=tuple(self.sequence.prompt) if request.return_token_ids and first else (),
            finish_reason=self._reason(last),
        )

    def _logprob(self, sampled: Sampled) -> TokenLogprob:
        top = tuple(self._entry(token, logprob) for token, logprob in sampled.top)
        return self._entry(sampled.token, sampled.logprob, top)

    def _entry(self, token: int, logprob: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        raw = self._bytes[token]
        return TokenLogprob(raw.decode(errors="replace"), logprob, tuple(raw), top, token)


def _short(id: str) -> str:
    """Nine letters and digits, which is all that templates of Mistral take for the id of a call."""
    return hashlib.sha256(id.encode()).hexdigest()[:9]
