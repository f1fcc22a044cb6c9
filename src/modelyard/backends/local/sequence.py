"""One answer under way in the engine."""

import math
from collections.abc import Sequence as Tokens
from enum import Enum
from typing import Protocol

import attrs

from modelyard.domain.completion import FinishReason, Sampling
from modelyard.errors import BackendError


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
