"""Weights that runs have saved, found by their paths: functions of a transaction."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.record import FOR_EVER
from modelyard.errors import Conflict, InvalidInput, NotFound
from modelyard.parts.tinker.records import SCHEME, RunWeights, TrainingRun, WeightsKind
from modelyard.platform.checkpoints.transactions import delete_steps
from modelyard.platform.owned import artifacts_of
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.job_files import Files
from modelyard.protocols import Snapshot, Tx

NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")

LONGEST = 10 * 365 * 24 * 3600
"""The longest time, in seconds, until weights expire: ten years."""

_REMOVED_AT_ONCE = 4


def check_weights_name(name: str) -> str:
    if not NAME.fullmatch(name) or name in (".", ".."):
        raise InvalidInput.at("body", "path", msg="must be 1 to 128 letters, digits, dots, underscores or hyphens")
    return name


def weights_id(path: str) -> str:
    parts = path.removeprefix(SCHEME).split("/")
    if not path.startswith(SCHEME) or len(parts) != 3 or parts[1] not in [*WeightsKind] or not all(parts):
        example = f"{SCHEME}RUN/{WeightsKind.STATE}/NAME or {SCHEME}RUN/{WeightsKind.SAMPLER}/NAME"
        raise InvalidInput.at("body", "path", msg=f"must be the path of saved weights, {example}")
    return "/".join(parts)


def found_weights(snapshot: Snapshot, principal: Principal, id: str, now: datetime) -> RunWeights:
    weights = get_or_none(snapshot, RunWeights, id)
    if weights is None or weights.expires_at <= now or not principal.scope.covers(weights.entity, weights.project):
        raise NotFound("Checkpoint", SCHEME + id)
    return weights


def expiry(now: datetime, seconds: int | None) -> datetime:
    """Return when weights expire; None stands for never."""
    return FOR_EVER if seconds is None else now + timedelta(seconds=seconds)


def files_to_load(snapshot: Snapshot, weights: RunWeights, optimizer: bool) -> Files:
    """Return the files to load weights from. Raises `InvalidInput` if there is no optimizer's state."""
    if optimizer and not weights.state:
        msg = f"{weights.path} has no optimizer's state: load it without, or save the state of a run"
        raise InvalidInput.at("body", "path", msg=msg)
    checkpoint = get_or_none(snapshot, Checkpoint, weights.checkpoint_id)
    if checkpoint is None:
        raise NotFound("Checkpoint", weights.path, "its checkpoint was deleted")
    return {**checkpoint.files, **weights.state} if optimizer else checkpoint.files


# ---- saving ------------------------------------------------------------------------------------------------------


@attrs.frozen
class NewWeights:
    """Weights to save: their name, the files of their checkpoint, and the further files of a state."""

    kind: WeightsKind
    name: str
    checkpoint_id: str
    files: Files
    state: Files
    metrics: Mapping[str, float]
    expires_at: datetime = FOR_EVER
    metadata: Mapping[str, str] = attrs.field(factory=dict)
    overwrite: bool = False


def save_weights(
    tx: Tx, runtime: Runtime, run: TrainingRun, job: Job, new: NewWeights, now: datetime
) -> tuple[RunWeights, list[str]]:
    """Add a checkpoint of the run's model under a path. Returns it, and the artifacts that it has replaced.

    Raises `Conflict` if the path is taken, `NotFound` if the model was deleted.
    """
    model = get_or_none(tx, Model, run.model_id)
    if model is None:
        raise NotFound("Model", run.model_id, "it was deleted")
    named, gone = f"{run.id}/{new.kind}/{new.name}", list[str]()
    before = get_or_none(tx, RunWeights, named)
    if before is not None:
        if not new.overwrite and before.expires_at > now:
            raise Conflict(f"{before.path} exists already; choose another name, or save it with overwrite=True")
        gone = remove_weights(tx, runtime, before)
    parents = tx.page(Checkpoint, "by_model", model.id, limit=1, descending=True)
    checkpoint = Checkpoint(
        new.checkpoint_id,
        model.id,
        model.entity,
        model.project,
        model.last_step + 1,
        now,
        digest({name: file["digest"] for name, file in new.files.items()}),
        new.metrics,
        new.files,
        parent_id=parents[0].id if parents else None,
        job_id=job.id,
    )
    tx.add(checkpoint)
    tx.replace(attrs.evolve(model, last_step=checkpoint.step))
    size = sum(file["size"] for file in (*new.files.values(), *new.state.values()))
    place = (run.id, new.kind, run.entity, run.project, checkpoint.id, checkpoint.step, now, size, new.expires_at)
    weights = RunWeights(named, *place, new.state, new.metadata)
    tx.add(weights)
    return weights, gone


# ---- removing ----------------------------------------------------------------------------------------------------


def remove_weights(tx: Tx, runtime: Runtime, weights: RunWeights) -> list[str]:
    """Remove weights, and return the artifacts that only they had.

    Their checkpoint stays if something else needs it: an alias, a pin, an entry of the catalogue, another job.
    """
    tx.remove(RunWeights, weights.id)
    names = [*artifacts_of(weights)]
    model = get_or_none(tx, Model, _model_id_of(tx, weights))
    if model is not None:
        with suppress(Conflict):
            names += artifacts_of(*delete_steps(tx, runtime, model, [weights.step]))
    return names


def _model_id_of(snapshot: Snapshot, weights: RunWeights) -> str:
    checkpoint = get_or_none(snapshot, Checkpoint, weights.checkpoint_id)
    return "" if checkpoint is None else checkpoint.model_id


def remove_expired(tx: Tx, runtime: Runtime, entity: str, now: datetime) -> Sequence[str]:
    """Remove weights of an entity that have expired, some at a time. Returns their artifacts."""
    names: list[str] = []
    for old in tx.page(RunWeights, "by_expiry", entity, limit=_REMOVED_AT_ONCE):
        if old.expires_at > now:
            break
        names += remove_weights(tx, runtime, old)
    return names
