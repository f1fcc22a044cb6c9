"""Training of the tabular language model, repeatable bit for bit, with and without numpy."""

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from typing import Any, BinaryIO, Protocol, TypeVar, cast

from modelyard.domain.training import Example, Trajectory
from modelyard.domain.training_config import AssistantTurns
from modelyard.domain.training_run import AdapterConfig, Objective, Rows
from modelyard.engines.tabular.adapter_file import (
    ADAPTER_FILE,
    OPTIMIZER_FILE,
    Moments,
    read_adapter,
    read_moments,
    write_parameters,
)
from modelyard.engines.tabular.base import BASE_MODELS, base_seed
from modelyard.engines.tabular.fast import column_learning
from modelyard.engines.tabular.learning import TargetAnswer, WorkingCopy
from modelyard.engines.tabular.model import TabularModel
from modelyard.engines.tabular.open_run import TabularRun
from modelyard.engines.tabular.training_data import TabularTurn, example_turns, sampled_turns, taught_turns
from modelyard.errors import TrainingError
from modelyard.protocols import OpenRun, StepTrainer, TrainContext, Trainer, TrainItem
from modelyard.trainers import loop
from modelyard.trainers.methods import LEARNER_METHODS

T = TypeVar("T")

SAVE_EVERY = 200
"""Steps between saved states: writing one of a grown model costs as much as 25 steps, and 200 take about a second."""


WITH_NUMPY = find_spec("numpy") is not None
"""Whether models learn in columns of numpy: the same weights and metrics, in about half of the time."""


class TabularTrainer:
    """Trains the tabular base models. A checkpoint is one file, the adapter.

    A state is saved every `save_every` steps: the weights only, as the optimizer has no state. Training draws no random
    numbers, so the seed of a job changes nothing.
    """

    def __init__(self, base_models: Sequence[str] = BASE_MODELS, *, save_every: int = SAVE_EVERY) -> None:
        self._base_models, self._save_every = tuple(base_models), save_every

    def methods(self, base_model: str) -> Collection[str]:
        """Return all methods for the base models named at construction."""
        return LEARNER_METHODS if base_model in self._base_models else ()

    def train(self, method: str, config: Any, data: Iterable[Any], context: TrainContext) -> Iterator[TrainItem]:
        """Train by one of `modelyard.trainers.methods`."""
        chosen, learner = LEARNER_METHODS[method], _learner(context)
        policies = _policies(chosen.compares(config), context)
        plan = chosen.plan(learner, config, data, policies, context.resume_step, context.held_out)
        yield from loop.run(learner, plan, self._save_every)

    def open_run(
        self, base_model: str, adapter: AdapterConfig, files: frozenset[str], open_file: Callable[[str], BinaryIO]
    ) -> TabularRun:
        """Open a run. The model has no layers, and weights that start at 0: an `AdapterConfig` changes nothing."""
        if base_model not in self._base_models:
            raise TrainingError(f"the base model {base_model!r} is not here")
        model = _model(base_model, files, open_file)
        if OPTIMIZER_FILE not in files:
            return TabularRun(model, Moments())
        return TabularRun(model, _read(OPTIMIZER_FILE, open_file, read_moments))


class _WorkingCopy(Protocol):
    """What `WorkingCopy` and `ColumnCopy` have in common: every number that either returns."""

    def trace(self, answers: Sequence[TargetAnswer]) -> Sequence[Any]: ...

    def step(
        self, traces: Sequence[Any], derivatives: Rows, learning_rate: float, step: int
    ) -> Mapping[str, float]: ...

    def parameters(self) -> "tuple[array[int], array[float]]": ...

    def model(self) -> TabularModel: ...


class TabularLearner:
    """A tabular model in training, as the training loop needs it."""

    def __init__(self, model: TabularModel) -> None:
        self._learner: _WorkingCopy = column_learning.ColumnCopy(model) if WITH_NUMPY else WorkingCopy(model)

    @property
    def context_length(self) -> None:
        """None: the model reads a prompt of any length."""

    def sft_turns(self, example: Example, which: AssistantTurns) -> Sequence[TabularTurn]:
        """Return the assistant turns of an example."""
        return example_turns(example, which)

    def sampled(self, trajectory: Trajectory, without_logprobs: bool) -> loop.TrainableTurns:
        """Return the sampled choices of a trajectory, found by their token ids or their bytes."""
        histories = sampled_turns(trajectory, without_logprobs)
        length = sum(history[-1].length for history in histories if history)
        return loop.TrainableTurns([turn for turn in chain.from_iterable(histories) if turn.ids], length)

    def taught(self, trajectory: Trajectory) -> Sequence[TabularTurn]:
        """Return the choices of which a teacher's distribution is known."""
        return taught_turns(trajectory)

    def scores(self, model: object | None, turns: Sequence[loop.Turn]) -> Rows:
        """Return log-probabilities under another `TabularModel`, or that in training."""
        fixed = self._learner.model() if model is None else cast(TabularModel, model)
        answers = [turn.answer for turn in cast(Sequence[TabularTurn], turns)]
        return [fixed.scorer(answer.features).score_in(answer.contexts) for answer in answers]

    def step(self, turns: Sequence[loop.Turn], loss: Objective, learning_rate: float, number: int) -> loop.Metrics:
        """Trace, compute the loss, descend."""
        traces = self._learner.trace([turn.answer for turn in cast(Sequence[TabularTurn], turns)])
        found = loss.of([trace.logprobs for trace in traces])
        entropies = [entropy for trace in traces for entropy in trace.entropies]
        moved = self._learner.step(traces, found.derivatives, learning_rate, number)
        return {**found.metrics, **moved, "entropy": loop.mean(entropies)}

    def files(self) -> loop.Files:
        return {ADAPTER_FILE: write_parameters(*self._learner.parameters())}

    def state(self) -> loop.Files:
        """Return the adapter file: the optimizer has no state."""
        return self.files()


def _learner(context: TrainContext) -> TabularLearner:
    """Resume from the saved state, or else start from the parent."""
    if context.resume_step and context.resume is not None:
        return TabularLearner(_model(context.base_model, context.resume_files, context.resume))
    return TabularLearner(_model(context.base_model, context.parent_files, context.parent))


def _policies(compared: Collection[str], context: TrainContext) -> loop.Policies:
    base = context.base_model
    return loop.Policies(
        _model(base, context.parent_files, context.parent) if "parent" in compared else None,
        _model(base, context.reference_files, context.reference) if "reference" in compared else None,
    )


def _model(base_model: str, files: frozenset[str], open_file: Callable[[str], BinaryIO] | None) -> TabularModel:
    """Return the model with the adapter among these files; the base model if there is none."""
    seed = base_seed(base_model)
    if ADAPTER_FILE not in files or open_file is None:
        return TabularModel(seed)
    return TabularModel(seed, _read(ADAPTER_FILE, open_file, read_adapter))


def _read(name: str, open_file: Callable[[str], BinaryIO], read: Callable[[BinaryIO], T]) -> T:
    try:
        with open_file(name) as file:
            return read(file)
    except ValueError as fault:
        raise TrainingError(
            f"{name} was not written for the tabular model ({fault}); delete that checkpoint and train again"
        ) from fault


_: type[Trainer] = TabularTrainer
_steps: type[StepTrainer] = TabularTrainer
_runs: type[OpenRun] = TabularRun
_learns: type[loop.Learner] = TabularLearner
