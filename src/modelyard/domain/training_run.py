"""Training that its caller drives, step by step: its configuration, its rows, its losses and its objects."""

import math
from collections.abc import Callable, Mapping, Sequence

import attrs

from modelyard.errors import InvalidInput, located_at

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


Columns = Mapping[str, Sequence[float]]
Term = tuple[float, float]
MAX_LOG_RATIO = 80.0
"""A larger ratio counts as this one, so that its exponential and products with it are finite; its derivative is
kept."""


# ---- one token ---------------------------------------------------------------------------------------------------


def _cross_entropy(new: float, weight: float) -> Term:
    return -weight * new, -weight


def _importance_sampling(new: float, sampled: float, advantage: float) -> Term:
    gain = _ratio(new, sampled) * advantage
    return -gain, -gain


def _ppo(new: float, sampled: float, advantage: float, low: float, high: float) -> Term:
    ratio = _ratio(new, sampled)
    plain, clipped = ratio * advantage, max(low, min(high, ratio)) * advantage
    return (-plain, -plain) if plain <= clipped else (-clipped, 0.0)


def _cispo(new: float, sampled: float, advantage: float, low: float, high: float) -> Term:
    weight = max(low, min(high, _ratio(new, sampled))) * advantage
    return -weight * new, -weight


def _dro(new: float, sampled: float, advantage: float, beta: float) -> Term:
    gap = new - sampled
    return 0.5 * beta * gap * gap - new * advantage, beta * gap - advantage


def _ratio(new: float, sampled: float) -> float:
    return math.exp(min(new - sampled, MAX_LOG_RATIO))


# ---- the table ---------------------------------------------------------------------------------------------------


@attrs.frozen
class TokenLoss:
    """A loss of one token: the columns that it reads, and its settings in order, with their defaults."""

    term: Callable[..., Term]
    columns: tuple[str, ...]
    settings: Mapping[str, float] = attrs.field(factory=dict)
    linear: bool = False
    several: bool = False


_POLICY = ("logprobs", "advantages")

TOKEN_LOSSES: Mapping[str, TokenLoss] = {
    "cross_entropy": TokenLoss(_cross_entropy, ("weights",), linear=True, several=True),
    "importance_sampling": TokenLoss(_importance_sampling, _POLICY),
    "ppo": TokenLoss(_ppo, _POLICY, {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
    "cispo": TokenLoss(_cispo, _POLICY, {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0}),
    "dro": TokenLoss(_dro, _POLICY, {"beta": 0.05}),
}


def token_objective(
    name: str, settings: Mapping[str, float], rows: Sequence[TargetRow], columns: Sequence[Columns]
) -> Objective:
    """Return what a step on these rows minimizes: the sum of the loss over all their targets. Each row has its own
    columns, one for each input of the loss. Raises `InvalidInput` for an unknown loss, setting or column, and for a
    missing column or number, at `loss_fn`, `loss_fn_config` or (number of the row, column)."""
    loss = TOKEN_LOSSES.get(name)
    if loss is None:
        raise InvalidInput.at("loss_fn", msg=f"is {name!r}; there are {', '.join(TOKEN_LOSSES)}")
    chosen = _settings(name, loss, settings)
    for number, (row, given) in enumerate(zip(rows, columns, strict=True)):
        with located_at(number):
            _check_row(name, loss, row, given)
    inputs = [[given[column] for column in loss.columns] for given in columns]

    def of(new: Rows) -> Loss:
        terms = [
            [loss.term(*token, *chosen) for token in zip(row, *given, strict=True)]
            for row, given in zip(new, inputs, strict=True)
        ]
        value = math.fsum(one for row in terms for one, _ in row)
        return Loss(value, [[slope for _, slope in row] for row in terms], {"loss:sum": value})

    return Objective(of, loss.linear)


def _settings(name: str, loss: TokenLoss, given: Mapping[str, float]) -> tuple[float, ...]:
    for key, value in given.items():
        if key not in loss.settings:
            known = f"takes {', '.join(loss.settings)}" if loss.settings else "takes none"
            raise InvalidInput.at("loss_fn_config", key, msg=f"is not a setting of {name}, which {known}")
        if not math.isfinite(value) or value < 0:
            raise InvalidInput.at("loss_fn_config", key, msg=f"is {value:g}; it is a finite number, at least 0")
    chosen = {**loss.settings, **given}
    if "clip_low_threshold" in chosen and chosen["clip_low_threshold"] > chosen["clip_high_threshold"]:
        raise InvalidInput.at(
            "loss_fn_config",
            "clip_low_threshold",
            msg=f"is {chosen['clip_low_threshold']:g}, above clip_high_threshold {chosen['clip_high_threshold']:g}",
        )
    return tuple(chosen[key] for key in loss.settings)


def _check_row(name: str, loss: TokenLoss, row: TargetRow, given: Columns) -> None:
    if row.k > 1 and not loss.several:
        raise InvalidInput.at("target_tokens", msg=f"are {row.k} for each position; {name} takes one")
    if odd := given.keys() ^ set(loss.columns):
        problem = "is not read" if min(odd) in given else "is missing"
        raise InvalidInput.at(min(odd), msg=f"{problem}; {name} reads {', '.join(loss.columns)}")
    for column, values in given.items():
        if len(values) != len(row.targets):
            raise InvalidInput.at(column, msg=f"has {len(values)} numbers for {len(row.targets)} target tokens")
        if not all(map(math.isfinite, values)):
            place = next(place for place, value in enumerate(values) if not math.isfinite(value))
            raise InvalidInput.at(column, place, msg=f"is {values[place]}, not a finite number")
