"""Training that its caller drives, step by step: its configuration, its rows, and its objective."""

import math
from collections.abc import Callable, Mapping, Sequence

import attrs

from modelyard.errors import InvalidInput

Rows = Sequence[Sequence[float]]


# ---- the configuration -------------------------------------------------------------------------------------


@attrs.frozen
class AdapterConfig:
    """A low-rank adapter (arXiv 2106.09685): its rank, the seed of its first weights, and the layers that it changes.
    The layers are attention, the feed-forward part, experts included, and the output layer."""

    rank: int = 32
    seed: int = 0
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True

    def __attrs_post_init__(self) -> None:
        """Raise `InvalidInput` for a rank below 1, a seed that is not of 64 bits, or no layers."""
        if self.rank < 1:
            raise InvalidInput.at("rank", msg=f"is {self.rank}; it is at least 1")
        if not 0 <= self.seed < 2**63:
            raise InvalidInput.at("seed", msg=f"is {self.seed}; it is 0 to 2^63 - 1")
        if not (self.train_mlp or self.train_attn or self.train_unembed):
            raise InvalidInput.at("train_mlp", msg="is false, and so are train_attn and train_unembed: nothing trains")


@attrs.frozen
class AdamParams:
    """One step of AdamW (arXiv 1711.05101). `grad_clip_norm` limits the norm of the gradient; 0 does not."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0

    def __attrs_post_init__(self) -> None:
        for name, least, below in _BOUNDS:
            value = getattr(self, name)
            if not least <= value < below:
                raise InvalidInput.at(name, msg=f"is {value:g}; it is at least {least:g} and below {below:g}")


_BOUNDS = (
    ("learning_rate", 0.0, math.inf),
    ("beta1", 0.0, 1.0),
    ("beta2", 0.0, 1.0),
    ("eps", 5e-324, math.inf),
    ("weight_decay", 0.0, math.inf),
    ("grad_clip_norm", 0.0, math.inf),
)


@attrs.frozen
class TargetRow:
    """Tokens that a model reads, and after each of them `k` tokens of which the log-probabilities are requested.
    `targets` are k x as many as `inputs`, position by position. They need not be the tokens that follow in `inputs`."""

    inputs: Sequence[int]
    targets: Sequence[int]
    k: int = 1

    def __attrs_post_init__(self) -> None:
        if not self.inputs:
            raise InvalidInput.at("inputs", msg="are no tokens")
        if self.k < 1 or len(self.targets) != self.k * len(self.inputs):
            raise InvalidInput.at(
                "targets", msg=f"are {len(self.targets)} tokens; {self.k} for each of {len(self.inputs)} inputs are due"
            )

    def check(self, longest: int, vocabulary: int) -> None:
        """Raise `InvalidInput` for more than `longest` inputs, or a token outside the vocabulary."""
        if len(self.inputs) > longest:
            raise InvalidInput.at("inputs", msg=f"are {len(self.inputs)} tokens; the model reads up to {longest}")
        for name, ids in (("inputs", self.inputs), ("targets", self.targets)):
            if not 0 <= min(ids) <= max(ids) < vocabulary:
                place = next(place for place, token in enumerate(ids) if not 0 <= token < vocabulary)
                known = f"the model has the tokens 0 to {vocabulary - 1}"
                raise InvalidInput.at(name, place, msg=f"is {ids[place]}; {known}")


# ---- the objective ------------------------------------------------------------------------------------


@attrs.frozen
class Loss:
    """A loss (nats), its derivative for each new log-probability (one row per sequence), and numbers to report."""

    value: float
    derivatives: Rows
    metrics: Mapping[str, float]


@attrs.frozen
class Objective:
    """The objective of a step, to be minimized. `of` takes the log-probability of each token of the step, row by row,
    and returns its derivatives in the same rows; if `linear`, they are the same for any rows."""

    of: Callable[[Rows], Loss]
    linear: bool = False
