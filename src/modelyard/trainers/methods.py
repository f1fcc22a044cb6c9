"""The training methods that run on a learner: SFT and DPO, and the table of all (RL is in `rl`)."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import attrs

from modelyard.domain.training import Example, Preference
from modelyard.domain.training_config import BatchedConfig, DPOConfig, RLConfig, SFTConfig
from modelyard.errors import InvalidInput
from modelyard.trainers.loop import (
    Learner,
    Metrics,
    Objective,
    Plan,
    Policies,
    Turn,
    count_overlong,
    length_metrics,
    located_at,
)
from modelyard.trainers.losses import preference_loss, supervised_loss
from modelyard.trainers.rl import plan_rl

Row = TypeVar("Row")


@attrs.frozen
class LearnerMethod:
    """How a method plans its steps, and which fields of `Policies` its loss compares with under a configuration."""

    plan: Callable[[Learner, Any, Iterable[Any], Policies, int], Plan]
    compares: Callable[[Any], Collection[str]] = lambda config: ()


# ---- methods that take rows in batches ---------------------------------------------------------------------------


def _plan_batches(
    learner: Learner,
    config: BatchedConfig,
    data: Iterable[Row],
    turns_of: Callable[[Row], Sequence[Turn]],
    objective_of: Callable[[Sequence[Turn]], Objective],
    resume_step: int,
) -> Plan:
    """Plan one optimizer step per batch, in file order. Raises `TrainingError`, `InvalidInput`.

    The data are read twice, so that a bad row is refused before the first step.
    """
    overlong = [_checked(turns_of, number, row) for number, row in enumerate(data)]
    rates = config.learning_rates(len(overlong))

    def steps() -> Iterator[tuple[int, Metrics]]:
        for number, batch in _batches(data, config.rows_per_batch, resume_step):
            turns = [turn for row in batch for turn in turns_of(row) if turn.logprobs]
            rate = rates[number - 1]
            yield number, {**learner.step(turns, objective_of(turns), rate, number), "learning_rate": rate}

    return Plan(len(rates), steps(), length_metrics(sum(overlong)))


def _checked(turns_of: Callable[[Row], Sequence[Turn]], number: int, row: Row) -> int:
    """Count the turns of a row that are too long. Raises `TrainingError`, and `InvalidInput` with the row's number."""
    with located_at("data", number):
        return count_overlong(turns_of(row))


def _batches(data: Iterable[Row], size: int, skipped: int) -> Iterator[tuple[int, list[Row]]]:
    """Yield the batches after the first `skipped`, with their numbers from 1."""
    rows = islice(data, skipped * size, None)
    number = skipped
    while batch := list(islice(rows, size)):
        number += 1
        yield number, batch


# ---- SFT ---------------------------------------------------------------------------------------------------------


def _plan_sft(
    learner: Learner, config: SFTConfig, data: Iterable[Example], policies: Policies, resume_step: int
) -> Plan:
    def turns_of(example: Example) -> Sequence[Turn]:
        return learner.sft_turns(example, config.assistant_turns)

    return _plan_batches(
        learner, config, data, turns_of, lambda turns: Objective(supervised_loss, linear=True), resume_step
    )


# ---- DPO ---------------------------------------------------------------------------------------------------------


def _plan_dpo(
    learner: Learner, config: DPOConfig, data: Iterable[Preference], policies: Policies, resume_step: int
) -> Plan:
    """Plan steps on pairs of answers; a pair of which one is too long for the model is left out.

    Every row is in one step, so its reference log-probabilities are computed there, once, under the parent's weights.
    """

    def turns_of(pair: Preference) -> Sequence[Turn]:
        turns = [_last_turn(learner, pair.answered(answer)) for answer in (pair.chosen, pair.rejected)]
        return [turn for turn in turns if not turn.logprobs] or turns

    def objective_of(turns: Sequence[Turn]) -> Objective:
        reference = learner.scores(policies.parent, turns)
        return Objective(lambda new: preference_loss(new, reference, config))

    return _plan_batches(learner, config, data, turns_of, objective_of, resume_step)


def _last_turn(learner: Learner, example: Example) -> Turn:
    turns = learner.sft_turns(example, "last")
    if not turns:
        raise InvalidInput.at("messages", msg="have an answer without a token that could be trained")
    return turns[-1]


# ---- the table ---------------------------------------------------------------------------------------------------


def _rl_compares(config: RLConfig) -> Collection[str]:
    compares_reference = config.kl_penalty_coef or config.kl_penalty_reference_step is not None
    return (("parent",) if config.precalculate_logprobs else ()) + (("reference",) if compares_reference else ())


LEARNER_METHODS: Mapping[str, LearnerMethod] = {
    "sft": LearnerMethod(_plan_sft),
    "rl": LearnerMethod(plan_rl, _rl_compares),
    "dpo": LearnerMethod(_plan_dpo, lambda config: ("parent",)),
}
