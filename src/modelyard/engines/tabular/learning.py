"""How the tabular model learns: exact gradients, and gradient descent that keeps no state of its own.

A step is trace, loss, descend: the learner traces a batch of answers; a loss over the traced log-probabilities, of any
kind, says how it changes with each of them; the learner turns that into the derivative for every weight and goes down.
The optimizer has no moments, so an adapter saved between two steps is all that a broken-off job needs to go on, bit for
bit (no result depends on the order in which weights were loaded: sums over slots are exactly rounded).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from operator import add

import attrs

from modelyard.engines.tabular.model import (
    NO_WEIGHTS,
    WEIGHT_LIMIT,
    Adapter,
    PromptFeatures,
    Row,
    Scorer,
    TabularModel,
    contexts,
    habit,
)
from modelyard.engines.tabular.tokenizer import VOCABULARY_SIZE
from modelyard.engines.tabular.trace import Following, Met, Prompt, Trace, Weights
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


Part = tuple[Weights, float, Sequence[float], int]
"""A feature's row and value, the derivatives for the logits by what the row goes by, and how often it was active."""


@attrs.define
class _Own:
    """What the places of the answers to one prompt do to the prompt's own logits.

    By token it is `shifts`, less `scale` x the exponential of the logit.
    """

    shifts: list[float] = attrs.field(factory=lambda: [0.0] * VOCABULARY_SIZE)
    scale: float = 0.0
    places: int = 0


class Gradient:
    """The derivative of a loss for each weight of each active feature; every other weight has derivative 0.

    It is kept in `parts`, by feature, as factors: a derivative is value x error. As a rule that is one product for each
    weight, made where it is used.
    """

    def __init__(self) -> None:
        self.parts: dict[int, Part] = {}
        self._own: dict[Prompt, _Own] = {}

    def add(self, trace: Trace, derivatives: Sequence[float]) -> None:
        """Add an answer, given the loss's derivative for each of its log-probabilities.

        Weights for pairs of feature and token that it meets for the first time come to be here, with value 0.
        """
        own = self._own.setdefault(trace.prompt, _Own())
        parts, values, shifts = self.parts, trace.prompt.features.values, own.shifts
        for ((following, slot, features, rows), ground, _, exps, total, _), derivative in zip(
            trace.places, derivatives, strict=True
        ):
            scale = derivative / total
            errors = [-scale * exp for exp in exps]
            errors[slot] += derivative
            for token, error, exp in zip(ground.tokens, errors, ground.exps, strict=True):
                shifts[token] += error + scale * exp
            own.scale += scale
            for feature, value, known in zip(features, values, rows, strict=True):
                part = parts.get(feature)
                if part is None:
                    row = following.setdefault(feature, {}) if known is None else known
                    parts[feature] = row, value, errors, 1
                else:
                    row = part[0]
                    parts[feature] = _joined(part, value, errors, 1)
                if slot not in row:
                    row[slot] = 0.0
        own.places += len(trace.places)

    def add_constant(self, rows: Mapping[int, Weights]) -> None:
        """Add the features that are constant for the prompts of the answers so far."""
        for prompt, own in self._own.items():
            errors = [shift - own.scale * exp for shift, exp in zip(own.shifts, prompt.scorer.exps, strict=True)]
            for feature, value in prompt.features.constant:
                new = (rows[feature], value, errors, own.places)
                part = self.parts.get(feature)
                self.parts[feature] = new if part is None else _joined(part, *new[1:])

    @property
    def rows(self) -> dict[int, list[float]]:
        """By feature, one derivative for each weight of the feature's row, in the row's order."""
        parts = self.parts.items()
        return {feature: [value * errors[at] for at in row] for feature, (row, value, errors, _) in parts}


def _joined(part: Part, value: float, errors: Sequence[float], places: int) -> Part:
    row, before, earlier, times = part
    if value == before:
        return row, value, list(map(add, earlier, errors)), times + places
    return row, 1.0, [before * a + value * b for a, b in zip(earlier, errors, strict=True)], times + places


