"""How the tabular model learns: exact gradients, and gradient descent that keeps no state of its own.

A step is trace, loss, descend: the learner traces a batch of answers; a loss over the traced log-probabilities, of any
kind, says how it changes with each of them; the learner turns that into the derivative for every weight and goes down.
The optimizer has no moments, so an adapter saved between two steps is all that a broken-off job needs to go on, bit for
bit (every sum over a set is exactly rounded, so that the order in which weights were loaded does not matter).
"""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import add, mul

import attrs

from modelyard.domain.tabular import (
    WEIGHT_LIMIT,
    Adapter,
    Context,
    Place,
    PromptFeatures,
    Scorer,
    TabularModel,
    contexts,
)
from modelyard.domain.tokenizer import VOCABULARY_SIZE
from modelyard.errors import TrainingError

LOGITS_PER_RATE = 40_000.0
"""What a learning rate is multiplied with, so that the rates of large models (SFT 5e-5, RL 5e-6) teach this one too."""

WORST_LOSS = 8 * math.log(VOCABULARY_SIZE)
"""Nats per token at which training counts as diverged: eight times what blind guessing costs."""


@attrs.frozen
class Answer:
    """An answer to learn from: the features of its prompt, and its tokens, as a rule with the end of the turn."""

    features: PromptFeatures
    ids: tuple[int, ...]
    contexts: tuple[Context, ...] = attrs.field(init=False, repr=False, eq=False)

    @contexts.default
    def _contexts(self) -> tuple[Context, ...]:
        return tuple(contexts(self.features, self.ids))


@attrs.frozen
class Trace:
    """An answer as the weights of the moment see it."""

    scorer: Scorer
    places: tuple[Place, ...]

    @property
    def logprobs(self) -> list[float]:
        """The log-probability of each token (nats)."""
        return [place.logprob for place in self.places]

    @property
    def entropies(self) -> list[float]:
        """The entropy of the model at each token (nats)."""
        return [self.scorer.entropy(place) for place in self.places]


class Gradient:
    """The derivative of a loss for each weight of each active feature; every other weight has derivative 0.

    `rows` holds, by feature, one derivative for each token of the feature's row, in the row's order; `places`, at how
    many places of the traced answers the feature was active.
    """

    def __init__(self) -> None:
        self.rows: dict[int, list[float]] = {}
        self.places: dict[int, int] = {}

    def add(self, feature: int, derivatives: list[float], places: int) -> None:
        """Add one part of the sum."""
        row = self.rows.get(feature)
        self.rows[feature] = derivatives if row is None else list(map(add, row, derivatives))
        self.places[feature] = self.places.get(feature, 0) + places

    @property
    def norm(self) -> float:
        """The Euclidean length."""
        return math.sqrt(math.fsum(chain.from_iterable(map(mul, row, row) for row in self.rows.values())))


