"""The mathematics of SFT, DPO and RL as pure functions over plain numbers: no model, no tensor library. Every loss is
returned with its analytic derivative with respect to each new log-probability, so a model has only to chain that
through its own gradient. *New* log-probabilities come from the weights being trained, *old* ones from the weights
before the job's updates (as a rule the sampler's), *reference* ones from the model of the KL penalty. `detached` below
means: counted in the value, but not differentiated."""

import math
from collections.abc import Callable, Mapping, Sequence

import attrs

from modelyard.domain.training_config import DPOConfig, ImportanceSamplingLevel, RLConfig
from modelyard.domain.training_run import Loss
from modelyard.trainers.credits import Credit

MAX_LOG_RATIO = 20.0


# ---- SFT -------------------------------------------------------------------------------------------------------


def supervised_loss(new: Sequence[Sequence[float]], weights: Sequence[Sequence[float]] = ()) -> Loss:
    """Return the mean negative log-probability over the batch's trained tokens, each times its weight; a row of
    `weights` that is empty, or none at all, stands for 1s. A batch without any token has the value 0, and no loss among
    its metrics, as nothing was measured."""
    tokens = sum(map(len, new))
    share = 1 / tokens if tokens else 0.0
    given = weights or [()] * len(new)
    derivatives = tuple(
        tuple(-share * one for one in own) if own else (-share,) * len(row) for row, own in zip(new, given, strict=True)
    )
    value = math.fsum(
        slope * logprob
        for row, slopes in zip(new, derivatives, strict=True)
        for logprob, slope in zip(row, slopes, strict=True)
    )
    return Loss(value, derivatives, {**({"loss": value} if tokens else {}), "num_trainable_tokens": float(tokens)})


# ---- DPO ---------------------------------------------------------------------------------------------------------


def preference_loss(new: Sequence[Sequence[float]], reference: Sequence[Sequence[float]], config: DPOConfig) -> Loss:
    """Direct preference optimization: rows alternate, the chosen answer before the rejected one. An answer's reward is
    beta x (its new log-probability - its reference one), the margin of a pair the difference of its rewards, and its
    loss -(1 - s) log sigmoid(margin) - s log sigmoid(-margin), where s smooths labels; the mean over pairs counts. The
    metrics add `accuracy`, the share of pairs whose margin is above 0, and the mean `margin`, `chosen_reward` and
    `rejected_reward`. A batch without any pair has the value 0, and none of these metrics."""
    rewards = [config.beta * (math.fsum(row) - math.fsum(base)) for row, base in zip(new, reference, strict=True)]
    chosen, rejected = rewards[::2], rewards[1::2]
    margins = [good - bad for good, bad in zip(chosen, rejected, strict=True)]
    pairs, smoothing = max(len(margins), 1), config.label_smoothing
    losses = [-(1 - smoothing) * _log_sigmoid(margin) - smoothing * _log_sigmoid(-margin) for margin in margins]
    slopes = [smoothing * _sigmoid(margin) - (1 - smoothing) * _sigmoid(-margin) for margin in margins]
    signed = [config.beta / pairs * slope for one in slopes for slope in (one, -one)]
    derivatives = tuple((slope,) * len(row) for slope, row in zip(signed, new, strict=True))
    value = math.fsum(losses) / pairs
    measured = {
        "loss": value,
        "accuracy": sum(margin > 0 for margin in margins) / pairs,
        "margin": math.fsum(margins) / pairs,
        "chosen_reward": math.fsum(chosen) / pairs,
        "rejected_reward": math.fsum(rejected) / pairs,
    }
    return Loss(
        value, derivatives, {**(measured if margins else {}), "num_trainable_tokens": float(sum(map(len, new)))}
    )


def _sigmoid(value: float) -> float:
    return math.exp(_log_sigmoid(value))


def _log_sigmoid(value: float) -> float:
    return min(value, 0.0) - math.log1p(math.exp(-abs(value)))


# ---- RL: the policy loss -----------------------------------------------------------------------------------------


