"""How a loop works: its own options, and those of the RL job of each round."""

import math
from collections.abc import Mapping
from typing import Any, TypedDict

import attrs

from modelyard.domain.job import JobKind
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.training_config import RLOptions, TrainingConfig, is_amount
from modelyard.errors import Problem


class StopWhen(TypedDict, total=False):
    """When a loop stops before its last round: its held-out score reaches `score`, or `patience` validations in a row
    have not improved on the best."""

    score: float
    patience: int


@attrs.frozen(kw_only=True)
class LoopConfig(TrainingConfig):
    """How a loop trains: each round samples answers, judges them, trains on the rewards, and may validate. A round
    takes `tasks_per_round` tasks (None for at most 32), the next ones of an order that is drawn again when all were
    taken, and samples `samples` answers to each. `max_tokens` bounds an answer, `concurrency` the tasks that are
    sampled at a time. With a `teacher`, the name of a model that scores the answers, rounds are trained on its scores,
    and rewards are only measured. The held-out tasks are answered before the first round, after every `evaluate_every`
    rounds and after the last, at temperature 0. `training` is the configuration of each round's job. From the `seed`
    (None for a random one) the order of tasks and the seeds of answers are drawn. Raises `InvalidInput` naming every
    field that is out of bounds."""

    rounds: int = 8
    samples: int = 4
    tasks_per_round: int | None = None
    temperature: float = 1.0
    max_tokens: int = 256
    concurrency: int = 8
    evaluate_every: int = 1
    stop_when: Mapping[str, Any] = attrs.field(factory=dict)
    evaluation: str = "held_out"
    teacher: str | None = None
    seed: int | None = None
    training: Mapping[str, Any] = attrs.field(factory=dict)

    def _problems(self) -> list[Problem]:
        whole = {
            "rounds": (self.rounds, 1, 10_000),
            "samples": (self.samples, 2, 128),
            "tasks_per_round": (1 if self.tasks_per_round is None else self.tasks_per_round, 1, 10_000),
            "max_tokens": (self.max_tokens, 1, 10_000_000),
            "concurrency": (self.concurrency, 1, 1000),
            "evaluate_every": (self.evaluate_every, 1, 10_000),
        }
        problems = [
            Problem((name,), f"must be a whole number from {least} to {most}")
            for name, (value, least, most) in whole.items()
            if type(value) is not int or not least <= value <= most
        ]
        if self.seed is not None and not (type(self.seed) is int and 0 <= self.seed < 2**63):
            problems.append(Problem(("seed",), "must be a whole number from 0 to 2^63 - 1"))
        if not (is_amount(self.temperature) and self.temperature <= 2):
            problems.append(Problem(("temperature",), "must lie between 0 and 2"))
        return [*problems, *self._stop_problems()]

    def _stop_problems(self) -> list[Problem]:
        score, patience = self.stop_when.get("score", 0.0), self.stop_when.get("patience", 1)
        unknown = self.stop_when.keys() - StopWhen.__annotations__.keys()
        rules: list[tuple[str, bool, str]] = [
            *((name, False, "is not a rule; give score or patience") for name in sorted(unknown)),
            ("score", isinstance(score, int | float) and math.isfinite(score), "must be a finite number"),
            ("patience", type(patience) is int and patience >= 1, "must be a whole number, 1 or more"),
        ]
        return [Problem(("stop_when", name), message) for name, fits, message in rules if not fits]


def method_of(teacher: object) -> str:
    """Return the kind of the jobs that train the rounds."""
    return JobKind.RL if teacher is None else JobKind.DISTILL


class LoopOptions(RLOptions, total=False):
    rounds: int | None
    samples: int | None
    tasks_per_round: int | None
    temperature: float | None
    max_tokens: int | None
    concurrency: int | None
    evaluate_every: int | None
    stop_when: StopWhen | None
    evaluation: str | None
    teacher: "Model | Checkpoint | str | None"
    beta: float | None
    seed: int | None
