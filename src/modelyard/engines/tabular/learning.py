"""How the tabular model learns: exact gradients, and gradient descent without optimizer state.

A step is trace, loss, descend: the learner traces a batch of answers; a loss over the traced log-probabilities, of any
kind, gives its derivative for each of them; the learner turns these into the derivative of every weight and descends.
The optimizer has no moments, so an adapter saved between two steps is all that an interrupted job needs to resume, bit
for bit (no result depends on the order in which weights were loaded: sums over slots are exactly rounded).
"""

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from operator import add

import attrs

from modelyard.engines.tabular.model import (
    NO_WEIGHTS,
    TOKEN_BITS,
    WEIGHT_LIMIT,
    Adapter,
    Context,
    PromptFeatures,
    PromptScorer,
    Row,
    TabularModel,
    contexts,
    habit,
)
from modelyard.engines.tabular.tokenizer import TOKENS, VOCABULARY_SIZE
from modelyard.engines.tabular.trace import Occurrence, Prompt, Successors, Trace, Weights
from modelyard.errors import TrainingError

_new = tuple.__new__
"""Makes a named tuple without counting its values (see `trace`)."""

LOGITS_PER_RATE = 40_000.0
"""The factor on learning rates, so that the rates of large models (SFT 5e-5, RL 5e-6) also suit this one."""

WORST_LOSS = 8 * math.log(VOCABULARY_SIZE)
"""Nats per token at which training counts as diverged: eight times the loss of uniform guessing."""


@attrs.frozen
class TargetAnswer:
    """An answer to learn from: the features of its prompt, and its tokens, usually with the end of the turn.

    `several` are the tokens to score instead of each of its own.
    """

    features: PromptFeatures
    ids: tuple[int, ...]
    several: tuple[tuple[int, ...], ...] = ()

    @property
    def targets(self) -> Sequence[int]:
        """The tokens to score, position by position."""
        return [one for tokens in self.several for one in tokens] if self.several else self.ids

    @property
    def contexts(self) -> Sequence[Context]:
        """The tokens to score, each in its context."""
        own = list(contexts(self.features, self.ids))
        if not self.several:
            return own
        return [(one, *at[1:]) for at, tokens in zip(own, self.several, strict=True) for one in tokens]


@attrs.frozen
class TargetTokens:
    """Tokens to learn from, each in a context of its own, of answers to one prompt."""

    features: PromptFeatures
    contexts: Sequence[Context]


Part = tuple[Weights, float, Sequence[float], int]
"""A feature's row and value, the derivatives of the logits by the row's keys, and how often it was active."""


@attrs.define
class _Own:
    """The effect of the positions of a prompt's answers on the prompt's own logits.

    By token it is `shifts`, less `scale` x the exponential of the logit.
    """

    shifts: list[float] = attrs.field(factory=lambda: [0.0] * VOCABULARY_SIZE)
    scale: float = 0.0
    positions: int = 0


