"""The rollouts of a loop's round: several answers to each task, sampled together and judged."""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import attrs

from modelyard.domain.completion import Choice, CompletionRequest
from modelyard.domain.identity import Attribution, Principal
from modelyard.domain.training import History, RolloutError, SampledChoice, Trajectory, TrajectoryGroup
from modelyard.errors import BackendError, BudgetExceeded, Overloaded, RateLimited, StoreError
from modelyard.flow import run
from modelyard.parts.distillation.taught import Teacher
from modelyard.parts.loops.config import LoopConfig
from modelyard.parts.loops.pieces import GroupPieces, ScoresOfAnswer
from modelyard.platform.catalogue.service import resolve
from modelyard.platform.chat.backend_stream import backend_of
from modelyard.platform.chat.pipeline import CompletionPipeline
from modelyard.platform.chat.request import CompletionOptions, build_request
from modelyard.platform.evaluations.model_under_test import messages_of
from modelyard.platform.evaluations.row_evaluation import Retries, RowScorer, score_row
from modelyard.platform.runtime import Runtime

T = TypeVar("T")

RETRIES = 4
_SEEDS = 2**31


@attrs.frozen
class RoundSampler:
    """Samples groups of answers from the model `name`, and judges each answer. `seed` is the loop's. Thread-safe."""

    runtime: Runtime
    principal: Principal
    attribution: Attribution
    name: str
    scorer: RowScorer
    config: LoopConfig
    seed: int
    teacher: Teacher | None = None
    pieces: Callable[[int], GroupPieces] | None = None
    """Where the pieces of a group are kept that a teacher scores."""

    def group(self, round_: int, place: int, task: Mapping[str, Any]) -> TrajectoryGroup:
        """Sample and judge the answers to a task of a round. Failures are part of the group, except a used-up budget.
        Raises `BudgetExceeded`, `LeaseLost`, `StoreError`."""
        pieces = None if self.pieces is None else self.pieces(place)
        if pieces is None or self.teacher is None:
            return self._answers(round_, place, task)
        group = pieces.answers()
        if group is None:
            group = self._answers(round_, place, task)
            if group.trajectories:
                pieces.keep_answers(group)
        scored = [self._scored(self.teacher, one, pieces.scores(at)) for at, one in enumerate(group.trajectories)]
        return _grouped(scored, group.exceptions, group.metadata)

    def _answers(self, round_: int, place: int, task: Mapping[str, Any]) -> TrajectoryGroup:
        metadata = {"round": round_, "task": place}
        try:
            request = self._request(task, _random(self.seed, round_, place).randrange(_SEEDS))
            choices = self._choices(request)
        except (BudgetExceeded, StoreError):
            raise
        except Exception as error:  # noqa: BLE001 - a task that cannot be sampled is part of the round
            return TrajectoryGroup((), (RolloutError(type(error).__name__, str(error)),), metadata)
        return _grouped([self._judged(request, choice, task) for choice in choices], (), metadata)

    def _request(self, task: Mapping[str, Any], seed: int) -> CompletionRequest:
        served = resolve(self.runtime, self.name, self.principal)
        takes_seed = (
            "seed" in backend_of(self.runtime.backend, served.base_model).capabilities(served.base_model).parameters
        )
        options = {
            "model": self.name,
            "messages": messages_of(task),
            "n": self.config.samples,
            "temperature": self.config.temperature,
            "max_tokens": self.config.max_tokens,
            **({"seed": seed} if takes_seed else {}),
        }
        return build_request(cast("CompletionOptions", options), streamed=False, details=True)

    def _choices(self, request: CompletionRequest) -> Sequence[Choice]:
        def sample() -> Sequence[Choice]:
            flow = CompletionPipeline(self.runtime, self.principal, request, self.attribution).flow(details=True)
            return run(flow).completion.choices

        return self._patiently(sample)

    def _scored(self, teacher: Teacher, one: Trajectory, scores: ScoresOfAnswer) -> Trajectory | RolloutError:
        """Have the teacher score an answer. What it cannot score is a failure."""
        try:
            return self._patiently(partial(teacher.scored, one, scores))
        except (BudgetExceeded, StoreError):
            raise
        except Exception as error:  # noqa: BLE001 - as above
            return RolloutError(type(error).__name__, str(error))

    def _patiently(self, ask: Callable[[], T]) -> T:
        pauses = Retries(RETRIES, self.runtime.clock).pauses()
        while True:
            try:
                return ask()
            except (BackendError, Overloaded, RateLimited) as error:
                pause = next(pauses, None)
                if pause is None:
                    raise
                self.runtime.clock.sleep(max(pause, getattr(error, "retry_after", None) or 0.0))

    def _judged(self, request: CompletionRequest, choice: Choice, task: Mapping[str, Any]) -> Trajectory | RolloutError:
        (found,) = run(score_row((self.scorer,), choice.message.text, task))
        if not isinstance(found.value, int | float):  # a bool is an int
            reason = found.reason or f"the reward is {found.value!r}; a reward is a number or a bool"
            return RolloutError("NoReward", reason)
        history = History((*request.messages, SampledChoice.of(choice)), request.tools)
        return Trajectory((history,), float(found.value), logs=(found.comment,) if found.comment else ())


def _grouped(
    ended: Sequence[Trajectory | RolloutError], failed: Sequence[RolloutError], metadata: Mapping[str, Any]
) -> TrajectoryGroup:
    """Return answers as a group, with those that have failed."""
    return TrajectoryGroup(
        tuple(one for one in ended if isinstance(one, Trajectory)),
        (*failed, *(one for one in ended if isinstance(one, RolloutError))),
        metadata,
    )


def tasks_of_round(seed: int, count: int, per_round: int, round_: int) -> Sequence[int]:
    """Return which of `count` tasks a round takes: the next `per_round` of an order that is drawn for each pass.

    >>> sorted(tasks_of_round(7, 6, 4, 0) + tasks_of_round(7, 6, 4, 1)[:2])
    [0, 1, 2, 3, 4, 5]
    """
    first = round_ * per_round
    orders = {number: _order(seed, count, number) for number in {first // count, (first + per_round - 1) // count}}
    return [orders[at // count][at % count] for at in range(first, first + per_round)]


def _order(seed: int, count: int, number: int) -> Sequence[int]:
    order = list(range(count))
    _random(seed, number).shuffle(order)
    return order


def _random(*seed: int) -> random.Random:
    return random.Random(" ".join(map(str, seed)))  # noqa: S311 - it must be the same again, not a secret


def round_metrics(groups: Sequence[TrajectoryGroup]) -> Mapping[str, float]:
    rewards = [[one.reward for one in group.trajectories] for group in groups]
    flat = [reward for group in rewards for reward in group]
    return {
        "reward": sum(flat) / len(flat) if flat else 0.0,
        "zero_variance_groups": sum(len(set(group)) == 1 for group in rewards),
        "failed_rollouts": sum(len(group.exceptions) for group in groups),
    }


def first_failure(groups: Sequence[TrajectoryGroup]) -> str:
    return next((f"{one.type}: {one.message}" for group in groups for one in group.exceptions), "there are no tasks")
