"""Learn all positions of a step at once: without it, `learning` does the same, in twice the CPU.

Every number is the same as there, bit for bit: sums are taken in the same order or rounded exactly, and exponentials
and logarithms are the interpreter's.
"""

import math
from array import array
from collections.abc import Sequence
from itertools import accumulate, chain

import attrs
import numpy as np

from modelyard.engines.tabular.fast.column_positions import PositionFinder, Positions
from modelyard.engines.tabular.fast.weight_columns import ActiveWeights, Floats, Ints, WeightColumns
from modelyard.engines.tabular.learning import TargetAnswer, diverged, full_rate, refuse_lost
from modelyard.engines.tabular.model import WEIGHT_LIMIT, Adapter, TabularModel, prior
from modelyard.engines.tabular.tokenizer import VOCABULARY_SIZE


@attrs.frozen
class ColumnTrace:
    """An answer under the current weights: by token, its log-probability and the entropy of the model (nats)."""

    logprobs: Sequence[float]
    entropies: Sequence[float]


@attrs.frozen(eq=False)
class _Prompts:
    """The prompts of a batch one after the other, by token: their logits, the largest 0, and the exponentials."""

    active: ActiveWeights
    logits: Floats
    exps: Floats

    @property
    def count(self) -> int:
        """How many prompts there are."""
        return len(self.exps) // VOCABULARY_SIZE

    def exps_of(self, prompt: int) -> list[float]:
        """Return the exponentials of one prompt."""
        return _row(self.exps, prompt)

    def sums_of(self, prompt: int) -> tuple[float, float]:
        """Return the sum of the exponentials of one prompt, and that of its logits, each times its exponential."""
        return sum(self.exps_of(prompt)), sum(_row(self.exps * self.logits, prompt))


def _row(column: Floats, number: int) -> list[float]:
    row: list[float] = column[number * VOCABULARY_SIZE : (number + 1) * VOCABULARY_SIZE].tolist()
    return row


@attrs.frozen(eq=False)
class _Batch:
    """What was traced: by cell the logits and their exponentials, by position the sum over the whole vocabulary."""

    prompts: _Prompts
    positions: Positions
    logits: Floats
    exps: Floats


class ColumnCopy:
    """The working copy of a model in training, as `WorkingCopy` is one, in columns."""

    def __init__(self, model: TabularModel) -> None:
        self._seed, self._columns = model.seed, WeightColumns(model.adapter.rows)
        self._finder = PositionFinder(model, self._columns)
        self._batch: _Batch | None = None
        self._totals: Floats = np.zeros(0)

    def parameters(self) -> "tuple[array[int], array[float]]":
        """Return the current weights as `Adapter.parameters` does."""
        return self._columns.parameters()

    def model(self) -> TabularModel:
        """Return a copy of the current model, which later steps do not change."""
        return TabularModel(self._seed, Adapter(self._columns.rows))

    def trace(self, answers: Sequence[TargetAnswer]) -> list[ColumnTrace]:
        """Score the answers under the current weights."""
        if not answers:
            return []
        batch = self._batch = self._traced(answers)
        self._totals, logprobs, entropies = _scored(batch)
        ends = list(accumulate(len(answer.targets) for answer in answers))
        rows = map(slice, [0, *ends], ends)
        return [ColumnTrace(logprobs[row], entropies[row]) for row in rows]

    def _traced(self, answers: Sequence[TargetAnswer]) -> _Batch:
        features = dict.fromkeys(answer.features for answer in answers)
        active = self._finder.constant(answers, features)
        logits = self._logits(np.tile(prior(self._seed), len(features)), active).reshape(-1, VOCABULARY_SIZE)
        logits = (logits - logits.max(axis=1, keepdims=True)).reshape(-1)
        prompts = _Prompts(active, logits, _exps(logits))
        positions = self._finder.positions(answers, features)
        logits = self._logits(logits[positions.places] + positions.habits, positions.active)
        return _Batch(prompts, positions, logits, _exps(logits))

    def _logits(self, base: Floats, active: ActiveWeights) -> Floats:
        """Add value x weight to the logits, weight after weight."""
        places = np.concatenate((np.arange(len(base)), active.places))
        added = active.values * self._columns.weights[active.numbers]
        return _sums(places, np.concatenate((base, added)), len(base))

    def step(
        self, traces: Sequence[ColumnTrace], derivatives: Sequence[Sequence[float]], learning_rate: float, step: int
    ) -> dict[str, float]:
        """Make one optimizer step as `WorkingCopy.step` does; `traces` are the latest."""
        refuse_lost([trace.logprobs for trace in traces], learning_rate, step)
        if not traces or self._batch is None:
            return {"grad_norm": 0.0}
        with np.errstate(all="ignore"):
            errors = _errors(self._batch, np.array(list(chain.from_iterable(derivatives))), self._totals)
            numbers, slopes, visits = _combined(self._batch, *errors)
            rate = full_rate(learning_rate, len(self._totals)) / (visits + 1)
            moved = self._columns.weights[numbers] - rate * slopes
            if not np.all(np.abs(moved) <= WEIGHT_LIMIT):
                raise diverged(step, f"a weight has passed {WEIGHT_LIMIT:g} nats", learning_rate)
        self._columns.weights[numbers] = moved
        return {"grad_norm": math.sqrt(math.fsum((slopes * slopes).tolist()))}


