"""One answer under way in the engine."""

from collections.abc import Sequence as Tokens
from enum import Enum
from typing import Protocol

import attrs

from modelyard.domain.completion import FinishReason, Sampling


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
    """A token that was sampled: its log-probability as the model gives it, and the likeliest ones (id, logprob)."""

    token: int
    logprob: float
    top: Tokens[tuple[int, float]] = ()


@attrs.define(eq=False)
class Sequence:
    """A prompt and the tokens that follow it.

    `slot` is the adapter's place in the bank. `max_tokens` bounds the answer; `top_logprobs` says how many of the
    likeliest tokens are told. `sampled` grows; whoever reads it remembers how far. `row` is where it lies in the cache,
    `cached` how many of its tokens do. `failure` is what went wrong, if it ended so.
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
    reason: FinishReason | None = None
    failure: Exception | None = None
    cancelled: bool = False
    cached: int = 0

    @property
    def length(self) -> int:
        """How many tokens it has, prompt and answer."""
        return len(self.prompt) + len(self.answer)

    @property
    def most(self) -> int:
        """How many it can come to have."""
        return len(self.prompt) + self.max_tokens

    def token(self, place: int) -> int:
        """The token at a place."""
        return self.prompt[place] if place < len(self.prompt) else self.answer[place - len(self.prompt)]

    def end(self, reason: FinishReason | None = None, failure: Exception | None = None) -> None:
        """It is over."""
        self.state, self.reason, self.failure = State.ENDED, reason, failure
