"""Episodes as the trajectories of an RL job."""

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

import attrs

from modelyard.domain.completion import Message
from modelyard.domain.training import History, RolloutError, SampledChoice, Trajectory, TrajectoryGroup
from modelyard.parts.episodes.records import Episode, EpisodeGroup, EpisodeState, EpisodeTurn
from modelyard.parts.episodes.tree import TreeTurn, sequences_of, tree_of
from modelyard.platform.paging import iter_index
from modelyard.protocols import Snapshot


def history_of(sequence: Sequence[TreeTurn]) -> History:
    """Return a sequence as a history: what was sampled is trained, everything between is read."""
    first = sequence[0]
    items: list[Message | SampledChoice] = [*first.messages, first.choice]
    for before, one in pairwise(sequence):
        items += [*one.messages[len(before.said) :], one.choice]
    return History(tuple(items), first.tools)


def fresh(turns: Sequence[TreeTurn], oldest: int) -> list[TreeTurn]:
    """Return the turns, of which those that were sampled before the step `oldest` are not trained."""
    return [_judged(one, oldest) for one in turns]


def _judged(one: TreeTurn, oldest: int) -> TreeTurn:
    if one.untrained or one.turn.step is None or one.turn.step >= oldest:
        return one
    return attrs.evolve(one, untrained=f"{STALE} at step {one.turn.step}, and the oldest that is trained is {oldest}")


STALE = "it was sampled too long ago:"


def stale_tokens(turns: Sequence[TreeTurn]) -> int:
    """Return how many sampled tokens are left out because they are too old."""
    return sum(len(one.ids) for one in turns if one.untrained.startswith(STALE))


def trajectory_of_episode(episode: Episode, turns: Sequence[TreeTurn]) -> Trajectory:
    """Return an episode as one trajectory: all of its sequences share its reward, and its weight."""
    sequences = sequences_of(turns)
    steps = [one.turn.step for sequence in sequences for one in sequence if one.turn.step is not None]
    metrics = {
        "turns": len(turns),
        "sequences": len(sequences),
        "untrained_turns": sum(bool(one.untrained) for one in turns),
        "sampled_tokens": sum(len(one.ids) for sequence in sequences for one in sequence),
    }
    return Trajectory(
        tuple(map(history_of, sequences)) or (History(()),),
        0.0 if episode.reward is None else episode.reward,
        metrics,
        {"episode": episode.id, "place": episode.place},
        initial_policy_version=min(steps, default=None),
        final_policy_version=max(steps, default=None),
    )


def _trained(episode: Episode, turns: Sequence[TreeTurn], oldest: int | None) -> Trajectory:
    if oldest is None:
        return trajectory_of_episode(episode, turns)
    turns = fresh(turns, oldest)
    found = trajectory_of_episode(episode, turns)
    return attrs.evolve(found, metrics={**found.metrics, "stale_tokens": stale_tokens(turns)})


def turns_of(snapshot: Snapshot, episode: Episode, group: EpisodeGroup) -> list[TreeTurn]:
    """Return the tree of an episode's turns."""
    return tree_of(list(iter_index(snapshot, EpisodeTurn, "by_episode", episode.id)), group.model_id)


def episodes_of(snapshot: Snapshot, group_id: str) -> list[Episode]:
    """Return the episodes of a group, in their places."""
    return sorted(iter_index(snapshot, Episode, "by_group", group_id), key=lambda one: one.place)


def trajectory_group(
    snapshot: Snapshot, group: EpisodeGroup, now: datetime, oldest: int | None = None
) -> TrajectoryGroup:
    """Return a group as it is trained: its rewarded episodes, and why the others failed; one that was made in the place
    of another is where that would be. What was sampled before the step `oldest` is left out, and counted."""
    trained, failed = list[Trajectory](), list[RolloutError]()
    for episode in sorted(episodes_of(snapshot, group.id), key=lambda one: one.place % group.size):
        if episode.reward is None:
            state = episode.state(group, now)
            kind = "EpisodeFailed" if state is EpisodeState.FAILED and episode.failure else "NoReward"
            failed.append(RolloutError(kind, f"episode {episode.place}: {episode.why_failed(group)}"))
        else:
            trained.append(_trained(episode, turns_of(snapshot, episode, group), oldest))
    return TrajectoryGroup(tuple(trained), tuple(failed), {"episode_group": group.id, "name": group.name})
