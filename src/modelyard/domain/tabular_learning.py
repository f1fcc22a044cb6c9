"""How the tabular model learns: exact gradients, and gradient descent that keeps no state of its own.

A step is trace, loss, descend: the learner traces a batch of answers; a loss over the traced log-probabilities, of any
kind, says how it changes with each of them; the learner turns that into the derivative for every weight and goes down.
The optimizer has no moments, so an adapter saved between two steps is all that a broken-off job needs to go on, bit for
bit (every sum over a set is exactly rounded, so that the order in which weights were loaded does not matter).
"""

import math
from collections.abc import Mapping, Sequence
from operator import mul

import attrs

from modelyard.domain.tabular import (
    WEIGHT_LIMIT,
    Active,
    Adapter,
    Features,
    Place,
    PromptFeatures,
    Row,
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


Errors = Mapping[int, float] | Sequence[float]
"""The derivative of a loss for logits, by token."""


@attrs.frozen
class Answer:
    """An answer to learn from: the features of its prompt, and its tokens, as a rule with the end of the turn."""

    features: PromptFeatures
    ids: tuple[int, ...]


@attrs.frozen
class Trace:
    """An answer as the weights of the moment see it."""

    scorer: Scorer
    places: Sequence[Place]

    @property
    def logprobs(self) -> list[float]:
        """The log-probability of each token (nats)."""
        return [place.logprob for place in self.places]

    @property
    def entropies(self) -> list[float]:
        """The entropy of the model at each token (nats)."""
        return [self.scorer.entropy(place) for place in self.places]


Part = tuple[Row, float, Errors, int]
"""A feature's row and value, what its tokens' logits should lose, and at how many places the feature was active."""


class Gradient:
    """The derivative of a loss for each weight of each active feature; every other weight has derivative 0.

    It is kept in `parts`, by feature, as factors: the derivative of a token of the row is value x error. As a rule that
    is one product for each weight, made where it is used.
    """

    def __init__(self) -> None:
        self.parts: dict[int, Part] = {}

    def add(self, active: Active, errors: Errors, places: int) -> None:
        """Add places where these features are active, and what they do to the logits there."""
        parts = self.parts
        for feature, value, row in active:
            part = parts.get(feature)
            parts[feature] = (row, value, errors, places) if part is None else _joined(part, value, errors, places)

    @property
    def rows(self) -> dict[int, list[float]]:
        """By feature, one derivative for each token of the feature's row, in the row's order."""
        parts = self.parts.items()
        return {feature: [value * errors[token] for token in row] for feature, (row, value, errors, _) in parts}

    @property
    def norm(self) -> float:
        """The Euclidean length."""
        derivatives = [value * errors[token] for row, value, errors, _ in self.parts.values() for token in row]
        return math.sqrt(math.fsum(map(mul, derivatives, derivatives)))


def _joined(part: Part, value: float, errors: Errors, places: int) -> Part:
    row, before, earlier, times = part
    return row, 1.0, {token: before * earlier[token] + value * errors[token] for token in row}, times + places


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
        met = [self._met(answer) for answer in answers]
        prompts = dict.fromkeys(answer.features for answer in answers)
        scorers = {features: Scorer(self._seed, self._rows, features) for features in prompts}
        return [
            Trace(scorer := scorers[answer.features], [scorer.place(*step) for step in steps])
            for answer, steps in zip(answers, met, strict=True)
        ]

    def _met(self, answer: Answer) -> list[tuple[int, int, Active]]:
        """Every token of an answer, the one before it, and the active features; their rows have the token from now."""
        for feature, _ in answer.features.constant:
            row = self._rows.setdefault(feature, {})
            for token in answer.ids:
                row.setdefault(token, 0.0)
        every = contexts(answer.features, answer.ids)
        return [(target, last, self._with_rows(features, target)) for target, last, features in every]

    def _with_rows(self, features: Features, target: int) -> Active:
        rows, active = self._rows, []
        for feature, value in features:
            row = rows.get(feature)
            if row is None:
                row = rows[feature] = {target: 0.0}
            elif target not in row:
                row[target] = 0.0
            active.append((feature, value, row))
        return active

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
        prompts = {trace.scorer: _Prompt(trace.scorer) for trace in traces}
        for trace, row in zip(traces, derivatives, strict=True):
            prompt = prompts[trace.scorer]
            for place, derivative in zip(trace.places, row, strict=True):
                _add_place(gradient, prompt, place, derivative)
        for prompt in prompts.values():
            gradient.add(prompt.scorer.constant, prompt.errors(), prompt.places)
        return gradient

    def _descend(self, gradient: Gradient, places: int, learning_rate: float, step: int) -> None:
        """Move each weight against its derivative, the further the fewer places its feature had a say at.

        A feature's derivative is so made a mean over the places where it is active (and one more, for caution with
        those seen once), instead of a share of the whole batch: rare contexts learn as fast as common ones.
        """
        lowest, highest = -WEIGHT_LIMIT, WEIGHT_LIMIT
        for feature, (_, value, errors, visits) in gradient.parts.items():
            rate = value * LOGITS_PER_RATE * learning_rate * places / (visits + 1)
            row = self._rows[feature]
            for token, weight in row.items():
                row[token] = weight = weight - rate * errors[token]
                if not lowest <= weight <= highest:
                    raise _diverged(step, f"a weight has passed {WEIGHT_LIMIT:g} nats", learning_rate)

    def _refuse_lost(self, traces: Sequence[Trace], learning_rate: float, step: int) -> None:
        losses = [-place.logprob for trace in traces for place in trace.places]
        mean = math.fsum(losses) / max(len(losses), 1)
        if not mean <= WORST_LOSS:
            raise _diverged(step, f"the model costs {mean:.3g} nats per token", learning_rate)


@attrs.define
class _Prompt:
    """What the places of the answers to one prompt do together to the logits that the prompt gives.

    `shifts` holds, by token, how much their errors differ from those of places where nothing has moved.
    """

    scorer: Scorer
    places: int = 0
    scale: float = 0.0
    shifts: list[float] = attrs.field(factory=lambda: [0.0] * VOCABULARY_SIZE)

    def errors(self) -> list[float]:
        """The derivative for the prompt's own logits, by token."""
        return [shift - self.scale * exp for shift, exp in zip(self.shifts, self.scorer.exps, strict=True)]


def _add_place(gradient: Gradient, prompt: _Prompt, place: Place, derivative: float) -> None:
    scale, shifts = derivative / place.total, prompt.shifts
    errors = dict(zip(place.logits, [-scale * exp for exp in place.exps], strict=True))
    errors[place.target] += derivative
    gradient.add(place.active, errors, 1)
    shifts[place.target] += derivative
    for token, gain in zip(place.logits, place.gains, strict=True):
        shifts[token] -= scale * gain
    prompt.scale += scale
    prompt.places += 1


def _diverged(step: int, symptom: str, learning_rate: float) -> TrainingError:
    return TrainingError(
        f"training diverged at step {step}: {symptom}; try a learning rate far below {learning_rate:g}, "
        "or go on from an earlier checkpoint"
    )


def _copied(rows: Mapping[int, Mapping[int, float]]) -> dict[int, dict[int, float]]:
    return {feature: dict(row) for feature, row in rows.items()}
