"""SFT and RL as loops over a learner: what is common to every model that is trained here.

Whoever brings a model brings a `Learner`; what the data are worth, which of them share an optimizer step, the losses,
and what is reported are the same for all.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Protocol

import attrs

from modelyard.domain.training import Example, Trajectory, TrajectoryGroup
from modelyard.domain.training_config import AssistantTurns, RLConfig, SFTConfig
from modelyard.errors import InvalidInput, TrainingError
from modelyard.protocols import SavedState, Started, Step, Trained, TrainItem
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

Metrics = Mapping[str, float]
Files = Mapping[str, Iterable[bytes]]
Rows = Sequence[Sequence[float]]


class Turn(Protocol):
    """Tokens to learn from, in their context: one log-probability of the sampler's for each, None where unknown."""

    @property
    def logprobs(self) -> Sequence[float | None]:
        """As many as there are tokens to be trained: none where the turn is too long for the model. Such a one is
        counted, and left out.
        """
        ...


@attrs.frozen
class Sampled:
    """What of a trajectory can be trained, and how many tokens it takes, prompts included."""

    turns: Sequence[Turn]
    length: int

    @property
    def tokens(self) -> int:
        """How many tokens are trained."""
        return sum(len(turn.logprobs) for turn in self.turns)


@attrs.frozen
class Objective:
    """What a step lessens. `of` takes the log-probability of each token of the step, turn by turn, and its derivatives
    come in the same rows; those of a `linear` one are the same whatever it is given.
    """

    of: Callable[[Rows], Loss]
    linear: bool = False


class Learner(Protocol):
    """A model in training."""

    def imitated(self, example: Example, which: AssistantTurns) -> Sequence[Turn]:
        """The assistant turns of an example. Raises `InvalidInput`."""
        ...

    def sampled(self, trajectory: Trajectory, without_logprobs: bool) -> Sampled:
        """The sampled choices of a trajectory; `without_logprobs` adds assistant turns that have none.

        All data are shown to this and to `imitated` before the first step: a learner refuses here what it can never
        train. Raises `InvalidInput`, `TrainingError`.
        """
        ...

    def scores(self, model: object, turns: Sequence[Turn]) -> Rows:
        """The log-probability (nats) of each token of the turns, under a model that this learner knows."""
        ...

    def step(self, turns: Sequence[Turn], loss: Objective, learning_rate: float, number: int) -> Metrics:
        """One optimizer step, which changes nothing without turns. Returns what the loss reports, `grad_norm` and
        `entropy`.

        Raises `TrainingError`, naming the step, when training has diverged.
        """
        ...

    def files(self) -> Files:
        """The files of a checkpoint."""
        ...

    def state(self) -> Files:
        """All that is needed to go on from here, bit for bit."""
        ...


# ---- SFT -----------------------------------------------------------------------------------------------------------


def run_sft(
    learner: Learner, config: SFTConfig, data: Iterable[Example], resume_step: int, save_every: int
) -> Iterator[TrainItem]:
    """One optimizer step per batch, in file order. Raises `TrainingError`, `InvalidInput`.

    The data are read twice, so that a bad row is refused before the first step.
    """
    left_out = [_looked_at(learner, config, number, example) for number, example in enumerate(data)]
    rates = config.learning_rates(len(left_out))
    yield Started(len(rates))
    batches = _batches(data, config.rows_per_batch, resume_step)
    steps = (_imitated(learner, config, rates, number, batch) for number, batch in batches)
    yield from _items(learner, steps, len(rates), _length_metrics(sum(left_out)), save_every)


def _looked_at(learner: Learner, config: SFTConfig, number: int, example: Example) -> int:
    """How many turns of an example are too long. Raises `TrainingError`, and `InvalidInput` with its number."""
    with _found_at("data", number):
        return _left_out(learner.imitated(example, config.assistant_turns))


@contextmanager
def _found_at(*place: str | int) -> Iterator[None]:
    """Bad input that is found within was at this place."""
    try:
        yield
    except InvalidInput as bad:
        raise InvalidInput([attrs.evolve(one, loc=(*place, *one.loc)) for one in bad.problems]) from bad


