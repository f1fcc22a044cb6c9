"""Whether a group teaches anything, and whether its run is healthy, in words."""

import math
from collections.abc import Iterable, Sequence

import attrs

from modelyard.domain.completion import FinishReason
from modelyard.parts.episodes.records import Episode
from modelyard.parts.episodes.tree import TreeTurn, sequences_of

CUT_OFF = 0.25
OFF_POLICY = 0.5
GROWTH = 2.0
CERTAIN = 0.05
"""Nats: below this, what is sampled hardly varies."""


@attrs.frozen
class GroupHealth:
    """The figures of a group. Shares are of its trained turns or tokens; `surprise` is the mean negative log-
    probability of a sampled token in nats, an estimate of the entropy; `length` the mean of sampled tokens an episode.
    `off_policy` is the share of tokens that were sampled before the last checkpoint. `words` say what is wrong."""

    episodes: int
    rewarded: int
    mean_reward: float | None
    spread: float | None
    tokens: int
    length: float
    surprise: float | None
    cut_off: float
    off_policy: float
    words: tuple[str, ...] = ()


def health_of(
    attempts: Sequence[tuple[Episode, Sequence[TreeTurn]]],
    last_step: int | None,
    before: GroupHealth | None = None,
    *,
    held_out: bool = False,
) -> GroupHealth:
    """Return the health of a group, next to that of the group `before` it. One that is `held_out` is to teach nothing,
    so that is not said of it."""
    rewards = [episode.reward for episode, _ in attempts if episode.reward is not None]
    trained = [one for episode, turns in attempts if episode.reward is not None for one in _trained(turns)]
    logprobs = [entry.logprob for one in trained for entry in one.logprobs or ()]
    tokens = sum(len(one.ids) for one in trained)
    old = sum(len(one.ids) for one in trained if last_step is not None and one.turn.step != last_step)
    mean = math.fsum(rewards) / len(rewards) if rewards else None
    found = GroupHealth(
        len(attempts),
        len(rewards),
        mean,
        None if mean is None else math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards)),
        tokens,
        tokens / len(rewards) if rewards else 0.0,
        -math.fsum(logprobs) / len(logprobs) if logprobs else None,
        _share(sum(one.choice.finish_reason is FinishReason.LENGTH for one in trained), len(trained)),
        _share(old, tokens),
    )
    return attrs.evolve(found, words=tuple(_words(found, before, None if held_out else rewards)))


def _trained(turns: Sequence[TreeTurn]) -> Iterable[TreeTurn]:
    return (one for sequence in sequences_of(turns) for one in sequence)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _words(now: GroupHealth, before: GroupHealth | None, rewards: Sequence[float] | None) -> Iterable[str]:
    if rewards is None:
        pass
    elif not rewards:
        yield "No episode has a reward, so the group teaches nothing."
    elif len(set(rewards)) == 1:
        yield f"Every reward is {rewards[0]:g}, so the group teaches nothing."
    if rewards and not now.tokens:
        yield "No token of the trained model was kept, so the group teaches nothing: see why at each turn."
    if now.rewarded < now.episodes:
        yield f"{now.episodes - now.rewarded} of {now.episodes} episodes have no reward."
    if now.cut_off >= CUT_OFF:
        yield f"{now.cut_off * 100:.0f} % of the answers were cut off at their token limit."
    if now.off_policy >= OFF_POLICY:
        yield f"{now.off_policy * 100:.0f} % of the tokens were sampled before the last checkpoint (off-policy)."
    if now.surprise is not None and now.surprise < CERTAIN:
        yield f"Entropy has collapsed: a sampled token has {now.surprise:.3f} nats, so attempts hardly differ."
    if before is not None and before.length and now.length >= GROWTH * before.length:
        yield f"Episodes have grown from {before.length:.0f} to {now.length:.0f} sampled tokens since the last group."
