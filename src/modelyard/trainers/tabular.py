"""Training the tabular language model: SFT and RL, in pure Python, repeatable bit for bit."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import BinaryIO

import attrs

from modelyard.domain.tabular import Adapter, TabularModel
from modelyard.domain.tabular_base import BASE_MODELS, base_seed
from modelyard.domain.tabular_learning import Learner, Trace
from modelyard.domain.training import Example, Trajectory, TrajectoryGroup
from modelyard.domain.training_config import RLConfig, SFTConfig
from modelyard.errors import TrainingError
from modelyard.formats.adapter import ADAPTER_FILE, read_adapter, write_adapter
from modelyard.protocols import SavedState, Started, Step, TrainContext, Trained, Trainer, TrainItem
from modelyard.trainers.losses import (
    Credit,
    Loss,
    TrainedSequence,
    credit_trajectories,
    group_advantages,
    packed,
    policy_loss,
    supervised_loss,
)
from modelyard.trainers.tabular_data import Turn, example_turns, sampled_turns

Metrics = Mapping[str, float]

SAVE_EVERY = 50
"""Writing a state costs about as much as ten steps, and fifty take a second."""


class TabularTrainer:
    """Trains the tabular base models. Its checkpoints are one file, the adapter.

    A state is saved every `save_every` steps: the weights alone, as the optimizer has no memory of its own. Training
    draws no random numbers, so the seed of a job changes nothing.
    """

    def __init__(self, base_models: Sequence[str] = BASE_MODELS, *, save_every: int = SAVE_EVERY) -> None:
        self._base_models, self._save_every = tuple(base_models), save_every

    def trains(self, base_model: str) -> bool:
        """Whether it is one of the base models named at construction."""
        return base_model in self._base_models

    def sft(self, config: SFTConfig, data: Iterable[Example], context: TrainContext) -> Iterator[TrainItem]:
        """Imitate examples: one optimizer step per batch, in order. Raises `TrainingError`, `InvalidInput`."""
        rates = config.learning_rates(sum(1 for _ in data))
        learner = _learner(context)
        yield Started(len(rates))
        batches = _batches(data, config.rows_per_batch, skipped=context.resume_step)
        steps = (_imitate(learner, config, rates, number, batch) for number, batch in batches)
        yield from self._steps(learner, steps, len(rates), {})

    def rl(self, config: RLConfig, data: Iterable[TrajectoryGroup], context: TrainContext) -> Iterator[TrainItem]:
        """Learn from rewards: one optimizer step per packed sequence. Raises `TrainingError`.

        The data are read twice: once to see what each trajectory is worth, once to learn from them, a packed sequence
        at a time. Without any difference of rewards there are no steps, and the weights stay the parent's.
        """
        survey = _survey(data, config)
        learner = _learner(context)
        yield Started(len(survey.runs))
        policies = _Policies.of(config, context)
        batches = islice(enumerate(survey.batches(data), start=1), context.resume_step, None)
        steps = (_reinforce(learner, config, policies, number, batch) for number, batch in batches)
        yield from self._steps(learner, steps, len(survey.runs), survey.metrics)

    def _steps(
        self, learner: Learner, steps: Iterator[tuple[int, Metrics]], total: int, job: Metrics
    ) -> Iterator[TrainItem]:
        """The items behind `Started`. The last step's state is not saved, so that a resumed run makes its metrics."""
        metrics: Metrics = {}
        for number, found in steps:
            metrics = {**found, **job}
            yield Step(number, metrics)
            if number % self._save_every == 0 and number < total:
                yield SavedState(number, _files(learner))
        yield Trained(_files(learner), metrics or job)


def _files(learner: Learner) -> Mapping[str, Iterable[bytes]]:
    return {ADAPTER_FILE: write_adapter(Adapter(learner.rows))}


# ---- models ------------------------------------------------------------------------------------------------------