@attrs.frozen
class TrainedSequence:
    """The trainable tokens of one trajectory, with their log-probabilities, token by token. A missing old or sampled
    log-probability (None or NaN) counts as the new one, detached. `sampled` are the sampler's if `old` was recomputed,
    else None."""

    credit: Credit
    new: Sequence[float]
    old: Sequence[float | None]
    sampled: Sequence[float | None] | None = None
    reference: Sequence[float] | None = None


@attrs.frozen
class _Ratio:
    value: float
    own: float
    shared: float


_LEVELS: Mapping[ImportanceSamplingLevel, Callable[[float, float], _Ratio]] = {
    "token": lambda token, sequence: _Ratio(token, token, 0.0),
    "sequence": lambda token, sequence: _Ratio(sequence, 0.0, sequence),
    "average": lambda token, sequence: _Ratio((token + sequence) / 2, token / 2, sequence / 2),
    "geometric_average": lambda token, sequence: _half_each(math.sqrt(token * sequence)),
}


def _half_each(ratio: float) -> _Ratio:
    return _Ratio(ratio, ratio / 2, ratio / 2)


def _gap(logprob: float, base: float | None) -> float:
    return 0.0 if base is None or math.isnan(base) else logprob - base


def _clamped(log_ratio: float) -> float:
    return _within(-MAX_LOG_RATIO, log_ratio, MAX_LOG_RATIO)


def _within(least: float, value: float, most: float) -> float:
    """Clip a value. Most often it is within the bounds, and this is called for each token."""
    return value if least <= value <= most else max(least, min(most, value))


def importance_ratios(log_ratios: Sequence[float], level: ImportanceSamplingLevel) -> list[float]:
    """Return the ratio of each token of one sequence at this level, from its log ratios (new - old).

    >>> importance_ratios([0.0, 0.0], "sequence")
    [1.0, 1.0]
    """
    return [ratio.value for ratio in _ratios(log_ratios, level)]


def _ratios(log_ratios: Sequence[float], level: ImportanceSamplingLevel) -> list[_Ratio]:
    clamped = [_clamped(log_ratio) for log_ratio in log_ratios]
    sequence = math.exp(math.fsum(clamped) / max(len(clamped), 1))
    return [_LEVELS[level](math.exp(log_ratio), sequence) for log_ratio in clamped]


def _limited(ratio: _Ratio, config: RLConfig) -> _Ratio:
    """Limit the ratio to its cap, and to 0 outside the trusted range; a limited one is not differentiated."""
    cap = config.max_negative_advantage_importance_sampling_weight
    if cap and ratio.value > cap:
        ratio = _Ratio(cap, 0.0, 0.0)
    if config.mask_prob_ratio and not 1 - config.epsilon < ratio.value < 1 + config.epsilon_high:
        ratio = _Ratio(0.0, 0.0, 0.0)
    return ratio


@attrs.frozen
class Surrogate:
    loss: float
    by_logprob: float
    by_ratio: float


def cispo(ratio: float, advantage: float, new: float, config: RLConfig) -> Surrogate:
    """Return minus clipped detached ratio x advantage x log-probability."""
    clipped = _clipped(ratio, config)
    return Surrogate(-clipped * advantage * new, -clipped * advantage, 0.0)


def ppo(ratio: float, advantage: float, new: float, config: RLConfig) -> Surrogate:
    """Return minus the lesser of ratio x advantage and clipped ratio x advantage."""
    plain, clipped = ratio * advantage, _clipped(ratio, config) * advantage
    return Surrogate(-plain, 0.0, -advantage) if plain <= clipped else Surrogate(-clipped, 0.0, 0.0)


def _clipped(ratio: float, config: RLConfig) -> float:
    return _within(1 - config.epsilon, ratio, 1 + config.epsilon_high)


def _advantages(sequence: TrainedSequence, config: RLConfig, mean_gap: float) -> list[float]:
    """Return the advantage of each token: the trajectory's, shifted by Kimi K2's regulariser and by the KL penalty."""
    tau, coefficient = config.kimi_k2_tau or 0.0, config.kl_penalty_coef
    return [
        sequence.credit.advantage - tau * drift + coefficient * (mean_gap - gap)
        for drift, gap in zip(_log_ratios(sequence), _reference_gaps(sequence), strict=True)
    ]


