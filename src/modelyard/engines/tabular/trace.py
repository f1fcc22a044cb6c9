"""Answers as the tabular model sees them while it learns: each place with its softmax, in few numbers.

All features of a place name the token before it. So its logits can differ from those that the prompt alone gives only
at the tokens that training has met behind that one, and at those that the untrained model likes there: two dozen, which
have slots of their own. What a place needs is short lists over these, and the softmax is normalised exactly at their
cost instead of the vocabulary's.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import add, itemgetter, mul
from typing import NamedTuple

from modelyard.engines.tabular.model import PromptFeatures, Row, Scorer

Weights = dict[int, float]
"""A row that is learnt: weights (nats), by slot; by token where the feature is constant for a prompt."""


class Following(dict[int, Weights]):
    """What may follow one token: tokens, each with its slot, and by feature the rows that have been asked for.

    The rows are copies of those in `start`, by slot; `find` gives one, or None where training has met none yet. `liked`
    is what the untrained model likes to follow: it has the first slots.
    """

    def __init__(self, start: Mapping[int, Row], liked: Row) -> None:
        super().__init__()
        self._start, self.liked = start, liked
        self.tokens = list(liked)
        self._slots = {token: slot for slot, token in enumerate(liked)}
        self.find = self.__getitem__ if start else self.get

    def __missing__(self, feature: int) -> Weights | None:
        start = self._start.get(feature)
        if start is None:
            return None
        row = self[feature] = {self.slot(token): weight for token, weight in start.items()}
        return row

    def slot(self, token: int) -> int:
        """The slot of a token, which has one from now."""
        slot = self._slots.get(token)
        if slot is None:
            slot = self._slots[token] = len(self.tokens)
            self.tokens.append(token)
        return slot


class Met(NamedTuple):
    """A place before it is scored: what may follow there, the slot of the token that does, the active features, and
    their rows.
    """

    following: Following
    slot: int
    features: Sequence[int]
    rows: Sequence[Weights | None]


class Ground:
    """What a prompt alone gives behind one token: by slot, and summed over the tokens that have no slot there."""

    def __init__(self, prompt: "Prompt", following: Following) -> None:
        own, liked = itemgetter(*following.tokens), following.liked
        logits, self.exps = own(prompt.scorer.logits), own(prompt.scorer.exps)
        self.tokens = following.tokens
        self.logits = [*map(add, logits, liked.values()), *logits[len(liked) :]]
        self.rest: float = prompt.total - math.fsum(self.exps)
        self.rest_energy: float = prompt.energy - math.fsum(map(mul, self.exps, logits))


class Place(NamedTuple):
    """One token of an answer under the weights of the moment: logits and their exponentials, by slot. `total` is the
    normaliser over the whole vocabulary, `logprob` the token's own log-probability (nats).
    """

    met: Met
    ground: Ground
    logits: Sequence[float]
    exps: Sequence[float]
    total: float
    logprob: float

    @property
    def entropy(self) -> float:
        """The entropy of the distribution (nats)."""
        energy: float = self.ground.rest_energy + math.fsum(map(mul, self.exps, self.logits))
        return max(0.0, math.log(self.total) - energy / self.total)


class Prompt:
    """What the answers to one prompt share. It holds for one step, once all its answers have been met."""

    def __init__(self, scorer: Scorer, features: PromptFeatures) -> None:
        self.scorer, self.features = scorer, features
        self.total = sum(scorer.exps)
        self.energy: float = sum(map(mul, scorer.exps, scorer.logits))
        self._grounds: dict[int, Ground] = {}

    def places(self, answer: Iterable[Met]) -> list[Place]:
        """The places of an answer."""
        values, grounds, places = self.features.values, self._grounds, []
        for met in answer:
            following, slot, _, rows = met
            ground = grounds.get(id(following))
            if ground is None:
                ground = grounds[id(following)] = Ground(self, following)
            logits = ground.logits.copy()
            for value, row in zip(values, rows, strict=True):
                if row:
                    for at, weight in row.items():
                        logits[at] += value * weight
            exps = list(map(math.exp, logits))
            total = self._total(ground, exps)
            places.append(Place(met, ground, logits, exps, total, logits[slot] - math.log(total)))
        return places

    def _total(self, ground: Ground, exps: Sequence[float]) -> float:
        """The normaliser; summed anew where the difference to the prompt's own would leave too few digits."""
        total = ground.rest + math.fsum(exps)
        if total >= 1e-3 * self.total:
            return total
        own = self.scorer.exps.copy()
        for token, exp in zip(ground.tokens, exps, strict=True):
            own[token] = exp
        return sum(own)


class Trace(NamedTuple):
    """An answer under the weights of the moment."""

    prompt: Prompt
    places: Sequence[Place]

    @property
    def logprobs(self) -> list[float]:
        """The log-probability of each token (nats)."""
        return [place.logprob for place in self.places]

    @property
    def entropies(self) -> list[float]:
        """The entropy of the model at each token (nats)."""
        return [place.entropy for place in self.places]
