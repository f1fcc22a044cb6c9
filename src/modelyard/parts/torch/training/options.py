"""The options that jobs on local base models have besides those of their method (docs/reference/training.md)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, get_args

import attrs

from modelyard.domain.training_config import (
    BatchedConfig,
    DistillConfig,
    DPOConfig,
    RLConfig,
    SFTConfig,
    TrainingConfig,
)
from modelyard.errors import InvalidInput, Problem
from modelyard.parts.torch.training.other_names import NOT_OF_DISTILLATION, NOT_OF_DPO, NOT_OF_RL, hint_of

if TYPE_CHECKING:
    from modelyard.parts.torch.lora import LoraShape

Schedule = Literal["constant", "linear", "cosine"]
Overlong = Literal["drop", "refuse", "keep_start", "keep_end"]

MOST_RANK = 1024
MOST_SEED = 2**48 - 1


@attrs.frozen(kw_only=True, slots=False)
class AdapterOptions(TrainingConfig):
    """The seed of a job, and the adapter that it begins; None is what the trainer was made with."""

    seed: int | None = None
    lora_rank: int | None = None
    lora_alpha: int | None = None
    lora_targets: tuple[str, ...] | None = None

    @property
    def shapes(self) -> bool:
        return (self.lora_rank, self.lora_alpha, self.lora_targets) != (None, None, None)

    def shape(self, usual: "LoraShape") -> "LoraShape":
        named = None if self.lora_targets is None else tuple(sorted(set(self.lora_targets)))
        asked = {"rank": self.lora_rank, "alpha": self.lora_alpha, "targets": named}
        return attrs.evolve(usual, **{name: value for name, value in asked.items() if value is not None})  # type: ignore[arg-type]

    def _problems(self) -> list[Problem]:
        rules = [
            ("seed", self.seed is None or 0 <= self.seed <= MOST_SEED, f"must be from 0 to {MOST_SEED}"),
            ("lora_rank", self.lora_rank is None or 1 <= self.lora_rank <= MOST_RANK, f"must be from 1 to {MOST_RANK}"),
            ("lora_alpha", self.lora_alpha is None or self.lora_alpha >= 1, "must be 1 or more"),
            ("lora_targets", self.lora_targets is None or all(self.lora_targets or [""]), "must name layers"),
        ]
        return [*super()._problems(), *_broken(rules)]

    @classmethod
    def hint(cls, name: str, known: Iterable[str]) -> str:
        return hint_of(name, known)


@attrs.frozen(kw_only=True, slots=False)
class RateOptions(TrainingConfig):
    """How the learning rate rises and falls over the steps of a job."""

    schedule: Schedule = "constant"
    warmup_steps: int = 0
    warmup_ratio: float = 0.0

    def _problems(self) -> list[Problem]:
        listed = isinstance(getattr(self, "learning_rate", None), tuple)
        both = self.warmup_steps and self.warmup_ratio
        rules = [
            ("schedule", self.schedule in get_args(Schedule), f"must be one of {', '.join(get_args(Schedule))}"),
            ("schedule", not listed or self.schedule == "constant", _OWN_SCHEDULE),
            ("warmup_steps", self.warmup_steps >= 0, "must be 0 or more"),
            ("warmup_steps", not both, "contradicts warmup_ratio; send one"),
            ("warmup_steps", not (listed and self.warmup_steps), _OWN_SCHEDULE),
            ("warmup_ratio", 0 <= self.warmup_ratio <= 1, "must lie between 0 and 1"),
            ("warmup_ratio", not (listed and self.warmup_ratio), _OWN_SCHEDULE),
        ]
        return [*super()._problems(), *_broken(rules)]

    def scheduled(self, rates: Sequence[float]) -> tuple[float, ...]:
        """Return the rate of each step: that of the schedule, from 0 on while it warms up."""
        warm = self._warm(len(rates))
        return tuple(rate * self._factor(step, warm, len(rates)) for step, rate in enumerate(rates))

    def of_round(self, number: int, rounds: int) -> Self:
        """Return the configuration of a round: one rate, which the schedule gives over the rounds. As what is sampled
        for a rate of 0 is lost, the first of some warm rounds has its share already. A list of rates is that of each
        round."""
        usual: Any = getattr(self, "learning_rate", None)
        if isinstance(usual, tuple):
            return self
        warm = self._warm(rounds)
        factor = (number + 1) / warm if number < warm else self._factor(number, warm, rounds)
        one_rate: Any = {"learning_rate": usual * factor, "schedule": "constant"}
        return attrs.evolve(self, **one_rate, warmup_steps=0, warmup_ratio=0.0)

    def _warm(self, steps: int) -> int:
        return self.warmup_steps or math.ceil(steps * self.warmup_ratio)

    def _factor(self, step: int, warm: int, steps: int) -> float:
        if step < warm:
            return step / warm
        done = (step - warm) / max(1, steps - warm)
        if self.schedule == "linear":
            return 1 - done
        return 0.5 * (1 + math.cos(math.pi * done)) if self.schedule == "cosine" else 1.0


@attrs.frozen(kw_only=True, slots=False)
class BatchOptions(RateOptions, BatchedConfig):
    """In which order rows are trained, and what is done with long ones."""

    shuffle: bool = False
    validation_split: float = 0.0
    early_stopping_patience: int | None = None
    gradient_accumulation_steps: int = 1
    max_length: int | None = None
    overlong: Overlong = "drop"
    packing: bool = False

    def _problems(self) -> list[Problem]:
        patience, length = self.early_stopping_patience, self.max_length
        rules = [
            ("validation_split", 0 <= self.validation_split < 1, "must be 0 or more, and less than 1"),
            ("early_stopping_patience", patience is None or patience >= 1, "must be 1 or more"),
            ("gradient_accumulation_steps", self.gradient_accumulation_steps >= 1, "must be 1 or more"),
            ("max_length", length is None or length >= 2, "must be 2 or more"),
            ("overlong", self.overlong in get_args(Overlong), f"must be one of {', '.join(get_args(Overlong))}"),
        ]
        return [*super()._problems(), *_broken(rules)]

    @property
    def rows_per_batch(self) -> int:
        return super().rows_per_batch * self.gradient_accumulation_steps

    def held_out(self, rows: int) -> int:
        """Return how many of so many rows are only validated."""
        return math.ceil(rows * self.validation_split)

    def check_held_out(self, given: bool) -> None:
        """Raise `InvalidInput` where it does not suit the settings that a job has held-out rows of its own, or none."""
        if self.validation_split and given:
            msg = "is not possible: the job has held-out rows of its own; leave it out"
            raise InvalidInput.at("validation_split", msg=msg)
        if self.early_stopping_patience and not (self.validation_split or given):
            msg = "needs held-out rows; give validation_split, such as 0.1"
            raise InvalidInput.at("early_stopping_patience", msg=msg)

    def check_rows(self, rows: int, held_out: int = 0) -> None:
        self.check_held_out(held_out > 0)
        left = rows - self.held_out(rows)
        if rows and not left:
            raise InvalidInput.at("validation_split", msg=f"leaves none of {rows} rows to train")
        self.learning_rates(left * self.epochs)

    def for_one_epoch(self) -> Self:
        """Return the same for the rows of a file alone, whatever their number."""
        return attrs.evolve(self, epochs=1, learning_rate=0.0)

    def learning_rates(self, rows: int) -> tuple[float, ...]:
        return self.scheduled(super().learning_rates(rows))


_OWN_SCHEDULE = "is not possible with a list of rates, which is a schedule of its own"


def _broken(rules: Sequence[tuple[str, bool, str]]) -> list[Problem]:
    return [Problem((name,), message) for name, fits, message in rules if not fits]


# ---- by method ---------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True, slots=False)
class LocalSFTConfig(AdapterOptions, BatchOptions, SFTConfig):
    """How an SFT job trains a local base model."""

    train_after_end: bool = False


@attrs.frozen(kw_only=True, slots=False)
class LocalDPOConfig(AdapterOptions, BatchOptions, DPOConfig):
    """How a DPO job trains a local base model."""

    @classmethod
    def hint(cls, name: str, known: Iterable[str]) -> str:
        return hint_of(name, known, NOT_OF_DPO)


@attrs.frozen(kw_only=True, slots=False)
class LocalDistillConfig(AdapterOptions, BatchOptions, DistillConfig):
    """How a distillation job trains a local base model."""

    @classmethod
    def hint(cls, name: str, known: Iterable[str]) -> str:
        return hint_of(name, known, NOT_OF_DISTILLATION)


@attrs.frozen(kw_only=True, slots=False)
class LocalRLConfig(AdapterOptions, RateOptions, RLConfig):
    """How an RL job trains a local base model."""

    @classmethod
    def hint(cls, name: str, known: Iterable[str]) -> str:
        return hint_of(name, known, NOT_OF_RL)

    def step_rates(self, steps: int) -> Sequence[float]:
        return self.scheduled(super().step_rates(steps))


CONFIGS: Mapping[str, type[TrainingConfig]] = {
    "sft": LocalSFTConfig,
    "dpo": LocalDPOConfig,
    "rl": LocalRLConfig,
    "distill": LocalDistillConfig,
}


def with_own_options(method: str, config: TrainingConfig) -> Any:
    """Return a configuration with the defaults of what only this trainer has."""
    cls = CONFIGS[method]
    return config if isinstance(config, cls) else cls(**attrs.asdict(config, recurse=False))


# ---- for type checkers -------------------------------------------------------------------------------------------


class RLKeywords(TypedDict, total=False):
    """What `training.rl` and `training.loop` take besides the options of RL."""

    schedule: Schedule | None
    warmup_steps: int | None
    warmup_ratio: float | None
    seed: int | None
    lora_rank: int | None
    lora_alpha: int | None
    lora_targets: Sequence[str] | None


class DPOKeywords(RLKeywords, total=False):
    """What `training.dpo` takes besides the options of DPO."""

    shuffle: bool | None
    validation_split: float | None
    early_stopping_patience: int | None
    gradient_accumulation_steps: int | None
    max_length: int | None
    overlong: Overlong | None
    packing: bool | None


class DistillKeywords(DPOKeywords, total=False):
    """What `training.distill` takes besides the options of distillation."""


class SFTKeywords(DPOKeywords, total=False):
    """What `training.sft` takes besides the options of SFT."""

    train_after_end: bool | None
