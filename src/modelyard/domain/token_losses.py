"""The losses that the callers of step-by-step training name, as Tinker's interface defines them. Each is a sum over
tokens, not a mean, so that rows add up over calls. Ratios are exp(new - sampled), and thresholds are ratios, not
distances to 1."""

import math
from collections.abc import Callable, Mapping, Sequence

import attrs

from modelyard.domain.training_run import Loss, Objective, Rows, TargetRow
from modelyard.errors import InvalidInput

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
        try:
            _check_row(name, loss, row, given)
        except InvalidInput as bad:
            raise bad.below(number) from None
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
