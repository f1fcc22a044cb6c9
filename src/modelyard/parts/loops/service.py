"""Loops of the caller: start one, and do its work."""

from typing import Unpack

from modelyard.domain.identity import Principal
from modelyard.domain.models import Model
from modelyard.domain.worker import Resources
from modelyard.errors import BudgetExceeded, InvalidInput
from modelyard.parts.distillation.taught import teacher_name
from modelyard.parts.loops.agents import AGENT, AgentOptions
from modelyard.parts.loops.config import LoopOptions, method_of
from modelyard.parts.loops.part import LOOP, agents
from modelyard.parts.loops.record import Turns
from modelyard.parts.loops.request import Reward, Tasks, new_loop, resolve
from modelyard.parts.loops.rounds import TrainingLoop
from modelyard.platform.artifacts import remove_loose
from modelyard.platform.jobs.claims import ClaimedJob
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.handle import JobHandle
from modelyard.platform.training.service import Training, check_options


class AllOptions(LoopOptions, AgentOptions, total=False):
    """The options of loops of both kinds."""


class StartLoop:
    """Starts loops: `platform.training.loop`, called as a method is."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def __call__(
        self,
        model: Model | str,
        tasks: Tasks,
        reward: Reward | None = None,
        *,
        held_out: Tasks | None = None,
        idempotency_key: str | None = None,
        needs: Resources | None = None,
        **options: Unpack[AllOptions],
    ) -> JobHandle:
        """Train a model by RL in rounds: sample answers to tasks, judge them, train on the rewards, validate, repeat.

        `tasks` are rows with `messages` or a `prompt` and what the reward reads, in the forms that `evaluations.run`
        takes. `reward` is a scorer, declarative or a function of output and row; a function must be importable by its
        module, because the loop may be resumed in another process. With an `agent`, that makes the answers
        (docs/how-to/train-your-agent.md). With a `teacher`, a model that scores the answers, rounds are trained by
        distillation (docs/how-to/distil-a-model.md), and rewards are only measured. On the `held_out` tasks the reward
        is measured without training on it, in an evaluation run; `stop_when` stops early by it. Each round makes one
        checkpoint; the job's `step` is the best by held-out reward, else the last. `options` are the fields of
        `LoopConfig`, and those of `RLConfig`, or of `DistillConfig`, for the rounds. Killed at any point, it continues
        where it was: no round is trained twice. Raises as `training.sft` does.
        """
        training, given = Training(self._runtime, self._principal), {**options}
        teacher = options.get("teacher")
        if teacher is not None:
            teacher = given["teacher"] = teacher_name(self._runtime, self._principal, teacher)
        if options.get("agent") is not None:
            if teacher is not None:
                raise InvalidInput.at("teacher", msg="scores answers, and an agent makes attempts; give one of the two")
            asked = (model, tasks, reward, held_out, given, idempotency_key, needs)
            return agents().submit_loop(training, *asked)  # type: ignore[no-any-return]
        method, model = training.method(method_of(teacher), model)
        check_options(LOOP, LoopOptions, given, method.config)
        request = training._request(method, model, resolve(given, method.config), idempotency_key, needs)
        return new_loop(self._runtime, self._principal, request, tasks, reward, held_out, training._add)


def run_loop(claimed: ClaimedJob) -> Turns:
    """Do the work of a loop's job."""
    loop: TrainingLoop = agents().AgentLoop(claimed) if AGENT in claimed.job.spec else TrainingLoop(claimed)
    with remove_loose(claimed.runtime.artifacts, claimed.loose):
        try:
            yield from loop.turns()
        except BudgetExceeded as error:
            loop.record.end_over_budget(str(error))