class Learner:
    """The working copy of a model in training. It never shares a row with the model it started from."""

    def __init__(self, model: TabularModel) -> None:
        self._seed = model.seed
        self._rows = _copied(model.adapter.rows)

    @property
    def rows(self) -> Mapping[int, Mapping[int, float]]:
        """The weights of the moment, by feature and token."""
        return self._rows

    def model(self) -> TabularModel:
        """The model as it stands, apart from what is learnt later."""
        return TabularModel(self._seed, Adapter(_copied(self._rows)))

    def trace(self, answers: Sequence[Answer]) -> list[Trace]:
        """The answers under the weights of the moment. Pairs met for the first time come to be here, with weight 0."""
        for answer in answers:
            self._meet(answer)
        prompts = dict.fromkeys(answer.features for answer in answers)
        scorers = {features: Scorer(self._seed, self._rows, features) for features in prompts}
        jobs = ((scorers[answer.features], answer.contexts) for answer in answers)
        return [Trace(scorer, tuple(scorer.places(steps))) for scorer, steps in jobs]

    def _meet(self, answer: Answer) -> None:
        for feature, _ in answer.features.constant:
            row = self._rows.setdefault(feature, {})
            for token in answer.ids:
                row.setdefault(token, 0.0)
        for target, _, active in answer.contexts:
            for feature, _ in active:
                row = self._rows.setdefault(feature, {})
                if target not in row:
                    row[target] = 0.0

    def step(
        self, traces: Sequence[Trace], derivatives: Sequence[Sequence[float]], learning_rate: float, step: int
    ) -> dict[str, float]:
        """One optimizer step; `derivatives` are the loss's, for each log-probability of the latest `trace`.

        Returns `grad_norm`. Raises `TrainingError`, naming `step`, when training has diverged; the learner is then of
        no further use.
        """
        self._refuse_lost(traces, learning_rate, step)
        gradient = self.gradient(traces, derivatives)
        self._descend(gradient, sum(len(trace.places) for trace in traces), learning_rate, step)
        return {"grad_norm": gradient.norm}

    def gradient(self, traces: Sequence[Trace], derivatives: Sequence[Sequence[float]]) -> Gradient:
        """The loss's derivative for every weight, chained through the softmax of every place."""
        gradient = Gradient()
        for trace, row in zip(traces, derivatives, strict=True):
            errors = [0.0] * VOCABULARY_SIZE
            for place, derivative in zip(trace.places, row, strict=True):
                self._add_place(gradient, errors, trace.scorer, place, derivative)
            self._add_prompt(gradient, errors, trace, row)
        return gradient

    def _add_place(
        self, gradient: Gradient, errors: list[float], scorer: Scorer, place: Place, derivative: float
    ) -> None:
        """Add one place to the gradient, and to the `errors` of its prompt's logits where they moved."""
        scale = derivative / place.total
        moved = {token: -scale * exp for token, exp in place.exps.items()}
        moved[place.target] += derivative
        for token, error in moved.items():
            errors[token] += error + scale * scorer.exps[token]
        for feature, value in place.active:
            gradient.add(feature, [value * moved[token] for token in self._rows[feature]], 1)

    def _add_prompt(self, gradient: Gradient, errors: list[float], trace: Trace, derivatives: Sequence[float]) -> None:
        """Add an answer's constant features, after the share of the tokens whose logits did not move."""
        scale = math.fsum(derivative / place.total for derivative, place in zip(derivatives, trace.places, strict=True))
        errors = [error - scale * exp for error, exp in zip(errors, trace.scorer.exps, strict=True)]
        for feature, value in trace.scorer.features.constant:
            gradient.add(feature, [value * errors[token] for token in self._rows[feature]], len(trace.places))

    def _descend(self, gradient: Gradient, places: int, learning_rate: float, step: int) -> None:
        """Move each weight against its derivative, the further the fewer places its feature had a say at.

        A feature's derivative is so made a mean over the places where it is active (and one more, for caution with
        those seen once), instead of a share of the whole batch: rare contexts learn as fast as common ones.
        """
        for feature, derivatives in gradient.rows.items():
            rate = LOGITS_PER_RATE * learning_rate * places / (gradient.places[feature] + 1)
            row = self._rows[feature]
            weights = [weight - rate * derivative for weight, derivative in zip(row.values(), derivatives, strict=True)]
            if not max(map(abs, weights)) <= WEIGHT_LIMIT:
                raise _diverged(step, f"a weight has passed {WEIGHT_LIMIT:g} nats", learning_rate)
            row.update(zip(row, weights, strict=True))

    def _refuse_lost(self, traces: Sequence[Trace], learning_rate: float, step: int) -> None:
        losses = [-place.logprob for trace in traces for place in trace.places]
        mean = math.fsum(losses) / max(len(losses), 1)
        if not mean <= WORST_LOSS:
            raise _diverged(step, f"the model costs {mean:.3g} nats per token", learning_rate)


def _diverged(step: int, symptom: str, learning_rate: float) -> TrainingError:
    return TrainingError(
        f"training diverged at step {step}: {symptom}; try a learning rate far below {learning_rate:g}, "
        "or go on from an earlier checkpoint"
    )


def _copied(rows: Mapping[int, Mapping[int, float]]) -> dict[int, dict[int, float]]:
    return {feature: dict(row) for feature, row in rows.items()}
