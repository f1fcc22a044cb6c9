"""A summary of what an RL job learns from: its best and its worst trajectories, and the groups that teach nothing."""

from collections.abc import Iterable, Mapping
from heapq import nlargest, nsmallest
from typing import Any

import attrs

from modelyard.domain.job import Job, JobKind
from modelyard.domain.training import SampledChoice, Trajectory, TrajectoryGroup
from modelyard.errors import ArtifactMissing, InvalidInput
from modelyard.formats.training_data import read_groups
from modelyard.platform.runtime import Runtime

SHOWN = 3
MOST_GROUPS = 50
LONGEST = 600
KEPT = "trajectories"

LOOP = "loop_id"
ADVANCES = "advances"
"""The members of a spec by which a job of equal rewards makes a step all the same, since its caller counts rounds."""


@attrs.frozen
class ShownTrajectory:
    """One trajectory in short: its group, counted from 0, its reward, what came before its last answer, and that."""

    group: int
    reward: float
    asked: str
    answered: str
    logs: tuple[str, ...] = ()


@attrs.frozen
class TrajectorySummary:
    """The best and the worst trajectories of a job, by reward, at most one of each group, and how many groups it has. A
    group with equal rewards teaches nothing: there are `zero_variance` such groups, and `zero_variance_groups` are the
    first of them."""

    groups: int
    zero_variance: int
    zero_variance_groups: tuple[int, ...]
    best: tuple[ShownTrajectory, ...]
    worst: tuple[ShownTrajectory, ...]

    @classmethod
    def of(cls, job: Job) -> "TrajectorySummary | None":
        """Return the stored summary; None for a job that has not begun, or does not learn from trajectories."""
        kept = job.result.get(KEPT)
        if kept is None:
            return None
        best, worst = (tuple(_shown(one) for one in kept[name]) for name in ("best", "worst"))
        return cls(kept["groups"], kept["zero_variance"], tuple(kept["zero_variance_groups"]), best, worst)


def _shown(kept: Mapping[str, Any]) -> ShownTrajectory:
    return ShownTrajectory(**{**kept, "logs": tuple(kept["logs"])})


def to_keep(runtime: Runtime, job: Job) -> Mapping[str, Any]:
    """Return what is added to the result of a job that begins; nothing where that was done, or there is nothing."""
    if job.kind != JobKind.RL or KEPT in job.result:
        return {}
    try:
        with runtime.artifacts.open(job.spec["artifact"], job.spec["digest"]) as file:
            return {KEPT: attrs.asdict(summarize(read_groups(file)))}
    except (ArtifactMissing, InvalidInput):  # as the trainer will report
        return {}


def nothing_trained(runtime: Runtime, job: Job) -> str:
    """Return why a job on trajectories made no step; "" for any other job, if rewards differ, or if it advances without
    one, as a round of a loop does."""
    if job.kind != JobKind.RL:
        return ""
    groups = attempts = 0
    failed: list[str] = []
    with runtime.artifacts.open(job.spec["artifact"], job.spec["digest"]) as file:
        for group in read_groups(file):
            if len({one.reward for one in group.trajectories}) > 1:
                return ""
            groups += 1
            attempts += len(group.trajectories)
            failed += [f"{one.type}: {one.message}" for one in group.exceptions]
    if (attempts or not failed) and (ADVANCES in job.spec or LOOP in job.spec):
        return ""
    lost = f"{len(failed)} of {attempts + len(failed)} attempts failed, the first with {failed[0]}" if failed else ""
    if not attempts:
        return f"nothing was trained: {lost or 'there is no attempt'}; correct the rollout, then start a new job"
    return (
        f"nothing was trained: in none of {groups} groups do the rewards differ{lost and '; '}{lost}; an attempt is "
        "measured against the others of its group: gather several, with a reward that tells them apart"
    )


def summarize(groups: Iterable[TrajectoryGroup]) -> TrajectorySummary:
    count = flat = 0
    named: list[int] = []
    best: list[ShownTrajectory] = []
    worst: list[ShownTrajectory] = []
    for count, group in enumerate(groups, 1):
        rewards = {one.reward for one in group.trajectories}
        if len(rewards) == 1:
            flat += 1
            named += [count - 1] if len(named) < MOST_GROUPS else []
        if rewards:
            high, low = (_short(count - 1, end(group.trajectories, key=_reward)) for end in (max, min))
            best, worst = nlargest(SHOWN, [*best, high], key=_reward), nsmallest(SHOWN, [*worst, low], key=_reward)
    return TrajectorySummary(count, flat, tuple(named), tuple(best), tuple(worst))


def _reward(one: Trajectory | ShownTrajectory) -> float:
    return one.reward


def _short(group: int, one: Trajectory) -> ShownTrajectory:
    items = one.histories[0].items if one.histories else ()
    answers = [at for at, item in enumerate(items) if isinstance(item, SampledChoice)]
    turns = [item.message if isinstance(item, SampledChoice) else item for item in items]
    asked = turns[: answers[-1]] if answers else turns
    words = (
        "\n".join(f"{turn.role}: {turn.text}" for turn in asked)
        if len(asked) > 1
        else "".join(turn.text for turn in asked)
    )
    answered = turns[answers[-1]].text[:LONGEST] if answers else ""
    logs = tuple(line[:LONGEST] for line in one.logs[:SHOWN])
    return ShownTrajectory(group, one.reward, words[-LONGEST:], answered, logs)
