"""Answers as the tabular model sees them in training: each position with its softmax, in few numbers.

All features of a position include the token before it. So its logits can differ from those that the prompt alone gives
only at the tokens that training has met after that one, and at those that the untrained model prefers: two dozen,
which have slots of their own. A position needs short lists over these only, and the softmax is normalised exactly at
their cost instead of the vocabulary's.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import add, itemgetter, mul
from typing import NamedTuple

from modelyard.engines.tabular.model import PromptFeatures, PromptScorer, Row

Weights = dict[int, float]
"""A row that is learnt: weights (nats), by slot; by token where the feature is constant for a prompt."""


Own = Callable[[Sequence[float]], tuple[float, ...]]

_new = tuple.__new__
"""Makes a named tuple without counting its values, which takes half the time; there are two for every token."""


class Successors(dict[int, Weights]):
    """The possible successors of one token, each with its slot, and by feature the rows used so far.

    The rows are copies of those in `start`, by slot; `find` returns one, or None if it did not occur in training yet.
    `preferred` are the successors that the untrained model prefers: they have the first slots.
    """

    def __init__(self, start: Mapping[int, Row], preferred: Row) -> None:
        super().__init__()
        self.preferred: Row = preferred
        self._start = start
        self.tokens: list[int] = list(preferred)
        self._slots = {token: slot for slot, token in enumerate(preferred)}
        self._own: Own | None = None
        self.find: Callable[[int], Weights | None] = self.__getitem__ if start else self.get

    def __missing__(self, feature: int) -> Weights | None:
        start = self._start.get(feature)
        if start is None:
            return None
        row = self[feature] = {self.slot(token): weight for token, weight in start.items()}
        return row

    def slot(self, token: int) -> int:
        """Return the slot of a token, assigning one if needed."""
        slot = self._slots.get(token)
        if slot is None:
            slot = self._slots[token] = len(self.tokens)
            self.tokens.append(token)
            self._own = None
        return slot

    @property
    def own(self) -> "Own":
        """Return what picks, from numbers by token, those of the successors, by slot."""
        if self._own is None:
            self._own = itemgetter(*self.tokens)
        return self._own


class Occurrence(NamedTuple):
    """A position before it is scored: its possible successors, the slot of the actual one, the active features, and
    their rows.
    """

    successors: Successors
    slot: int
    features: Sequence[int]
    rows: Sequence[Weights | None]


class PromptPart:
    """The prompt's own part after one token: by slot, and summed over the tokens that have no slot there."""

    def __init__(self, prompt: "Prompt", successors: Successors) -> None:
        own, preferred = successors.own, successors.preferred
        self.exps: Sequence[float] = own(prompt.scorer.exps)
        logits = own(prompt.scorer.logits)
        self.tokens: list[int] = successors.tokens
        self.logits: list[float] = [*map(add, logits, preferred.values()), *logits[len(preferred) :]]
        self.rest: float = prompt.total - math.fsum(self.exps)
        self.rest_energy: float = prompt.energy - math.fsum(own(prompt.energies))


class Position(NamedTuple):
    """One token of an answer under the current weights: logits and their exponentials, by slot.

    `total` is the normaliser over the whole vocabulary, `logprob` the token's own log-probability (nats).
    """

    occurrence: Occurrence
    prompt_part: PromptPart
    logits: Sequence[float]
    exps: Sequence[float]
    total: float
    logprob: float

    @property
    def entropy(self) -> float:
        """The entropy of the distribution (nats)."""
        energy: float = self.prompt_part.rest_energy + math.fsum(map(mul, self.exps, self.logits))
        return max(0.0, math.log(self.total) - energy / self.total)


class Prompt:
    """What the answers to one prompt share. Valid for one step, once all its answers have been prepared."""

    def __init__(self, scorer: PromptScorer, features: PromptFeatures) -> None:
        self.scorer: PromptScorer = scorer
        self.features: PromptFeatures = features
        self.total = sum(scorer.exps)
        self.energies: list[float] = list(map(mul, scorer.exps, scorer.logits))
        self.energy: float = sum(self.energies)
        self._prompt_parts: dict[int, PromptPart] = {}

    def positions(self, answer: Iterable[Occurrence]) -> list[Position]:
        """Return the positions of an answer."""
        values, prompt_parts, positions = self.features.values, self._prompt_parts, []
        for occurrence in answer:
            successors, slot, _, rows = occurrence
            prompt_part = prompt_parts.get(id(successors))
            if prompt_part is None:
                prompt_part = prompt_parts[id(successors)] = PromptPart(self, successors)
            logits = prompt_part.logits.copy()
            for value, row in zip(values, rows, strict=True):
                if row:
                    for at, weight in row.items():
                        logits[at] += value * weight
            exps = list(map(math.exp, logits))
            total = self._total(prompt_part, exps)
            known = (occurrence, prompt_part, logits, exps, total, logits[slot] - math.log(total))
            positions.append(_new(Position, known))
        return positions

    def _total(self, prompt_part: PromptPart, exps: Sequence[float]) -> float:
        """Return the normaliser; summed again if the difference to the prompt's own would leave too few digits."""
        total = prompt_part.rest + math.fsum(exps)
        if total >= 1e-3 * self.total:
            return total
        own = self.scorer.exps.copy()
        for token, exp in zip(prompt_part.tokens, exps, strict=True):
            own[token] = exp
        return sum(own)


class Trace(NamedTuple):
    """An answer under the current weights."""

    prompt: Prompt
    positions: Sequence[Position]

    @property
    def logprobs(self) -> list[float]:
        """The log-probability of each token (nats)."""
        return [one.logprob for one in self.positions]

    @property
    def entropies(self) -> list[float]:
        """The entropy of the model at each token (nats)."""
        return [one.entropy for one in self.positions]
