"""The settings of training jobs, every default resolved. Names, defaults and bounds are those of the wire."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, get_args

import attrs

from modelyard.errors import InvalidInput, Problem, nearest

if TYPE_CHECKING:
    from modelyard.parts.resources import DistillKeywords, DPOKeywords, RLKeywords, SFTKeywords
else:
    DistillKeywords = DPOKeywords = RLKeywords = SFTKeywords = TypedDict("Keywords", {})

ImportanceSamplingLevel = Literal["token", "sequence", "average", "geometric_average"]
AssistantTurns = Literal["all", "last"]
BatchSize = int | Literal["auto"]

AUTO_BATCH_SIZE = 2
MAX_EPOCHS = 100


def _is_rate(value: float) -> bool:
    return math.isfinite(value) and value > 0


def is_amount(value: float) -> bool:
    return math.isfinite(value) and value >= 0


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise InvalidInput(problems)


@attrs.frozen(kw_only=True)
class TrainingConfig:
    def __attrs_post_init__(self) -> None:
        _refuse(self._problems())

    def _problems(self) -> list[Problem]:
        return []

    @classmethod
    def resolve(cls, given: Mapping[str, Any]) -> Self:
        """Return the requested configuration: None means the default, a sequence becomes a tuple. Raises `InvalidInput`
        naming options that the method does not have and values that are out of bounds. Types are not checked."""
        unknown = sorted(given.keys() - {field.name for field in attrs.fields(cls)})
        _refuse([Problem((name,), "is not an option of this training method") for name in unknown])
        return cls(**{name: _frozen(value) for name, value in given.items() if value is not None})

    @classmethod
    def hint(cls, name: str, known: Iterable[str]) -> str:
        """Return what the refusal of an unknown option adds; num_train_epochs has one of ours within it."""
        within = max((one for one in known if one in name), key=len, default="")
        return nearest(name, known) or (f"; did you mean {within!r}?" if within else "")

    def check_rows(self, rows: int, held_out: int = 0) -> None:
        """Raise `InvalidInput` where so many rows, or so many that are held out, do not suit the settings."""

    def of_round(self, number: int, rounds: int) -> Self:
        """Return the settings of one of the rounds of a loop, of which `number` are done."""
        return self


@attrs.frozen(kw_only=True)
class RLConfig(TrainingConfig):
    """How an RL job trains. Raises `InvalidInput` naming every field that is out of bounds.

    `ppo` chooses the clipped surrogate of PPO; otherwise the loss is CISPO (clipped, detached ratio x advantage x
    logprob). The ratio is clipped to [1 - epsilon, 1 + epsilon_high]. `precalculate_logprobs` replaces the sampler's
    logprobs by those of the weights before the update. `truncated_importance_sampling` is a cap on a detached weight of
    each token: the ratio of those two, or without `precalculate_logprobs` the token's own ratio. For the optional
    numbers 0 means none, like None. `packed_sequence_length` counts tokens, prompts included.

    >>> RLConfig().epsilon_high, RLConfig(ppo=True).epsilon_high
    (4.0, 0.2)
    """

    learning_rate: float = 5e-6
    ppo: bool = False
    epsilon: float = attrs.field()
    epsilon_high: float = attrs.field()
    importance_sampling_level: ImportanceSamplingLevel = "token"
    max_negative_advantage_importance_sampling_weight: float | None = None
    mask_prob_ratio: bool = False
    kimi_k2_tau: float | None = None
    advantage_balance: float = 0.0
    scale_rewards: bool = True
    normalize_advantages: bool = True
    precalculate_logprobs: bool = False
    truncated_importance_sampling: float | None = None
    kl_penalty_coef: float = 0.0
    kl_penalty_reference_step: int | None = None
    packed_sequence_length: int = 2048
    allow_training_without_logprobs: bool = False

    @epsilon.default
    def _default_epsilon(self) -> float:
        return 0.2 if self.ppo else 1.0

    @epsilon_high.default
    def _default_epsilon_high(self) -> float:
        return self.epsilon if self.ppo else 4.0

    def _problems(self) -> list[Problem]:
        cap, truncation = self.max_negative_advantage_importance_sampling_weight, self.truncated_importance_sampling
        levels, reference = get_args(ImportanceSamplingLevel), self.kl_penalty_reference_step
        amount, above_zero = "must be a finite number, 0 or more", "must be a finite number above 0"
        rules = [
            ("learning_rate", _is_rate(self.learning_rate), above_zero),
            ("epsilon", is_amount(self.epsilon), amount),
            ("epsilon_high", is_amount(self.epsilon_high), amount),
            ("importance_sampling_level", self.importance_sampling_level in levels, f"must be one of {levels}"),
            ("max_negative_advantage_importance_sampling_weight", cap is None or is_amount(cap), amount),
            ("kimi_k2_tau", self.kimi_k2_tau is None or is_amount(self.kimi_k2_tau), amount),
            ("advantage_balance", -1 <= self.advantage_balance <= 1, "must lie between -1 and 1"),
            ("truncated_importance_sampling", truncation is None or is_amount(truncation), amount),
            ("kl_penalty_coef", is_amount(self.kl_penalty_coef), amount),
            ("kl_penalty_reference_step", reference is None or reference >= 0, "must be a step, 0 or more"),
            ("packed_sequence_length", self.packed_sequence_length >= 1, "must be 1 or more"),
        ]
        return [Problem((name,), message) for name, fits, message in rules if not fits]

    def step_rates(self, steps: int) -> Sequence[float]:
        return (self.learning_rate,) * steps

    @classmethod
    def resolve(cls, given: Mapping[str, Any]) -> Self:
        """Resolve also `loss_fn` ("cispo" or "ppo"), another word for `ppo`. Raises `InvalidInput` when the two
        disagree."""
        asked = {name: value for name, value in given.items() if value is not None}
        loss_fn = asked.pop("loss_fn", None)
        if loss_fn not in (None, "cispo", "ppo"):
            raise InvalidInput.at("loss_fn", msg="must be 'cispo' or 'ppo'")
        if loss_fn is not None and asked.setdefault("ppo", loss_fn == "ppo") is not (loss_fn == "ppo"):
            raise InvalidInput.at("loss_fn", msg=f"{loss_fn!r} contradicts ppo={asked['ppo']}; send one of the two")
        return super().resolve(asked)


@attrs.frozen(kw_only=True)
class BatchedConfig(TrainingConfig):
    """How a job trains that takes rows in batches: one learning rate for all batches, or one for each. All rows are
    trained on `epochs` times, each time in their order."""

    learning_rate: float | tuple[float, ...] = 5e-5
    batch_size: BatchSize = 2
    epochs: int = 1

    def _problems(self) -> list[Problem]:
        size: object = self.batch_size
        fits = size == "auto" or (isinstance(size, int) and size >= 1)
        wrong_size = [] if fits else [Problem(("batch_size",), "must be 1 or more, or 'auto'")]
        epochs = [] if 1 <= self.epochs <= MAX_EPOCHS else [Problem(("epochs",), f"must be from 1 to {MAX_EPOCHS}")]
        return [*self._rate_problems(), *wrong_size, *epochs]

    def _rate_problems(self) -> list[Problem]:
        message = "must be a finite number, 0 or more"
        if not isinstance(self.learning_rate, tuple):
            return [] if is_amount(self.learning_rate) else [Problem(("learning_rate",), message)]
        if not self.learning_rate:
            return [Problem(("learning_rate",), "must name at least one rate")]
        rates = enumerate(self.learning_rate)
        return [Problem(("learning_rate", place), message) for place, rate in rates if not is_amount(rate)]

    def check_rows(self, rows: int, held_out: int = 0) -> None:
        self.learning_rates(rows * self.epochs)

    @property
    def rows_per_batch(self) -> int:
        return AUTO_BATCH_SIZE if self.batch_size == "auto" else self.batch_size

    def learning_rates(self, rows: int) -> tuple[float, ...]:
        """Return one learning rate for each batch of `rows` rows, exactly as sent. Raises `InvalidInput` when a list of
        rates does not name one for each batch."""
        batches = math.ceil(rows / self.rows_per_batch)
        if not isinstance(self.learning_rate, tuple):
            return (self.learning_rate,) * batches
        if (named := len(self.learning_rate)) != batches:
            message = f"names {named} rates, but {rows} rows make {batches} batches; name one for each"
            raise InvalidInput.at("learning_rate", msg=message)
        return self.learning_rate


@attrs.frozen(kw_only=True)
class DPOConfig(BatchedConfig):
    """How a DPO job trains. `beta` is how strongly the model is kept near the checkpoint that it starts from.
    `label_smoothing` is the assumed share of pairs with swapped labels."""

    learning_rate: float | tuple[float, ...] = 5e-6
    beta: float = 0.1
    label_smoothing: float = 0.0

    def _problems(self) -> list[Problem]:
        bounds = [
            ("beta", _is_rate(self.beta), "must be a finite number above 0"),
            ("label_smoothing", 0 <= self.label_smoothing < 0.5, "must be 0 or more, and less than 0.5"),
        ]
        return [*super()._problems(), *(Problem((name,), message) for name, fits, message in bounds if not fits)]


@attrs.frozen(kw_only=True)
class DistillConfig(BatchedConfig):
    """How a model is trained to answer as its teacher would. `beta` chooses the divergence of the two distributions
    (arXiv 2306.13649): 0 is KL(teacher || model), which covers all that the teacher may say; 1 is
    KL(model || teacher), which avoids what it would not say; between them lies the generalized Jensen-Shannon
    divergence."""

    beta: float = 0.0

    def _problems(self) -> list[Problem]:
        fits = 0 <= self.beta <= 1
        return [*super()._problems(), *([] if fits else [Problem(("beta",), "must lie between 0 and 1")])]


@attrs.frozen(kw_only=True)
class SFTConfig(BatchedConfig):
    assistant_turns: AssistantTurns = "all"

    def _problems(self) -> list[Problem]:
        fits = self.assistant_turns in get_args(AssistantTurns)
        return [*super()._problems(), *([] if fits else [Problem(("assistant_turns",), "must be 'all' or 'last'")])]


class RLOptions(RLKeywords, total=False):
    learning_rate: float | None
    ppo: bool | None
    loss_fn: Literal["cispo", "ppo"] | None
    epsilon: float | None
    epsilon_high: float | None
    importance_sampling_level: ImportanceSamplingLevel | None
    max_negative_advantage_importance_sampling_weight: float | None
    mask_prob_ratio: bool | None
    kimi_k2_tau: float | None
    advantage_balance: float | None
    scale_rewards: bool | None
    normalize_advantages: bool | None
    precalculate_logprobs: bool | None
    truncated_importance_sampling: float | None
    kl_penalty_coef: float | None
    kl_penalty_reference_step: int | None
    packed_sequence_length: int | None
    allow_training_without_logprobs: bool | None


class SFTOptions(SFTKeywords, total=False):
    learning_rate: float | Sequence[float] | None
    batch_size: BatchSize | None
    epochs: int | None
    assistant_turns: AssistantTurns | None


class DPOOptions(DPOKeywords, total=False):
    learning_rate: float | Sequence[float] | None
    batch_size: BatchSize | None
    epochs: int | None
    beta: float | None
    label_smoothing: float | None


class DistillOptions(DistillKeywords, total=False):
    learning_rate: float | Sequence[float] | None
    batch_size: BatchSize | None
    epochs: int | None
    beta: float | None
