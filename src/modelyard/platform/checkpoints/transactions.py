"""The rules of models and checkpoints, as functions of a transaction: they hold on every store."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.identity import Scope
from modelyard.domain.job import Job
from modelyard.domain.models import Checkpoint, Model, Retention, Tombstone, TrajectoryLog
from modelyard.domain.promotion import Promotion
from modelyard.errors import Conflict, NotFound
from modelyard.platform.catalogue.offered_models import refuse_offered
from modelyard.platform.checkpoints.aliases import aliases_of, refuse_aliased
from modelyard.platform.jobs.queue import cancel, first_in_lane, parked_in_lane
from modelyard.platform.listing import BATCH, Cursor
from modelyard.platform.owned import artifacts_of, remove_owned
from modelyard.platform.paging import cursor_at, get_or_none, remove_if_present
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

R = TypeVar("R", bound=Any)

BY_DELETION = "the deletion of its model"


# ---- making ------------------------------------------------------------------------------------------------------


def create(tx: Tx, model: Model, checkpoint_id: str, return_existing: bool) -> Model:
    existing = tx.find(Model, "name", model.entity, model.project, model.name)
    if existing is not None:
        return _agreeing(existing, model, return_existing)
    tx.add(model)
    tx.add(Checkpoint(checkpoint_id, model.id, model.entity, model.project, 0, model.created_at, digest({})))
    return model


def _agreeing(existing: Model, requested: Model, return_existing: bool) -> Model:
    name = f"{existing.entity}/{existing.project}/{existing.name}"
    if existing.base_model != requested.base_model:
        raise Conflict(
            f"model {name} exists with the base model {existing.base_model!r}, not {requested.base_model!r}; "
            "choose another name, or delete the model first"
        )
    if not return_existing:
        raise Conflict(
            f"model {name} exists already with the base model {existing.base_model!r} that was requested; "
            "set return_existing to use it, or choose another name"
        )
    return existing


# ---- deleting ----------------------------------------------------------------------------------------------------


@attrs.frozen
class DeletedPart:
    jobs: Sequence[Job] = ()
    checkpoints: int = 0
    files: Sequence[str] = ()
    all: bool = False


def delete_some(tx: Tx, runtime: Runtime, model: Model, event_ids: Sequence[str], now: datetime) -> DeletedPart:
    """End the jobs of a model, as many as there are ids for their events; and delete it when none is left.

    Raises `Conflict` where an alias points to one of its checkpoints, a part keeps one, or the catalogue offers it.
    """
    refuse_offered(tx, model)
    refuse_aliased(tx, model)
    _refuse_kept(runtime.kept(tx, model))
    jobs: list[Job] = []
    for event_id in event_ids:
        job = first_in_lane(tx, model.id) or parked_in_lane(tx, model.id)
        if job is None:
            return _delete_rest(tx, runtime, model, jobs)
        jobs.append(cancel(tx, runtime.job_types, job, event_id, BY_DELETION, now))
    return DeletedPart(jobs)


def _delete_rest(tx: Tx, runtime: Runtime, model: Model, jobs: Sequence[Job]) -> DeletedPart:
    """Delete a model that has no jobs any more: its logs first, some at a time, then all the rest at once."""
    logs = tx.page(TrajectoryLog, "by_model", model.id, limit=BATCH)
    for log in logs:
        tx.remove(TrajectoryLog, log.id)
    files = [*artifacts_of(*logs)]
    if len(logs) == BATCH:
        return DeletedPart(jobs, files=files)
    checkpoints = _remove_all(tx, Checkpoint, "by_model", model.id)
    for owner in (model, *checkpoints):
        remove_owned(tx, runtime.records, owner)
    _remove_all(tx, Tombstone, "by_parent", model.id)
    _remove_all(tx, Promotion, "by_model", model.id)
    remove_if_present(tx, Retention, model.id)
    tx.remove(Model, model.id)
    tx.add(Tombstone(model.id, model.entity, model.project, "", 0, model.created_at, model.seq))
    return DeletedPart(jobs, len(checkpoints), [*files, *artifacts_of(*checkpoints)], all=True)


def _remove_all(tx: Tx, cls: type[R], index: str, *where: object) -> list[R]:
    removed: list[R] = []
    while found := tx.page(cls, index, *where, limit=BATCH):
        for record in found:
            tx.remove(cls, record.id)
        removed += found
    return removed


def delete_steps(tx: Tx, runtime: Runtime, model: Model, steps: Sequence[int]) -> Sequence[Checkpoint]:
    """Delete the checkpoints of these steps, and answer those that there were.

    Raises `Conflict` if one is in use, aliased, pinned, kept by a part or offered by the catalogue.
    """
    found = [tx.find(Checkpoint, "step", model.id, step) for step in steps]
    checkpoints = [checkpoint for checkpoint in found if checkpoint is not None]
    _refuse_used(tx, model, checkpoints)
    _refuse_kept({step: why for step, why in runtime.kept(tx, model).items() if step in steps})
    refuse_offered(tx, model, lambda named: named.step in steps)
    for checkpoint in checkpoints:
        delete_checkpoint(tx, runtime, checkpoint)
    return checkpoints


def delete_checkpoint(tx: Tx, runtime: Runtime, checkpoint: Checkpoint) -> None:
    """Remove a checkpoint and leave its place in listings."""
    tx.remove(Checkpoint, checkpoint.id)
    remove_owned(tx, runtime.records, checkpoint)
    place = (checkpoint.entity, checkpoint.project, checkpoint.model_id, checkpoint.step, checkpoint.created_at)
    tx.add(Tombstone(checkpoint.id, *place))


def in_use(snapshot: Snapshot, model: Model) -> Mapping[str, Job]:
    job = first_in_lane(snapshot, model.id)
    names = ("parent_id", "reference_id")
    return {} if job is None else {job.result[name]: job for name in names if job.result.get(name) is not None}


def _refuse_used(tx: Tx, model: Model, checkpoints: Iterable[Checkpoint]) -> None:
    used, aliases = in_use(tx, model), {one.step: one.name for one in aliases_of(tx, model.id)}
    for checkpoint in checkpoints:
        job, step = used.get(checkpoint.id), checkpoint.step
        if job is not None:
            raise Conflict(f"job {job.id} is training from step {step}; wait for it to end, or cancel it")
        if step in aliases:
            raise Conflict(f"{aliases[step]!r} points to step {step}; promote another step, or remove the alias")
        if checkpoint.pinned:
            raise Conflict(f"step {step} is pinned; unpin it first")


def _refuse_kept(kept: Mapping[int, str]) -> None:
    for step, why in kept.items():
        if why:
            raise Conflict(f"step {step} is kept: {why}")


# ---- where a listing continues -----------------------------------------------------------------------------------


def model_place(index: str, scope: Scope, entity: str | None, model_id: str, snapshot: Snapshot) -> Cursor:
    model = get_or_none(snapshot, Model, model_id) or get_or_none(snapshot, Tombstone, model_id)
    if model is None or entity not in (None, model.entity) or not scope.covers(model.entity, model.project):
        raise NotFound("Model", model_id)
    if isinstance(model, Tombstone) and model.parent:
        raise NotFound("Model", model_id)
    return cursor_at(Model, index, model)


def checkpoint_place(model_id: str, checkpoint_id: str, snapshot: Snapshot) -> Cursor:
    checkpoint = get_or_none(snapshot, Checkpoint, checkpoint_id) or get_or_none(snapshot, Tombstone, checkpoint_id)
    parent = checkpoint.parent if isinstance(checkpoint, Tombstone) else checkpoint and checkpoint.model_id
    if parent != model_id:
        raise NotFound("Checkpoint", checkpoint_id)
    return cursor_at(Checkpoint, "by_model", checkpoint)


def log_place(index: str, model_id: str, log_id: str, snapshot: Snapshot) -> Cursor:
    log = get_or_none(snapshot, TrajectoryLog, log_id)
    if log is None or log.model_id != model_id:
        raise NotFound("Log", log_id)
    return cursor_at(TrajectoryLog, index, log)