def _left_out(turns: Iterable[Turn]) -> int:
    return sum(not turn.logprobs for turn in turns)


def _length_metrics(left_out: int) -> Metrics:
    """How much of the job was too long for the model, where anything was."""
    return {"num_overlong": float(left_out)} if left_out else {}


def _batches(data: Iterable[Example], size: int, skipped: int) -> Iterator[tuple[int, list[Example]]]:
    """The batches behind the first `skipped`, with their numbers from 1."""
    rows = islice(data, skipped * size, None)
    number = skipped
    while batch := list(islice(rows, size)):
        number += 1
        yield number, batch


def _imitated(
    learner: Learner, config: SFTConfig, rates: Sequence[float], number: int, batch: Sequence[Example]
) -> tuple[int, Metrics]:
    found = (turn for example in batch for turn in learner.imitated(example, config.assistant_turns))
    turns, rate = [turn for turn in found if turn.logprobs], rates[number - 1]
    return number, {**learner.step(turns, Objective(supervised_loss, linear=True), rate, number), "learning_rate": rate}


def _items(
    learner: Learner, steps: Iterator[tuple[int, Metrics]], total: int, job: Metrics, save_every: int
) -> Iterator[TrainItem]:
    """The items behind `Started`. The last step's state is not saved, so that a resumed run makes its metrics."""
    metrics: Metrics = {}
    for number, found in steps:
        metrics = {**found, **job}
        yield Step(number, metrics)
        if number % save_every == 0 and number < total:
            yield SavedState(number, learner.state())
    yield Trained(learner.files(), metrics or job)


# ---- RL: what there is to learn ------------------------------------------------------------------------------------


def run_rl(
    learner: Learner,
    config: RLConfig,
    data: Iterable[TrajectoryGroup],
    policies: "Policies",
    resume_step: int,
    save_every: int,
) -> Iterator[TrainItem]:
    """One optimizer step per packed sequence. Raises `TrainingError`.

    The data are read twice: once to see what each trajectory is worth, once to learn from them, a packed sequence
    at a time. Without any difference of rewards there are no steps, and the weights stay the parent's.
    """
    survey = _survey(learner, data, config)
    yield Started(len(survey.runs))
    batches = islice(enumerate(survey.batches(learner, data), start=1), resume_step, None)
    steps = (_reinforced(learner, config, policies, number, batch) for number, batch in batches)
    yield from _items(learner, steps, len(survey.runs), survey.metrics, save_every)


@attrs.frozen
class Policies:
    """The fixed models that a loss compares with, where the configuration asks for them.

    `before` is the parent, for recomputed old log-probabilities; `reference` is what a KL penalty holds on to: the
    checkpoint that the job names, else the untouched base. Each is something that the learner's `scores` takes.
    """

    before: object | None = None
    reference: object | None = None


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

    def batches(self, learner: Learner, data: Iterable[TrajectoryGroup]) -> Iterator[_Batch]:
        """The packed sequences, in order."""
        kept = self._kept(data)
        for run in self.runs:
            trajectories = islice(kept, len(run))
            found = [learner.sampled(trajectory, self.without_logprobs).turns for trajectory in trajectories]
            turns = [[turn for turn in of_one if turn.logprobs] for of_one in found]
            yield _Batch(self.credits[run.start : run.stop], turns)

    def _kept(self, data: Iterable[TrajectoryGroup]) -> Iterator[Trajectory]:
        wanted = {(credit.group, credit.member) for credit in self.credits}
        for place, group in enumerate(data):
            for member, trajectory in enumerate(group.trajectories):
                if (place, member) in wanted:
                    yield trajectory