def _log_ratios(sequence: TrainedSequence) -> list[float]:
    return [_gap(new, old) for new, old in zip(sequence.new, sequence.old, strict=True)]


def _reference_gaps(sequence: TrainedSequence) -> list[float]:
    if sequence.reference is None:
        return [0.0] * len(sequence.new)
    return [new - reference for new, reference in zip(sequence.new, sequence.reference, strict=True)]


def _corrections(sequence: TrainedSequence, ratios: Sequence[_Ratio], config: RLConfig) -> list[float]:
    """Return the detached weight of each token by truncated importance sampling; 1 without a cap. If `old` was
    recomputed it is min(old / sampled, cap), else the lesser of the cap and the token's limited ratio."""
    cap = config.truncated_importance_sampling
    if not cap:
        return [1.0] * len(ratios)
    if sequence.sampled is None:
        return [min(cap, ratio.value) for ratio in ratios]
    rows = zip(sequence.new, sequence.old, sequence.sampled, strict=True)
    # Missing ones count as new, so old - sampled is (new - sampled) - (new - old).
    return [min(cap, math.exp(_clamped(_gap(new, sampled) - _gap(new, old)))) for new, old, sampled in rows]


def policy_loss(sequences: Sequence[TrainedSequence], config: RLConfig) -> Loss:
    """CISPO or PPO over one packed sequence, weighted and averaged over its trainable tokens.

    In this order: ratio at the chosen level, its cap, its mask; the detached shifts of the advantage; the surrogate;
    truncated importance sampling; weights; mean. The metrics add `kl_div` (against the reference if there is one, else
    against the old policy; estimated by exp(-k) - 1 + k), the mean `importance_ratio` and `num_trainable_tokens`.
    """
    tokens = sum(len(sequence.new) for sequence in sequences)
    gaps = [gap for sequence in sequences for gap in _reference_gaps(sequence)]
    mean_gap = math.fsum(gaps) / max(tokens, 1)
    parts = [_sequence_loss(sequence, config, mean_gap, max(tokens, 1)) for sequence in sequences]
    value = math.fsum(loss for loss, _ in parts)
    measured = {"loss": value, **_drift_metrics(sequences, config)} if tokens else {}
    metrics = {"num_trainable_tokens": float(tokens), **measured}
    return Loss(value, tuple(derivative for _, derivative in parts), metrics)


def _sequence_loss(
    sequence: TrainedSequence, config: RLConfig, mean_gap: float, tokens: int
) -> tuple[float, tuple[float, ...]]:
    gaps = _log_ratios(sequence)
    ratios = [_limited(ratio, config) for ratio in _ratios(gaps, config.importance_sampling_level)]
    advantages = _advantages(sequence, config, mean_gap)
    shares = [sequence.credit.weight * correction / tokens for correction in _corrections(sequence, ratios, config)]
    surrogate = ppo if config.ppo else cispo
    terms = [surrogate(r.value, a, new, config) for r, a, new in zip(ratios, advantages, sequence.new, strict=True)]
    rows = list(zip(shares, terms, ratios, gaps, strict=True))
    through_mean = math.fsum(share * term.by_ratio * ratio.shared for share, term, ratio, _ in rows) / max(len(rows), 1)
    derivatives = (
        share * term.by_logprob + (share * term.by_ratio * ratio.own + through_mean) * (abs(gap) <= MAX_LOG_RATIO)
        for share, term, ratio, gap in rows
    )
    return math.fsum(share * term.loss for share, term, _, _ in rows), tuple(derivatives)


def _drift_metrics(sequences: Sequence[TrainedSequence], config: RLConfig) -> dict[str, float]:
    gaps = [_log_ratios(sequence) for sequence in sequences]
    bases = [_reference_gaps(s) if s.reference is not None else gap for s, gap in zip(sequences, gaps, strict=True)]
    divergences = [math.expm1(-_clamped(gap)) + _clamped(gap) for row in bases for gap in row]
    ratios = [ratio for row in gaps for ratio in importance_ratios(row, config.importance_sampling_level)]
    tokens = max(len(ratios), 1)
    return {
        "kl_div": math.fsum(divergences) / tokens,
        "importance_ratio": math.fsum(ratios) / tokens if ratios else 1.0,
    }