class Gradient:
    """The derivative of a loss for each weight of each active feature; every other weight has derivative 0.

    It is stored in `parts`, by feature, as factors: a derivative is value x error. Usually that is one product for each
    weight, computed where it is used.
    """

    def __init__(self) -> None:
        self.parts: dict[int, Part] = {}
        self._own: dict[Prompt, _Own] = {}

    def add(self, trace: Trace, derivatives: Sequence[float]) -> None:
        """Add an answer, given the loss's derivative for each of its log-probabilities.

        Pairs of feature and token that are new get a weight of value 0.
        """
        own = self._own.setdefault(trace.prompt, _Own())
        parts, values, shifts = self.parts, trace.prompt.features.values, own.shifts
        for ((successors, slot, features, rows), prompt_part, _, exps, total, _), derivative in zip(
            trace.positions, derivatives, strict=True
        ):
            scale = derivative / total
            share = -scale
            errors = [share * exp for exp in exps]
            errors[slot] += derivative
            for token, error, exp in zip(prompt_part.tokens, errors, prompt_part.exps, strict=True):
                shifts[token] += error + scale * exp
            own.scale += scale
            for feature, value, known in zip(features, values, rows, strict=True):
                if feature in parts:
                    part = parts[feature] = _joined(parts[feature], value, errors, 1)
                    row = part[0]
                else:
                    row = successors.setdefault(feature, {}) if known is None else known
                    parts[feature] = row, value, errors, 1
                if slot not in row:
                    row[slot] = 0.0
        own.positions += len(trace.positions)

    def add_constant(self, rows: Mapping[int, Weights]) -> None:
        """Add the features that are constant for the prompts of the answers so far."""
        for prompt, own in self._own.items():
            errors = [shift - own.scale * exp for shift, exp in zip(own.shifts, prompt.scorer.exps, strict=True)]
            for feature, value in prompt.features.constant:
                new = (rows[feature], value, errors, own.positions)
                part = self.parts.get(feature)
                self.parts[feature] = new if part is None else _joined(part, *new[1:])

    @property
    def rows(self) -> dict[int, list[float]]:
        """By feature, one derivative for each weight of the feature's row, in the row's order."""
        parts = self.parts.items()
        return {feature: [value * errors[at] for at in row] for feature, (row, value, errors, _) in parts}


def _joined(part: Part, value: float, errors: Sequence[float], positions: int) -> Part:
    row, before, earlier, times = part
    if value == before:
        return row, value, list(map(add, earlier, errors)), times + positions
    return row, 1.0, [before * a + value * b for a, b in zip(earlier, errors, strict=True)], times + positions


class WorkingCopy:
    """The working copy of a model in training. It never shares a row with the model it started from."""

    def __init__(self, model: TabularModel) -> None:
        self._seed, self._start = model.seed, model.adapter.rows
        self._constant: dict[int, Weights] = {}
        self._successors: dict[int, Successors] = {}

    @property
    def rows(self) -> Mapping[int, Row]:
        """The current weights, by feature and token."""
        rows = dict(self._start)
        for tokens, features in self._tables():
            for feature, row in features.items():
                rows[feature] = {tokens[at]: weight for at, weight in row.items()}
        return rows

    def by_token(self, gradient: Gradient) -> dict[int, dict[int, float]]:
        """Return the derivative for each weight, by feature and token as in `rows`."""
        found: dict[int, dict[int, float]] = {}
        for tokens, features in self._tables():
            for feature in features.keys() & gradient.parts:
                row, value, errors, _ = gradient.parts[feature]
                found[feature] = {tokens[at]: value * errors[at] for at in row}
        return found

    def _tables(self) -> Iterator[tuple[Sequence[int], Mapping[int, Weights]]]:
        """Yield the rows that training has met, by feature, with the tokens that their weights belong to."""
        yield TOKENS, self._constant
        for successors in self._successors.values():
            yield successors.tokens, successors

    def parameters(self) -> "tuple[array[int], array[float]]":
        """Return the current weights as `Adapter.parameters` does."""
        weights = {
            feature << TOKEN_BITS | token: one for feature, row in self._start.items() for token, one in row.items()
        }
        for tokens, rows in self._tables():
            for feature, row in rows.items():
                first = feature << TOKEN_BITS
                for at, weight in row.items():
                    weights[first | tokens[at]] = weight
        ids = sorted(weights)
        return array("q", ids), array("d", map(weights.__getitem__, ids))

    def model(self) -> TabularModel:
        """Return a copy of the current model, which later steps do not change."""
        return TabularModel(self._seed, Adapter(self.rows))

    def trace(self, answers: Sequence[TargetAnswer | TargetTokens]) -> list[Trace]:
        """Score the answers under the current weights."""
        occurrences = [self._occurrences(answer) for answer in answers]
        prompts = {
            features: self._prompt(features) for features in dict.fromkeys(answer.features for answer in answers)
        }
        return [
            Trace(prompt := prompts[answer.features], prompt.positions(positions))
            for answer, positions in zip(answers, occurrences, strict=True)
        ]

    def _prompt(self, features: PromptFeatures) -> Prompt:
        return Prompt(PromptScorer(self._seed, self._constant, features), features)

    def _occurrences(self, answer: TargetAnswer | TargetTokens) -> list[Occurrence]:
        """Prepare every position of an answer. Its tokens get slots, and weights for constant features."""
        targets = answer.contexts
        self._add_constant(answer.features, {target for target, _, _ in targets})
        positions = []
        for target, last, features in targets:
            successors = self._successors.get(last)
            if successors is None:
                successors = self._successors[last] = Successors(self._start, habit(self._seed, last))
            rows = list(map(successors.find, features))
            positions.append(_new(Occurrence, (successors, successors.slot(target), features, rows)))
        return positions

    def _add_constant(self, features: PromptFeatures, tokens: set[int]) -> None:
        for feature, _ in features.constant:
            row = self._constant.get(feature)
            if row is None:
                row = self._constant[feature] = dict(self._start.get(feature, NO_WEIGHTS))
            row.update(dict.fromkeys(tokens.difference(row), 0.0))

    def step(
        self, traces: Sequence[Trace], derivatives: Sequence[Sequence[float]], learning_rate: float, step: int
    ) -> dict[str, float]:
        """Make one optimizer step; `derivatives` are the loss's, for each log-probability of the latest `trace`.

        Returns `grad_norm`. Raises `TrainingError`, naming `step`, if training has diverged; the learner must not be
        used after that.
        """
        refuse_lost([trace.logprobs for trace in traces], learning_rate, step)
        positions = sum(len(trace.positions) for trace in traces)
        squares = _descend(self.gradient(traces, derivatives), positions, learning_rate, step)
        return {"grad_norm": math.sqrt(math.fsum(squares))}

    def gradient(self, traces: Sequence[Trace], derivatives: Sequence[Sequence[float]]) -> Gradient:
        """Return the loss's derivative for every weight, chained through the softmax of every position."""
        gradient = Gradient()
        for trace, row in zip(traces, derivatives, strict=True):
            gradient.add(trace, row)
        gradient.add_constant(self._constant)
        return gradient