def _learner(context: TrainContext) -> Learner:
    """What goes on from the saved state, or else starts from the parent."""
    if context.resume_step and context.resume is not None:
        return Learner(_model(context, context.resume_files, context.resume))
    return Learner(_model(context, context.parent_files, context.parent))


def _model(context: TrainContext, files: frozenset[str], open_file: Callable[[str], BinaryIO] | None) -> TabularModel:
    """The model with the adapter among these files; the base model when there is none."""
    seed = base_seed(context.base_model)
    if ADAPTER_FILE not in files or open_file is None:
        return TabularModel(seed)
    try:
        with open_file(ADAPTER_FILE) as file:
            return TabularModel(seed, read_adapter(file))
    except ValueError as fault:
        raise TrainingError(
            f"{ADAPTER_FILE} is no adapter of the tabular model ({fault}); delete that checkpoint and train again"
        ) from fault


# ---- SFT -----------------------------------------------------------------------------------------------------------


def _batches(data: Iterable[Example], size: int, skipped: int) -> Iterator[tuple[int, list[Example]]]:
    """The batches behind the first `skipped`, with their numbers from 1."""
    rows = islice(data, skipped * size, None)
    number = skipped
    while batch := list(islice(rows, size)):
        number += 1
        yield number, batch


def _imitate(
    learner: Learner, config: SFTConfig, rates: Sequence[float], number: int, batch: Sequence[Example]
) -> tuple[int, Metrics]:
    turns = [turn for example in batch for turn in example_turns(example, config.assistant_turns)]
    traces = learner.trace([turn.answer for turn in turns])
    loss = supervised_loss([trace.logprobs for trace in traces])
    return number, _stepped(learner, traces, loss, loss.derivatives, rates[number - 1], number)


def _stepped(
    learner: Learner,
    traces: Sequence[Trace],
    loss: Loss,
    derivatives: Sequence[Sequence[float]],
    learning_rate: float,
    number: int,
) -> Metrics:
    """Make the optimizer step, and say what there is to say about it."""
    entropies = [entropy for trace in traces for entropy in trace.entropies]
    moved = learner.step(traces, derivatives, learning_rate, number)
    return {**loss.metrics, **moved, "entropy": _mean(entropies), "learning_rate": learning_rate}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


# ---- RL: what there is to learn ------------------------------------------------------------------------------------


@attrs.frozen
class _Batch:
    """A packed sequence: trajectories as their turns, and what each is worth."""

    credits: Sequence[Credit]
    turns: Sequence[Sequence[Turn]]


@attrs.frozen
class _Survey:
    """What the first pass found: the worth of each trajectory to train on, and which of them share a step."""

    credits: Sequence[Credit]
    runs: Sequence[range]
    metrics: Metrics
    without_logprobs: bool

    def batches(self, data: Iterable[TrajectoryGroup]) -> Iterator[_Batch]:
        """The packed sequences, in order."""
        kept = self._kept(data)
        for run in self.runs:
            trajectories = islice(kept, len(run))
            turns = [_flat(sampled_turns(trajectory, self.without_logprobs)) for trajectory in trajectories]
            yield _Batch(self.credits[run.start : run.stop], turns)

    def _kept(self, data: Iterable[TrajectoryGroup]) -> Iterator[Trajectory]:
        wanted = {(credit.group, credit.member) for credit in self.credits}
        for place, group in enumerate(data):
            for member, trajectory in enumerate(group.trajectories):
                if (place, member) in wanted:
                    yield trajectory


