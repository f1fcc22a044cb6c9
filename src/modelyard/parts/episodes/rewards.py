"""Rewards, and what ends a group, as functions of a transaction."""

from datetime import datetime

import attrs

from modelyard.domain.identity import ApiKey, Principal
from modelyard.domain.job import Job, JobStatus
from modelyard.errors import Conflict, Forbidden, InvalidInput, NotFound
from modelyard.formats.trajectories import MAX_REWARD
from modelyard.parts.episodes.records import Episode, EpisodeGroup
from modelyard.parts.episodes.trajectories import episodes_of
from modelyard.platform.paging import get_or_none
from modelyard.protocols import Snapshot, Tx

MAX_FAILURE = 1000


def checked_reward(value: object) -> float:
    """Return a reward as a number: true and false are 1 and 0. Raises `InvalidInput`."""
    if not isinstance(value, int | float) or not abs(value) <= MAX_REWARD:
        raise InvalidInput.at(
            "reward", msg=f"must be a number from {-MAX_REWARD:g} to {MAX_REWARD:g}, or true or false"
        )
    return float(value)


def checked_failure(reason: str) -> str:
    """Return why an attempt failed. Raises `InvalidInput` if no store can keep it."""
    fits = isinstance(reason, str) and reason.strip() and len(reason) <= MAX_FAILURE and "\0" not in reason
    if not fits or reason.encode("utf-8", "replace").decode() != reason:
        raise InvalidInput.at("failure", msg=f"must be a text of 1 to {MAX_FAILURE} characters, without NUL")
    return reason


# ---- what there is -----------------------------------------------------------------------------------------------


def found_group(snapshot: Snapshot, principal: Principal, group_id: str) -> EpisodeGroup:
    """Return a group that the principal may see. Raises `NotFound`."""
    group = get_or_none(snapshot, EpisodeGroup, group_id)
    if group is None or not principal.scope.covers(group.entity, group.project):
        raise NotFound("Episode group", group_id)
    return group


def found_episode(snapshot: Snapshot, principal: Principal, episode_id: str) -> Episode:
    """Return an episode that the principal may see; the key of an episode sees its own alone. Raises `NotFound`."""
    episode = get_or_none(snapshot, Episode, episode_id)
    own = snapshot.find(Episode, "by_key", principal.key_id) if principal.key_id else None
    seen = episode is not None and principal.scope.covers(episode.entity, episode.project)
    if episode is None or not seen or (own is not None and own.id != episode.id):
        raise NotFound("Episode", episode_id)
    return episode


def require_owner(snapshot: Snapshot, principal: Principal) -> None:
    """Raise `Forbidden` for the key of an episode, which may reward its own episode, and no more."""
    if principal.key_id and snapshot.find(Episode, "by_key", principal.key_id) is not None:
        raise Forbidden("the key of an episode may call models and reward its episode; use another key for this")


def training_job(snapshot: Snapshot, group: EpisodeGroup) -> Job | None:
    """Return the job that trains a group. One that has failed, or was cancelled or deleted, has not."""
    job = get_or_none(snapshot, Job, group.job_id) if group.job_id else None
    return None if job is None or job.status in (JobStatus.FAILED, JobStatus.CANCELLED) else job


def as_it_is(snapshot: Snapshot, group: EpisodeGroup) -> EpisodeGroup:
    """Return a group with the job that trains it now."""
    return group if training_job(snapshot, group) is not None else attrs.evolve(group, job_id="")


# ---- what is done ------------------------------------------------------------------------------------------------


def set_reward(tx: Tx, episode: Episode, reward: float | None, failure: str, now: datetime) -> Episode:
    """Give an episode a reward, or a failure in its place; the last one counts. Raises `Conflict` once its group is
    trained, and for a first one after the deadline."""
    group = tx.get(EpisodeGroup, episode.group_id)
    job = training_job(tx, group)
    if job is not None:
        raise Conflict(f"the group of this episode is trained by job {job.id}; its rewards are those of then")
    if now >= group.deadline and episode.reward is None:
        raise Conflict("the deadline of this episode is over, so it has failed; give groups a longer one")
    episode = attrs.evolve(episode, reward=reward, failure=failure, rewarded_at=now)
    tx.replace(episode)
    return episode


def close_group(tx: Tx, group: EpisodeGroup, now: datetime) -> EpisodeGroup:
    """End the keys of a group. Idempotent."""
    if group.closed_at is not None:
        return group
    group = attrs.evolve(group, closed_at=now)
    tx.replace(group)
    for episode in episodes_of(tx, group.id):
        end_key(tx, episode, now)
    return group


def end_key(tx: Tx, episode: Episode, now: datetime) -> None:
    """End the key of an episode. Idempotent."""
    key = get_or_none(tx, ApiKey, episode.key_id)
    if key is not None and key.revoked_at is None:
        tx.replace(attrs.evolve(key, revoked_at=max(now, key.created_at)))