def _sums(places: Ints, terms: Floats | Ints, count: int) -> Floats:
    """Sum terms by place, one after the other, from 0."""
    return np.asarray(np.bincount(places, terms, count), np.float64)


def _exps(logits: Floats) -> Floats:
    return np.fromiter(map(math.exp, logits.tolist()), np.float64, len(logits))


def _scored(batch: _Batch) -> tuple[Floats, list[float], list[float]]:
    """Return by position the sums over the vocabulary, the tokens' log-probabilities, and the entropies."""
    positions, prompts = batch.positions, batch.prompts
    cells = list(map(slice, positions.starts.tolist(), positions.ends.tolist()))
    prompt_totals, prompt_energies = np.array(list(map(prompts.sums_of, range(prompts.count))))[positions.prompts].T
    own = prompts.exps[positions.places]
    totals = prompt_totals - _exact_sums(own, cells) + _exact_sums(batch.exps, cells)
    for place in np.flatnonzero(~(totals >= 1e-3 * prompt_totals)).tolist():
        exps = prompts.exps_of(positions.prompts[place])
        totals[place] = _summed_again(exps, positions.after[place].tokens, batch.exps[cells[place]].tolist())
    logs = np.fromiter(map(math.log, totals.tolist()), np.float64, len(totals))
    own_energies = _exact_sums(own * prompts.logits[positions.places], cells)
    energies = prompt_energies - own_energies + _exact_sums(batch.exps * batch.logits, cells)
    logprobs, entropies = batch.logits[positions.targets] - logs, logs - energies / totals
    return totals, logprobs.tolist(), np.where(entropies > 0.0, entropies, 0.0).tolist()


def _exact_sums(column: Floats, cells: Sequence[slice]) -> Floats:
    """Sum the cells of each position, rounded once."""
    return np.fromiter(map(math.fsum, map(column.tolist().__getitem__, cells)), np.float64, len(cells))


def _summed_again(exps: list[float], tokens: Sequence[int], own: Sequence[float]) -> float:
    for token, exp in zip(tokens, own, strict=True):
        exps[token] = exp
    return sum(exps)


def _errors(batch: _Batch, slopes: Floats, totals: Floats) -> tuple[Floats, Floats]:
    """Return the derivatives of the loss for the logits of the cells, and for those of the prompts."""
    positions, prompts = batch.positions, batch.prompts
    scale = slopes / totals
    by_cell = np.repeat(scale, positions.widths)
    errors = -by_cell * batch.exps
    errors[positions.targets] += slopes
    own = errors + by_cell * prompts.exps[positions.places]
    shifts = _sums(positions.places, own, len(prompts.exps))
    scales = _sums(positions.prompts, scale, prompts.count)
    return errors, shifts - np.repeat(scales, VOCABULARY_SIZE) * prompts.exps


def _combined(batch: _Batch, errors: Floats, prompt_errors: Floats) -> tuple[Ints, Floats, Floats]:
    """Return the numbers of the active weights, their derivatives, and how often each was active."""
    parts = batch.positions.active, batch.prompts.active
    numbers, values, times = (
        np.concatenate(column) for column in zip(*((one.numbers, one.values, one.times) for one in parts), strict=True)
    )
    each = np.concatenate((errors[parts[0].places], prompt_errors[parts[1].places]))
    order = np.arange(len(numbers))
    first = np.empty(numbers.max() + 1, np.int64)
    first[numbers[::-1]] = order[::-1]
    lead = first[numbers]
    leads = lead == order
    slopes = _derivatives(lead, values, each)[leads]
    return numbers[leads], slopes, _sums(lead, times, len(order))[leads]


def _derivatives(lead: Ints, values: Floats, errors: Floats) -> Floats:
    """Sum value x error in their order for each weight, at its first place, which `lead` names.

    As long as the values of a weight are equal, its errors are summed first.
    """
    count, order, differs = len(lead), np.arange(len(lead)), values != values[lead]
    since = np.full(count, count)
    np.minimum.at(since, lead[differs], order[differs])
    late = order >= since[lead]
    begun = values * _sums(lead[~late], errors[~late], count)
    return _sums(np.concatenate((order, lead[late])), np.concatenate((begun, values[late] * errors[late])), count)
