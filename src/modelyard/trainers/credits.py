"""The credit of each trajectory of an RL job, and which of them share an optimizer step, as pure functions."""

import math
from collections.abc import Iterator, Sequence

import attrs

from modelyard.domain.training_config import RLConfig

STANDARD_DEVIATION_FLOOR = 1e-6


@attrs.frozen
class Credit:
    group: int
    member: int
    advantage: float
    weight: float


def group_advantages(rewards: Sequence[float], scale_rewards: bool = True) -> list[float]:
    """Reward minus the group's mean, over its population standard deviation + 1e-6 when scaling.

    A reward that differs from the mean by rounding alone has advantage 0.

    >>> group_advantages([1.0, 3.0], scale_rewards=False)
    [-1.0, 1.0]
    """
    if not rewards:
        return []
    mean = math.fsum(reward / len(rewards) for reward in rewards)
    gaps = [0.0 if math.isclose(reward, mean, rel_tol=1e-9, abs_tol=1e-12) else reward - mean for reward in rewards]
    scale = math.hypot(*gaps) / math.sqrt(len(gaps)) + STANDARD_DEVIATION_FLOOR if scale_rewards else 1.0
    return [gap / scale for gap in gaps]


def trajectory_weights(tokens: Sequence[int]) -> list[float]:
    """Weigh each trajectory's tokens: 1 / its trainable tokens, scaled to a mean of 1 over all of them.

    >>> trajectory_weights([1, 3])
    [2.0, 0.6666666666666666]
    """
    return [sum(tokens) / len(tokens) / count for count in tokens]


def balanced(advantage: float, balance: float) -> float:
    """Return negative advantages x (1 - balance) when it is above 0, positive ones x (1 + balance) when it is below."""
    if advantage < 0:
        return advantage * (1 - max(balance, 0.0))
    return advantage * (1 + min(balance, 0.0))


def credit_trajectories(groups: Sequence[Sequence[tuple[float, int]]], config: RLConfig) -> list[Credit]:
    """Credit every trajectory that is worth training on, in order; `groups` hold (reward, trainable tokens) pairs.
    Trajectories without trainable tokens count in their group's mean and are then dropped, like those of advantage 0.
    Weights and advantages are normalised over the whole job; `normalize_advantages=False` leaves advantages as they are
    after the balance."""
    kept = list(_trainable(groups, config.scale_rewards))
    tokens = [groups[group][member][1] for group, member, _ in kept]
    weights = trajectory_weights(tokens) if kept else []
    advantages = [balanced(advantage, config.advantage_balance) for _, _, advantage in kept]
    if config.normalize_advantages:
        advantages = _with_mean_size_one(advantages, weights, tokens)
    return [
        Credit(group, member, advantage, weight)
        for (group, member, _), advantage, weight in zip(kept, advantages, weights, strict=True)
    ]


def _trainable(groups: Sequence[Sequence[tuple[float, int]]], scale_rewards: bool) -> Iterator[tuple[int, int, float]]:
    for place, group in enumerate(groups):
        advantages = group_advantages([reward for reward, _ in group], scale_rewards)
        for member, (advantage, (_, tokens)) in enumerate(zip(advantages, group, strict=True)):
            if advantage and tokens:
                yield place, member, advantage


def _with_mean_size_one(advantages: list[float], weights: list[float], tokens: list[int]) -> list[float]:
    sizes = (abs(a) * weight * count for a, weight, count in zip(advantages, weights, tokens, strict=True))
    mean = math.fsum(sizes) / max(sum(tokens), 1)
    return [advantage / mean for advantage in advantages] if mean else advantages


def packed(lengths: Sequence[int], capacity: int) -> list[range]:
    """Return runs of places, in order, each as long as its lengths fit `capacity`; a longer one stands alone.

    >>> packed([3, 3, 9, 2], capacity=6)
    [range(0, 2), range(2, 3), range(3, 4)]
    """
    runs: list[range] = []
    start = used = 0
    for place, length in enumerate(lengths):
        if place > start and used + length > capacity:
            runs.append(range(start, place))
            start, used = place, 0
        used += length
    return [*runs, range(start, len(lengths))] if lengths else []
