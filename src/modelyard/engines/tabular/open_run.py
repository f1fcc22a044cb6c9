"""The tabular model in training that its caller drives: gradients add up, and AdamW (arXiv 1711.05101) steps on them.

A weight exists once a step has met its feature and token, so gradients cannot be kept as numbers: which weights there
are to differentiate is known at the step. What is kept is what was scored, with the derivatives of its
log-probabilities; the step traces it again, under the same weights.
"""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence

import attrs

from modelyard.domain.training_run import AdamParams, Loss, Objective, Rows, TargetRow
from modelyard.engines.tabular.adapter_file import ADAPTER_FILE, OPTIMIZER_FILE, Moments, write_adapter, write_moments
from modelyard.engines.tabular.base import CONTEXT_LENGTH
from modelyard.engines.tabular.learning import TargetTokens, WorkingCopy
from modelyard.engines.tabular.model import WEIGHT_LIMIT, Adapter, Context, Row, TabularModel
from modelyard.engines.tabular.raw_prompt import read_row
from modelyard.engines.tabular.tokenizer import VOCABULARY_SIZE
from modelyard.errors import TrainingError, located_at

WEIGHTS_PER_RATE = 1000.0
"""The factor on learning rates, so that the rates of large models also suit this one: 1e-4 moves a weight by 0.1."""


@attrs.frozen
class _Scored:
    """Tokens of one turn, and the derivatives of their log-probabilities."""

    targets: TargetTokens
    derivatives: Sequence[float]


class TabularRun:
    """A tabular model and the moments of its weights, by feature and token."""

    def __init__(self, model: TabularModel, moments: Moments) -> None:
        self._model, self._moments = model, moments
        self._scored: list[_Scored] = []

    def score(self, rows: Sequence[TargetRow]) -> Rows:
        """Return the log-probability of each target."""
        return [self._score(read) for read in _read(rows)]

    def _score(self, row: Sequence[TargetTokens]) -> list[float]:
        return [one for turn in row for one in self._model.scorer(turn.features).score_in(turn.contexts)]

    def accumulate(self, rows: Sequence[TargetRow], objective: Objective) -> tuple[Rows, Loss]:
        """Score, and keep what the next step needs."""
        read = _read(rows)
        scores = [self._score(row) for row in read]
        loss = objective.of(scores)
        for row, derivatives in zip(read, loss.derivatives, strict=True):
            self._scored += _kept(row, derivatives)
        return scores, loss

    def optim_step(self, params: AdamParams) -> Mapping[str, float]:
        """Make one step of AdamW; every weight moves that has moments, also those without a derivative now."""
        scored, self._scored = self._scored, []
        copy = WorkingCopy(self._model)
        traces = copy.trace([one.targets for one in scored])
        gradient = copy.by_token(copy.gradient(traces, [one.derivatives for one in scored]))
        norm = math.sqrt(math.fsum(slope * slope for row in gradient.values() for slope in row.values()))
        if not math.isfinite(norm):
            raise _diverged(f"the norm of the gradient is {norm}", params)
        scale = min(1.0, params.grad_clip_norm / norm) if params.grad_clip_norm and norm else 1.0
        rows, moments = _Step(params, scale, self._moments.steps + 1).of(copy.rows, gradient, self._moments)
        self._model, self._moments = attrs.evolve(self._model, adapter=Adapter(rows)), moments
        return {"grad_norm": norm}

    def files(self) -> Mapping[str, Iterable[bytes]]:
        return {ADAPTER_FILE: list(write_adapter(self._model.adapter))}

    def state(self) -> Mapping[str, Iterable[bytes]]:
        """Return the adapter file and the moments."""
        return {**self.files(), OPTIMIZER_FILE: list(write_moments(self._moments))}

    def close(self) -> None:
        self._scored = []


def _read(rows: Sequence[TargetRow]) -> list[list[TargetTokens]]:
    for number, row in enumerate(rows):
        with located_at(number):
            row.check(CONTEXT_LENGTH, VOCABULARY_SIZE)
    return [read_row(row) for row in rows]


def _kept(row: Sequence[TargetTokens], derivatives: Sequence[float]) -> list[_Scored]:
    """Return the tokens whose log-probability matters, turn by turn."""
    kept, place = [], 0
    for turn in row:
        slopes = derivatives[place : place + len(turn.contexts)]
        place += len(turn.contexts)
        pairs: list[tuple[Context, float]] = [pair for pair in zip(turn.contexts, slopes, strict=True) if pair[1]]
        if pairs:
            where = [context for context, _ in pairs]
            kept.append(_Scored(TargetTokens(turn.features, where), array("d", [slope for _, slope in pairs])))
    return kept


@attrs.frozen
class _Step:
    """One step of AdamW on all weights, the `number`-th of its run, on a gradient that is first multiplied."""

    params: AdamParams
    scale: float
    number: int

    def of(
        self, rows: Mapping[int, Row], gradient: Mapping[int, Row], moments: Moments
    ) -> tuple[dict[int, dict[int, float]], Moments]:
        """Return the new weights and moments. Raises `TrainingError` if a weight passes its limit."""
        weights: dict[int, dict[int, float]] = {}
        first: dict[int, Row] = {}
        second: dict[int, Row] = {}
        for feature, row in rows.items():
            slopes = gradient.get(feature, {})
            means, squares = moments.first.get(feature, {}), moments.second.get(feature, {})
            moved = {
                token: self._moved(weight, slopes.get(token, 0.0), means.get(token, 0.0), squares.get(token, 0.0))
                for token, weight in row.items()
            }
            weights[feature] = {token: weight for token, (weight, _, _) in moved.items()}
            first[feature] = {token: mean for token, (_, mean, _) in moved.items()}
            second[feature] = {token: square for token, (_, _, square) in moved.items()}
        return weights, Moments(self.number, first, second)

    def _moved(self, weight: float, slope: float, mean: float, square: float) -> tuple[float, float, float]:
        params, slope = self.params, slope * self.scale
        mean = params.beta1 * mean + (1 - params.beta1) * slope
        square = params.beta2 * square + (1 - params.beta2) * slope * slope
        root = math.sqrt(square / (1 - params.beta2**self.number)) + params.eps
        by = mean / (1 - params.beta1**self.number) / root
        weight = (
            weight * (1 - params.learning_rate * params.weight_decay) - WEIGHTS_PER_RATE * params.learning_rate * by
        )
        if not -WEIGHT_LIMIT <= weight <= WEIGHT_LIMIT:
            raise _diverged(f"a weight has passed {WEIGHT_LIMIT:g} nats", params)
        return weight, mean, square


def _diverged(symptom: str, params: AdamParams) -> TrainingError:
    return TrainingError(
        f"the step was left out: {symptom}; try a learning rate far below {params.learning_rate:g}, or load an earlier "
        "checkpoint"
    )
