"""What a loop has come to, as far as its seed decides it."""

from collections.abc import Sequence
from typing import Any

import attrs

from modelyard import Platform
from modelyard.parts.episodes.records import Episode


@attrs.frozen
class Outcome:
    """The turns and the reward of each attempt that has one, the metrics of the rounds, the digests of checkpoints."""

    attempts: Sequence[Any]
    metrics: Sequence[Any]
    checkpoints: Sequence[str]


def outcome(platform: Platform, job: Any, left_out: frozenset[str] = frozenset()) -> Outcome:
    """Return what a loop of the only model has come to, without the metrics that are `left_out`."""
    attempts = [
        (group.name, one.place % group.size, one.reward, said(platform, one))
        for group in sorted(platform.episodes.list(), key=lambda group: group.name)
        for one in sorted(platform.episodes.episodes(group.id), key=lambda one: one.place % group.size)
        if one.reward is not None
    ]
    rows = [
        (row.step, {name: value for name, value in row.values.items() if name not in left_out}) for row in job.metrics()
    ]
    (model,) = platform.models.list()
    return Outcome(attempts, rows, [one.digest for one in platform.models.checkpoints(model)])


def said(platform: Platform, episode: Episode) -> Sequence[Any]:
    """Return what an attempt was asked and answered, whatever was booked first."""
    turns = platform.episodes.episode(episode.id).turns()
    return sorted((one.prompt_ids, one.ids, one.choice.message.text) for one in turns)