def full_rate(learning_rate: float, positions: int) -> float:
    """Return the factor on derivatives in a step on so many positions, before the share of a feature."""
    return LOGITS_PER_RATE * learning_rate * positions


def _descend(gradient: Gradient, positions: int, learning_rate: float, step: int) -> list[float]:
    """Move each weight against its derivative, the further the fewer positions its feature was active at.

    A feature's derivative so becomes a mean over the positions where it is active (and one more, as a caution with
    features seen once), instead of a share of the whole batch: rare contexts learn as fast as common ones. Returns the
    squares of all derivatives.
    """
    lowest, highest = -WEIGHT_LIMIT, WEIGHT_LIMIT
    squares: list[float] = []
    full = full_rate(learning_rate, positions)
    for row, value, errors, visits in gradient.parts.values():
        rate = full / (visits + 1)
        for at, weight in row.items():
            slope = value * errors[at]
            squares.append(slope * slope)
            row[at] = weight = weight - rate * slope
            if not lowest <= weight <= highest:
                raise diverged(step, f"a weight has passed {WEIGHT_LIMIT:g} nats", learning_rate)
    return squares


def refuse_lost(logprobs: Sequence[Sequence[float]], learning_rate: float, step: int) -> None:
    """Raise `TrainingError` when tokens with these log-probabilities show that training has diverged."""
    losses = [-logprob for row in logprobs for logprob in row]
    mean = math.fsum(losses) / max(len(losses), 1)
    if not mean <= WORST_LOSS:
        raise diverged(step, f"the model costs {mean:.3g} nats per token", learning_rate)


def diverged(step: int, symptom: str, learning_rate: float) -> TrainingError:
    """Return the error of training that has diverged."""
    return TrainingError(
        f"training diverged at step {step}: {symptom}; try a learning rate far below {learning_rate:g}, "
        "or resume from an earlier checkpoint"
    )