class Learner:
    """The working copy of a model in training. It never shares a row with the model it started from."""

    def __init__(self, model: TabularModel) -> None:
        self._seed, self._start = model.seed, model.adapter.rows
        self._constant: dict[int, Weights] = {}
        self._following: dict[int, Following] = {}

    @property
    def rows(self) -> Mapping[int, Row]:
        """The weights of the moment, by feature and token."""
        constant = {feature: row.copy() for feature, row in self._constant.items()}
        return {**self._start, **constant, **dict(self._learnt())}

    def _learnt(self) -> Iterator[tuple[int, Row]]:
        for following in self._following.values():
            tokens = following.tokens
            for feature, row in following.items():
                yield feature, {tokens[slot]: weight for slot, weight in row.items()}

    def model(self) -> TabularModel:
        """The model as it stands, apart from what is learnt later."""
        return TabularModel(self._seed, Adapter(self.rows))

    def trace(self, answers: Sequence[Answer]) -> list[Trace]:
        """The answers under the weights of the moment."""
        met = [self._met(answer) for answer in answers]
        prompts = {
            features: self._prompt(features) for features in dict.fromkeys(answer.features for answer in answers)
        }
        return [
            Trace(prompt := prompts[answer.features], prompt.places(places))
            for answer, places in zip(answers, met, strict=True)
        ]

    def _prompt(self, features: PromptFeatures) -> Prompt:
        return Prompt(Scorer(self._seed, self._constant, features), features)

    def _met(self, answer: Answer) -> list[Met]:
        """Every place of an answer. Its tokens have slots from now, and weights for what is constant."""
        self._meet_constant(answer)
        places = []
        for target, last, features in contexts(answer.features, answer.ids):
            following = self._following.get(last)
            if following is None:
                following = self._following[last] = Following(self._start, habit(self._seed, last))
            places.append(Met(following, following.slot(target), features, list(map(following.find, features))))
        return places

    def _meet_constant(self, answer: Answer) -> None:
        tokens = set(answer.ids)
        for feature, _ in answer.features.constant:
            row = self._constant.get(feature)
            if row is None:
                row = self._constant[feature] = dict(self._start.get(feature, NO_WEIGHTS))
            row.update(dict.fromkeys(tokens - row.keys(), 0.0))

    def step(
        self, traces: Sequence[Trace], derivatives: Sequence[Sequence[float]], learning_rate: float, step: int
    ) -> dict[str, float]:
        """One optimizer step; `derivatives` are the loss's, for each log-probability of the latest `trace`.

        Returns `grad_norm`. Raises `TrainingError`, naming `step`, when training has diverged; the learner is then of
        no further use.
        """
        _refuse_lost(traces, learning_rate, step)
        places = sum(len(trace.places) for trace in traces)
        slopes = _descend(self.gradient(traces, derivatives), places, learning_rate, step)
        return {"grad_norm": math.hypot(*slopes)}

    def gradient(self, traces: Sequence[Trace], derivatives: Sequence[Sequence[float]]) -> Gradient:
        """The loss's derivative for every weight, chained through the softmax of every place."""
        gradient = Gradient()
        for trace, row in zip(traces, derivatives, strict=True):
            gradient.add(trace, row)
        gradient.add_constant(self._constant)
        return gradient


def _descend(gradient: Gradient, places: int, learning_rate: float, step: int) -> list[float]:
    """Move each weight against its derivative, the further the fewer places its feature had a say at.

    A feature's derivative is so made a mean over the places where it is active (and one more, for caution with those
    seen once), instead of a share of the whole batch: rare contexts learn as fast as common ones. Returns all
    derivatives.
    """
    lowest, highest = -WEIGHT_LIMIT, WEIGHT_LIMIT
    slopes: list[float] = []
    whole_rate = LOGITS_PER_RATE * learning_rate * places
    for row, value, errors, visits in gradient.parts.values():
        rate = whole_rate / (visits + 1)
        for at, weight in row.items():
            slope = value * errors[at]
            slopes.append(slope)
            row[at] = weight = weight - rate * slope
            if not lowest <= weight <= highest:
                raise _diverged(step, f"a weight has passed {WEIGHT_LIMIT:g} nats", learning_rate)
    return slopes


def _refuse_lost(traces: Sequence[Trace], learning_rate: float, step: int) -> None:
    losses = [-place.logprob for trace in traces for place in trace.places]
    mean = math.fsum(losses) / max(len(losses), 1)
    if not mean <= WORST_LOSS:
        raise _diverged(step, f"the model costs {mean:.3g} nats per token", learning_rate)


def _diverged(step: int, symptom: str, learning_rate: float) -> TrainingError:
    return TrainingError(
        f"training diverged at step {step}: {symptom}; try a learning rate far below {learning_rate:g}, "
        "or go on from an earlier checkpoint"
    )
