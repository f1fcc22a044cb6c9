"""Train a model on groups of episodes: claimed in the transaction that queues the job, so each is trained once."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.job import Job, JobKind
from modelyard.domain.models import Model
from modelyard.domain.training import TrajectoryGroup
from modelyard.errors import Conflict, InvalidInput
from modelyard.parts.episodes.records import Episode, EpisodeGroup, EpisodeState, EpisodeTurn
from modelyard.parts.episodes.rewards import close_group, found_group, training_job
from modelyard.parts.episodes.trajectories import episodes_of, trajectory_group
from modelyard.platform.artifacts import remove_unless_recorded
from modelyard.platform.jobs.queue import announce
from modelyard.platform.training.data import check_rows, own
from modelyard.platform.training.handle import JobHandle
from modelyard.platform.training.methods import resolved
from modelyard.platform.training.service import Training, check_options
from modelyard.platform.training.submission import add_job, new_job
from modelyard.protocols import Snapshot, Tx

GROUPS = "episode_groups"
"""The member of a job's spec that lists the groups that it trains."""

Read = tuple[tuple[Episode, int], ...]
"""The episodes of a group as they were read, each with the number of its turns."""


class GroupChanged(Exception):
    """A group has changed since it was read."""


def submit_groups(
    training: Training,
    model: Model | str,
    data: Sequence[Any],
    options: Mapping[str, Any],
    idempotency_key: str | None,
    needs: Any,
) -> JobHandle:
    """Queue an RL job on groups of episodes, and other groups among them. The same groups requested again are the same
    job. Raises `Conflict` for a group that is trained by another job, and for one that is open and not rewarded."""
    runtime, principal = training._runtime, training._principal
    method, target = training.method(JobKind.RL, model)
    check_options(method.kind, method.options, options, method.config)
    ids = [one.id for one in data if getattr(one, "is_episode_group", False)]
    if len(set(ids)) < len(ids):
        raise InvalidInput.at("data", msg="has a group twice; a group is trained once")
    known = runtime.store.read(lambda snapshot: _known(snapshot, ids))
    if known is not None:
        return JobHandle(runtime, principal, known.id)
    request = training._request(method, target, resolved(method.config, options), idempotency_key, needs)
    while True:
        read = runtime.store.read(lambda snapshot: _read(snapshot, training, ids, request.model))
        rows = [read[one.id][1] if getattr(one, "is_episode_group", False) else one for one in data]
        stored, count = training._keep(training._rows(request), rows)
        with remove_unless_recorded(runtime.artifacts, stored.name):
            check_rows(request.config, count)
            spec = {**own(stored), "rows": count, GROUPS: ids}
            job = new_job(runtime, principal, request, spec, digest([GROUPS, request.model.id, ids]))
            try:
                made = runtime.store.transact(lambda tx: _claim(tx, job, read, runtime.settings.max_queued_jobs))  # noqa: B023
            except GroupChanged:
                runtime.artifacts.remove(stored.name)
                continue
        if made.id == job.id:
            announce(runtime, made)
        else:
            runtime.artifacts.remove(stored.name)
        return JobHandle(runtime, principal, made.id)


def _known(snapshot: Snapshot, ids: Sequence[str]) -> Job | None:
    """Return the job that trains these groups, and no others."""
    groups = [snapshot.find(EpisodeGroup, "key", one) for one in ids]
    jobs = [None if group is None else training_job(snapshot, group) for group in groups]
    job = jobs[0] if jobs else None
    same = job is not None and all(one is not None and one.id == job.id for one in jobs)
    return job if job is not None and same and sorted(job.spec.get(GROUPS, ())) == sorted(ids) else None


def _read(
    snapshot: Snapshot, training: Training, ids: Sequence[str], model: Model
) -> dict[str, tuple[Read, TrajectoryGroup]]:
    """Read groups as they are trained, and what says whether they have changed since."""
    now, found = training._runtime.clock.now(), {}
    for one in ids:
        group = found_group(snapshot, training._principal, one)
        if group.model_id != model.id:
            raise InvalidInput.at(
                "model", msg=f"group {group.name!r} was sampled to train {group.model}; name that model"
            )
        _require_free(snapshot, group)
        open_ = [it.place for it in episodes_of(snapshot, one) if it.state(group, now) is EpisodeState.OPEN]
        if open_ and not group.ended(now):
            raise Conflict(
                f"group {group.name!r} is open, and has no reward for its episodes {', '.join(map(str, open_))}: reward"
                " them, or close the group, and they count as failed"
            )
        found[one] = as_read(snapshot, one), trajectory_group(snapshot, group, now)
    return found


def as_read(snapshot: Snapshot, group_id: str) -> Read:
    """Return the episodes of a group, each with the number of its turns."""
    return tuple((one, snapshot.count(EpisodeTurn, "by_episode", one.id)) for one in episodes_of(snapshot, group_id))


def _require_free(snapshot: Snapshot, group: EpisodeGroup) -> None:
    job = training_job(snapshot, group)
    if job is not None:
        raise Conflict(f"group {group.name!r} is trained by job {job.id}, and a group is trained once")


def _claim(tx: Tx, job: Job, read: Mapping[str, tuple[Read, TrajectoryGroup]], most: int) -> Job:
    """Put the job into the queue, and its name on the groups, which are closed. An equal request's job is returned."""
    made = add_job(tx, job, most)
    if made.id == job.id:
        claim_groups(tx, job, {id_: episodes for id_, (episodes, _) in read.items()})
    return made


def claim_groups(tx: Tx, job: Job, read: Mapping[str, Read]) -> None:
    """Put the name of a job on groups, which are closed. Raises `GroupChanged` if one has changed since it was read,
    `Conflict` if another job trains it."""
    for id_, episodes in read.items():
        group = tx.get(EpisodeGroup, id_)
        _require_free(tx, group)
        if as_read(tx, id_) != episodes:
            raise GroupChanged
        tx.replace(attrs.evolve(close_group(tx, group, job.created_at), job_id=job.id))