def _survey(data: Iterable[TrajectoryGroup], config: RLConfig) -> _Survey:
    """Read all trajectories, and keep of each its reward and its numbers of tokens. Raises `TrainingError`."""
    groups: list[list[tuple[float, int]]] = []
    lengths: dict[tuple[int, int], int] = {}
    for place, group in enumerate(data):
        groups.append([])
        for member, trajectory in enumerate(group.trajectories):
            histories = sampled_turns(trajectory, config.allow_training_without_logprobs)
            groups[-1].append((trajectory.reward, sum(len(turn.ids) for turn in _flat(histories))))
            lengths[place, member] = sum(history[-1].length for history in histories if history)
    credits_ = credit_trajectories(groups, config)
    if not credits_:
        _refuse_lack_of_logprobs(groups)
    runs = packed([lengths[credit.group, credit.member] for credit in credits_], config.packed_sequence_length)
    return _Survey(credits_, runs, _reward_metrics(groups), config.allow_training_without_logprobs)


def _flat(histories: Iterable[Iterable[Turn]]) -> list[Turn]:
    return list(chain.from_iterable(histories))


def _refuse_lack_of_logprobs(groups: Sequence[Sequence[tuple[float, int]]]) -> None:
    if any(any(group_advantages([reward for reward, _ in group])) for group in groups):
        raise TrainingError(
            "nothing can be trained: no trajectory whose reward differs within its group has a choice with logprobs; "
            "send assistant turns as the choices that the completion returned, with their logprobs"
        )


def _reward_metrics(groups: Sequence[Sequence[tuple[float, int]]]) -> Metrics:
    """The mean reward, and the mean over groups of the standard deviation within each."""
    rewards = [[reward for reward, _ in group] for group in groups if group]
    deviations = [math.sqrt(_mean([(reward - _mean(group)) ** 2 for reward in group])) for group in rewards]
    return {"reward": _mean(list(chain.from_iterable(rewards))), "reward_std_dev": _mean(deviations)}


# ---- RL: a step ------------------------------------------------------------------------------------------------------


@attrs.frozen
class _Policies:
    """The fixed models that a loss compares with, where the configuration asks for them.

    `before` is the parent, for recomputed old log-probabilities; `reference` is what a KL penalty holds on to: the
    checkpoint that the job names, else the untouched base.
    """

    before: TabularModel | None
    reference: TabularModel | None

    @classmethod
    def of(cls, config: RLConfig, context: TrainContext) -> "_Policies":
        """Load what is needed."""
        compared = config.kl_penalty_coef or config.kl_penalty_reference_step is not None
        return cls(
            _model(context, context.parent_files, context.parent) if config.precalculate_logprobs else None,
            _model(context, context.reference_files, context.reference) if compared else None,
        )


def _reinforce(
    learner: Learner, config: RLConfig, policies: _Policies, number: int, batch: _Batch
) -> tuple[int, Metrics]:
    traces = learner.trace([turn.answer for turn in _flat(batch.turns)])
    waiting = iter(traces)
    sequences = [
        _sequence(credit, turns, [trace.logprobs for trace in islice(waiting, len(turns))], policies)
        for credit, turns in zip(batch.credits, batch.turns, strict=True)
    ]
    loss = policy_loss(sequences, config)
    derivatives = _cut(chain.from_iterable(loss.derivatives), [len(turn.ids) for turn in _flat(batch.turns)])
    return number, _stepped(learner, traces, loss, derivatives, config.learning_rate, number)


def _sequence(
    credit: Credit, turns: Sequence[Turn], new: Iterable[Sequence[float]], policies: _Policies
) -> TrainedSequence:
    sampled = list(chain.from_iterable(turn.logprobs for turn in turns))
    return TrainedSequence(
        credit=credit,
        new=list(chain.from_iterable(new)),
        old=sampled if policies.before is None else _scores(policies.before, turns),
        sampled=sampled,
        reference=None if policies.reference is None else _scores(policies.reference, turns),
    )


def _scores(model: TabularModel, turns: Sequence[Turn]) -> list[float]:
    return [logprob for turn in turns for logprob in model.score(turn.answer.features, turn.ids)]


def _cut(values: Iterator[float], lengths: Sequence[int]) -> list[list[float]]:
    """Values one after the other, as rows of these lengths."""
    return [list(islice(values, length)) for length in lengths]


_: type[Trainer] = TabularTrainer
