"""RL on a learner: the plan of its steps by the rewards, and a step."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

import attrs

from modelyard.domain.training import Trajectory, TrajectoryGroup
from modelyard.domain.training_config import RLConfig
from modelyard.domain.training_run import Loss, Objective, Rows
from modelyard.errors import TrainingError, located_at
from modelyard.trainers.credits import Credit, credit_trajectories, group_advantages, packed
from modelyard.trainers.loop import Learner, Metrics, Plan, Policies, Turn, TurnTally, length_metrics, mean
from modelyard.trainers.losses import TrainedSequence, policy_loss


def plan_rl(
    learner: Learner,
    config: RLConfig,
    data: Iterable[TrajectoryGroup],
    policies: Policies,
    resume_step: int,
    held_out: Iterable[TrajectoryGroup] = (),
) -> Plan:
    """Plan one optimizer step per packed sequence. Raises `TrainingError`. The data are read twice: once to see what
    each trajectory is worth, once to learn from them, a packed sequence at a time. Without any difference of rewards
    there are no steps, and the weights stay the parent's. Held-out rows are not read: a loop validates by sampling."""
    survey = _survey(learner, data, config)
    rates = config.step_rates(len(survey.runs))
    batches = islice(enumerate(zip(survey.batches(learner, data), rates, strict=True), 1), resume_step, None)
    steps = (_step(learner, config, policies, number, *batch) for number, batch in batches)
    return Plan(len(survey.runs), steps, survey.metrics)


@attrs.frozen
class _Batch:
    credits: Sequence[Credit]
    turns: Sequence[Sequence[Turn]]


@attrs.frozen
class _Survey:
    credits: Sequence[Credit]
    runs: Sequence[range]
    metrics: Metrics
    without_logprobs: bool

    def batches(self, learner: Learner, data: Iterable[TrajectoryGroup]) -> Iterator[_Batch]:
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
    groups: list[list[tuple[float, int]]] = []
    lengths: dict[tuple[int, int], int] = {}
    tally = TurnTally()
    for place, group in enumerate(data):
        groups.append([])
        for member, trajectory in enumerate(group.trajectories):
            with located_at("data", place, "trajectories", member):
                sampled = learner.sampled(trajectory, config.allow_training_without_logprobs)
            groups[-1].append((trajectory.reward, sampled.tokens))
            lengths[place, member] = sampled.length
            tally.add(sampled.turns)
    credits_ = credit_trajectories(groups, config)
    if not credits_ and any(any(group_advantages([reward for reward, _ in group])) for group in groups):
        _refuse_lack_of_tokens(learner, tally)
    runs = packed([lengths[credit.group, credit.member] for credit in credits_], config.packed_sequence_length)
    metrics = {**_reward_metrics(groups), **length_metrics(tally.overlong)}
    return _Survey(credits_, runs, metrics, config.allow_training_without_logprobs)


def _refuse_lack_of_tokens(learner: Learner, tally: TurnTally) -> None:
    if tally.overlong:
        attrs.evolve(tally, tokens=0).require_tokens(learner, "trajectory whose reward differs within its group")
    raise TrainingError(
        "nothing can be trained: no trajectory whose reward differs within its group has a choice with logprobs; "
        "send assistant turns as the choices that the completion returned, with their logprobs"
    )


def _reward_metrics(groups: Sequence[Sequence[tuple[float, int]]]) -> Metrics:
    rewards = [[reward for reward, _ in group] for group in groups if group]
    deviations = [math.sqrt(mean([(reward - mean(group)) ** 2 for reward in group])) for group in rewards]
    return {"reward": mean(list(chain.from_iterable(rewards))), "reward_std_dev": mean(deviations)}


# ---- a step ------------------------------------------------------------------------------------------------------


def _step(
    learner: Learner, config: RLConfig, policies: Policies, number: int, batch: _Batch, rate: float
) -> tuple[int, Metrics]:
    turns = list(chain.from_iterable(batch.turns))

    def scored(model: object | None) -> Sequence[Sequence[float] | None]:
        return [None] * len(batch.turns) if model is None else _by_trajectory(learner.scores(model, turns), batch)

    before, reference = scored(policies.parent), scored(policies.reference)

    def loss(new: Rows) -> Loss:
        found = zip(batch.credits, batch.turns, _by_trajectory(new, batch), before, reference, strict=True)
        whole = policy_loss([_sequence(*one) for one in found], config)
        derivatives = _cut(chain.from_iterable(whole.derivatives), [len(turn.logprobs) for turn in turns])
        return attrs.evolve(whole, derivatives=derivatives)

    return number, {**learner.step(turns, Objective(loss), rate, number), "learning_rate": rate}


def _by_trajectory(rows: Rows, batch: _Batch) -> Sequence[Sequence[float]]:
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
    if before is None:
        return TrainedSequence(credit=credit, new=new or (), old=sampled, reference=reference)
    return TrainedSequence(credit=credit, new=new or (), old=before, sampled=sampled, reference=reference)


def _cut(values: Iterator[float], lengths: Sequence[int]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(islice(values, length)) for length in lengths)