def _survey(learner: Learner, data: Iterable[TrajectoryGroup], config: RLConfig) -> _Survey:
    """Read all trajectories, and keep of each its reward and its numbers of tokens. Raises `TrainingError`."""
    groups: list[list[tuple[float, int]]] = []
    lengths: dict[tuple[int, int], int] = {}
    left_out = 0
    for place, group in enumerate(data):
        groups.append([])
        for member, trajectory in enumerate(group.trajectories):
            with _found_at("data", place, "trajectories", member):
                sampled = learner.sampled(trajectory, config.allow_training_without_logprobs)
            groups[-1].append((trajectory.reward, sampled.tokens))
            lengths[place, member] = sampled.length
            left_out += _left_out(sampled.turns)
    credits_ = credit_trajectories(groups, config)
    if not credits_ and not left_out:
        _refuse_lack_of_logprobs(groups)
    runs = packed([lengths[credit.group, credit.member] for credit in credits_], config.packed_sequence_length)
    metrics = {**_reward_metrics(groups), **_length_metrics(left_out)}
    return _Survey(credits_, runs, metrics, config.allow_training_without_logprobs)


def _refuse_lack_of_logprobs(groups: Sequence[Sequence[tuple[float, int]]]) -> None:
    if any(any(group_advantages([reward for reward, _ in group])) for group in groups):
        raise TrainingError(
            "nothing can be trained: no trajectory whose reward differs within its group has a choice with logprobs; "
            "send assistant turns as the choices that the completion returned, with their logprobs"
        )


def _reward_metrics(groups: Sequence[Sequence[tuple[float, int]]]) -> Metrics:
    """The mean reward, and the mean over groups of the standard deviation within each."""
    rewards = [[reward for reward, _ in group] for group in groups if group]
    deviations = [math.sqrt(mean([(reward - mean(group)) ** 2 for reward in group])) for group in rewards]
    return {"reward": mean(list(chain.from_iterable(rewards))), "reward_std_dev": mean(deviations)}


def mean(values: Sequence[float]) -> float:
    """The mean, 0 of nothing."""
    return math.fsum(values) / len(values) if values else 0.0


# ---- RL: a step ------------------------------------------------------------------------------------------------------


def _reinforced(
    learner: Learner, config: RLConfig, policies: Policies, number: int, batch: _Batch
) -> tuple[int, Metrics]:
    turns = list(chain.from_iterable(batch.turns))
    before = _by_trajectory(_scored(learner, policies.before, turns), batch)
    reference = _by_trajectory(_scored(learner, policies.reference, turns), batch)

    def loss(new: Rows) -> Loss:
        found = zip(batch.credits, batch.turns, _by_trajectory(new, batch), before, reference, strict=True)
        whole = policy_loss([_sequence(*one) for one in found], config)
        derivatives = _cut(chain.from_iterable(whole.derivatives), [len(turn.logprobs) for turn in turns])
        return attrs.evolve(whole, derivatives=derivatives)

    metrics = learner.step(turns, Objective(loss), config.learning_rate, number)
    return number, {**metrics, "learning_rate": config.learning_rate}


def _scored(learner: Learner, model: object | None, turns: Sequence[Turn]) -> Rows | None:
    return None if model is None else learner.scores(model, turns)


def _by_trajectory(rows: Rows | None, batch: _Batch) -> Sequence[Sequence[float] | None]:
    """The rows of a trajectory's turns, one behind the other."""
    if rows is None:
        return [None] * len(batch.turns)
    waiting = iter(rows)
    return [list(chain.from_iterable(islice(waiting, len(turns)))) for turns in batch.turns]


def _sequence(
    credit: Credit,
    turns: Sequence[Turn],
    new: Sequence[float] | None,
    before: Sequence[float] | None,
    reference: Sequence[float] | None,
) -> TrainedSequence:
    sampled = list(chain.from_iterable(turn.logprobs for turn in turns))
    old = sampled if before is None else before
    return TrainedSequence(credit=credit, new=new or (), old=old, sampled=sampled, reference=reference)


def _cut(values: Iterator[float], lengths: Sequence[int]) -> tuple[tuple[float, ...], ...]:
    """Values one after the other, as rows of these lengths."""
    return tuple(tuple(islice(values, length)) for length in lengths)
