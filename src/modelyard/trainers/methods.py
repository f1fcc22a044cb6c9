"""The training methods that run on a learner: SFT, DPO and distillation, and the table of all (RL is in `rl`)."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar, cast

import attrs

from modelyard.domain.training import Example, Preference, Trajectory
from modelyard.domain.training_config import BatchedConfig, DistillConfig, DPOConfig, RLConfig, SFTConfig
from modelyard.domain.training_run import Objective
from modelyard.errors import InvalidInput, located_at
from modelyard.trainers.distillation import divergence_loss
from modelyard.trainers.loop import Learner, Metrics, Plan, Policies, TaughtTurn, Turn, TurnTally, length_metrics
from modelyard.trainers.losses import preference_loss, supervised_loss
from modelyard.trainers.rl import plan_rl
from modelyard.trainers.validation import Criterion, Validation

Row = TypeVar("Row")


@attrs.frozen
class LearnerMethod:
    """The steps of a method, and which fields of `Policies` its loss compares with under a configuration. `plan` takes
    the learner, the configuration, the rows, the policies, the step after which to resume, and rows that are held
    out."""

    plan: Callable[[Learner, Any, Iterable[Any], Policies, int, Iterable[Any]], Plan]
    compares: Callable[[Any], Collection[str]] = lambda config: ()


# ---- methods that take rows in batches ---------------------------------------------------------------------------


def _plan_batches(
    learner: Learner,
    config: BatchedConfig,
    data: Iterable[Row],
    criterion: Criterion[Row],
    resume_step: int,
    held_out: Iterable[Row],
) -> Plan:
    """Plan one optimizer step per batch, in file order. Raises `TrainingError`, `InvalidInput`. The data are read
    twice, so that a bad row is refused before the first step."""
    rows, tally = _tallied(criterion, data, "data")
    rates = config.learning_rates(rows)
    _tallied(criterion, held_out, "held_out")
    tally.require_tokens(learner, "row")
    validation = Validation(learner, criterion, held_out, config.rows_per_batch, len(rates), config.epochs)

    def steps() -> Iterator[tuple[int, Metrics]]:
        for number, batch in _batches(data, config.rows_per_batch, resume_step):
            turns, rate = criterion.trainable(batch), rates[number - 1]
            found: Metrics = {"num_trainable_tokens": 0.0}
            if turns:
                found = learner.step(turns, criterion.objective_of(turns), rate, number)
            yield number, {**found, "learning_rate": rate, **validation.after(number)}

    return Plan(len(rates), steps(), length_metrics(tally.overlong), validation.whole)


def _tallied(criterion: Criterion[Row], rows: Iterable[Row], name: str) -> tuple[int, TurnTally]:
    count, tally = 0, TurnTally()
    for count, row in enumerate(rows, 1):
        with located_at(name, count - 1):
            tally.add(criterion.turns_of(row))
    return count, tally


def _batches(data: Iterable[Row], size: int, skipped: int) -> Iterator[tuple[int, list[Row]]]:
    rows = islice(data, skipped * size, None)
    number = skipped
    while batch := list(islice(rows, size)):
        number += 1
        yield number, batch


# ---- SFT ---------------------------------------------------------------------------------------------------------


def _plan_sft(
    learner: Learner,
    config: SFTConfig,
    data: Iterable[Example],
    policies: Policies,
    resume_step: int,
    held_out: Iterable[Example] = (),
) -> Plan:
    def turns_of(example: Example) -> Sequence[Turn]:
        return learner.sft_turns(example, config.assistant_turns)

    def tokens(turns: Sequence[Turn]) -> int:
        return sum(len(turn.logprobs) for turn in turns)

    def objective_of(turns: Sequence[Turn]) -> Objective:
        weights = [turn.weights for turn in turns]
        return Objective(lambda new: supervised_loss(new, weights), linear=True)

    criterion = Criterion(turns_of, objective_of, tokens)
    return _plan_batches(learner, config, data, criterion, resume_step, held_out)


# ---- DPO ---------------------------------------------------------------------------------------------------------


def _plan_dpo(
    learner: Learner,
    config: DPOConfig,
    data: Iterable[Preference],
    policies: Policies,
    resume_step: int,
    held_out: Iterable[Preference] = (),
) -> Plan:
    """Plan steps on pairs of answers; a pair with an answer that is too long for the model is left out. Every row is in
    one step, so its reference log-probabilities are computed there, once, under the parent's weights."""

    def turns_of(pair: Preference) -> Sequence[Turn]:
        turns = [_answer_turn(learner, pair, name) for name in ("chosen", "rejected")]
        return [turn for turn in turns if not turn.logprobs] or turns

    def objective_of(turns: Sequence[Turn]) -> Objective:
        reference = learner.scores(policies.parent, turns)
        return Objective(lambda new: preference_loss(new, reference, config))

    criterion = Criterion(turns_of, objective_of, lambda turns: len(turns) // 2)
    return _plan_batches(learner, config, data, criterion, resume_step, held_out)


def _answer_turn(learner: Learner, pair: Preference, name: str) -> Turn:
    try:
        turns = learner.sft_turns(pair.answered(getattr(pair, name)), "last")
    except InvalidInput as wrong:
        answer = ("messages", len(pair.messages))
        places = [(one, (name, *one.loc[2:]) if one.loc[:2] == answer else one.loc) for one in wrong.problems]
        raise InvalidInput([attrs.evolve(one, loc=place) for one, place in places]) from None
    if not turns:
        raise InvalidInput.at(name, msg="is an answer without a token that could be trained")
    return turns[-1]


# ---- distillation ------------------------------------------------------------------------------------------------


def _plan_distill(
    learner: Learner,
    config: DistillConfig,
    data: Iterable[Trajectory],
    policies: Policies,
    resume_step: int,
    held_out: Iterable[Trajectory] = (),
) -> Plan:
    def tokens(turns: Sequence[Turn]) -> int:
        return sum(map(len, _sizes(turns)))

    def objective_of(turns: Sequence[Turn]) -> Objective:
        teacher = [[one or 0.0 for one in turn.logprobs] for turn in turns]
        return Objective(lambda new: divergence_loss(new, teacher, _sizes(turns), config.beta))

    criterion = Criterion(learner.taught, objective_of, tokens)
    return _plan_batches(learner, config, data, criterion, resume_step, held_out)


def _sizes(turns: Sequence[Turn]) -> list[Sequence[int]]:
    return [cast(TaughtTurn, turn).sizes for turn in turns]


# ---- the table ---------------------------------------------------------------------------------------------------


def _rl_compares(config: RLConfig) -> Collection[str]:
    compares_reference = config.kl_penalty_coef or config.kl_penalty_reference_step is not None
    return (("parent",) if config.precalculate_logprobs else ()) + (("reference",) if compares_reference else ())


LEARNER_METHODS: Mapping[str, LearnerMethod] = {
    "sft": LearnerMethod(_plan_sft),
    "rl": LearnerMethod(plan_rl, _rl_compares),
    "dpo": LearnerMethod(_plan_dpo, lambda config: ("parent",)),
    "distill": LearnerMethod(_plan_distill),
}
