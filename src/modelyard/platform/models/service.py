"""Trainable models, their checkpoints, and what is logged to them (specification 4.3)."""

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, ClassVar

import attrs

from modelyard import report
from modelyard.domain.identity import check_name
from modelyard.domain.models import Checkpoint, Model, Retention, TrajectoryLog
from modelyard.domain.promotion import Alias, Change, CheckpointLineage, NotWorse, Promotion
from modelyard.domain.record import EMPTY, Order
from modelyard.domain.training import TrajectoryGroup
from modelyard.errors import InvalidInput, NotFound, nearest
from modelyard.platform.catalogue.offered_models import entries_answered
from modelyard.platform.checkpoints.aliases import remove_alias, roll_back
from modelyard.platform.checkpoints.lookup import found_checkpoint, named_model
from modelyard.platform.checkpoints.retention import enforce, set_retention
from modelyard.platform.checkpoints.transactions import (
    DeletedPart,
    checkpoint_place,
    create,
    delete_some,
    delete_steps,
    log_place,
    model_place,
)
from modelyard.platform.extended import Extended
from modelyard.platform.jobs.queue import announce
from modelyard.platform.lineage import checkpoint_lineage
from modelyard.platform.listing import Listing, accept_all, short_listing
from modelyard.platform.models.promotion import PROD, change_alias, list_aliases, list_promotions, promote_step
from modelyard.platform.models.trajectory_logs import read_log, store_log
from modelyard.platform.owned import artifacts_of
from modelyard.platform.paging import get_or_none, index_listing, listed_entity, listed_index, named_place
from modelyard.platform.training.data import GroupData
from modelyard.protocols import Snapshot, StoredArtifact, Tx

if TYPE_CHECKING:
    from modelyard.parts.resources import ModelsMembers
else:
    ModelsMembers = object

MAX_STEPS = 1000
JOBS_AT_ONCE = 100
KNOWN_SHOWN = 20


@attrs.frozen
class DeletedModel:
    """The counts of a deletion of a model."""

    model_id: str
    deleted_checkpoints: int
    deleted_run: bool


@attrs.frozen
class DeletedCheckpoints:
    """How many checkpoints were deleted, and which steps did not exist."""

    deleted_count: int
    not_found_steps: tuple[int, ...]


class Models(Extended, ModelsMembers):
    """The trainable models that a principal may see.

    Methods take a model by value, by id, or by name: "project/name" or "entity/project/name".

    model = platform.models.create("support", project="bots", base_model="tabular-mini")
    """

    AREA: ClassVar[str] = "models."

    # ---- models

    def trainable(self) -> Listing[str]:
        """List the ids of the models that training can start from: they are served, and a trainer trains them."""
        return short_listing(self._trainable, str, None)

    def _trainable(self) -> Sequence[str]:
        trainers = self._runtime.trainers
        served = {entry.id for entry in self._runtime.backend.entries()}
        return sorted(model for model in served if any(trainer.methods(model) for trainer in trainers))

    def create(
        self,
        name: str,
        *,
        base_model: str,
        project: str | None = None,
        entity: str | None = None,
        return_existing: bool = False,
    ) -> Model:
        """Create a model. Its checkpoint of step 0 is the untrained base model. Raises `Conflict` if the name is taken;
        with `return_existing`, the existing model is returned instead if it has the same base model. Raises
        `InvalidInput`, `Forbidden`."""
        entity, project = named_place(self._runtime, self._principal, entity, project)
        name = check_name(name, "name")
        self._check_base(base_model)
        model = Model(self._runtime.ids(), entity, project, name, base_model, self._runtime.clock.now())
        checkpoint_id = self._runtime.ids()
        return self._runtime.store.transact(lambda tx: create(tx, model, checkpoint_id, return_existing))

    def _check_base(self, base_model: str) -> None:
        known = self._trainable()
        if base_model not in known:
            listed = ", ".join(known[:KNOWN_SHOWN]) or "none"
            made = [one.output_modalities for one in self._runtime.backend.entries() if one.id == base_model]
            why = "makes embeddings only" if made == [("embeddings",)] else "no such base model"
            raise InvalidInput.at("base_model", msg=f"{why}; known ones are: {listed}")

    def get(self, model: Model | str) -> Model:
        """Return one model, by id or name. Raises `NotFound`, `Forbidden`."""
        return self._runtime.store.read(lambda snapshot: self._named(snapshot, model))

    def find(self, name: str, *, project: str | None = None, entity: str | None = None) -> Model | None:
        """Find the model of this name. Raises `Forbidden`."""
        entity, project = named_place(self._runtime, self._principal, entity, project)
        return self._runtime.store.read(lambda snapshot: snapshot.find(Model, "name", entity, project, name))

    def list(self, *, project: str | None = None, entity: str | None = None, order: Order = "asc") -> Listing[Model]:
        """List models in the order of their creation: all that the caller may see, or those of an entity or a project.
        Raises `Forbidden`."""
        entity = listed_entity(self._principal, entity, project)
        index, *where = listed_index(entity, project)
        place = partial(model_place, index, self._principal.scope, entity)
        keep = accept_all if self._principal.scope.projects is None else self._sees
        return index_listing(self._runtime, Model, index, *where, place=place, order=order, keep=keep)

    def delete(self, model: Model | str) -> DeletedModel:
        """Delete a model with its checkpoints, logs and files. Its jobs end as cancelled; they and their events stay.
        Safe to call again after a crash. Raises `NotFound`, and `Conflict` while an alias or the catalogue needs it."""
        gone, model_id = DeletedPart(), self.get(model).id
        while not gone.all:
            gone = self._delete_some(model_id)
        return DeletedModel(model_id, gone.checkpoints, deleted_run=False)

    # ---- checkpoints

    def checkpoints(self, model: Model | str, *, order: Order = "asc") -> Listing[Checkpoint]:
        """List the checkpoints of a model by step. Raises `NotFound`."""
        model_id = self.get(model).id
        place = partial(checkpoint_place, model_id)
        return index_listing(self._runtime, Checkpoint, "by_model", model_id, place=place, order=order)

    def checkpoint(self, model: Model | str, step: int) -> Checkpoint:
        """Return the checkpoint of a step. Raises `NotFound`."""
        return self._runtime.store.read(lambda snapshot: found_checkpoint(snapshot, self._named(snapshot, model), step))

    def lineage(self, model: Model | str, step: int) -> CheckpointLineage:
        """Return the job, data, parent and base of a checkpoint, its aliases, and the runs on it. Raises `NotFound`."""
        return self._runtime.store.read(lambda snapshot: self._lineage(snapshot, self._named(snapshot, model), step))

    def plot(self, *models: Model | str) -> "report.Plot":
        """Plot all metrics of all jobs in sequence, a line for each model: to `save`, or to show in a notebook."""
        return report.model_plot(self._runtime, [self.get(model) for model in models])

    def save(self, model: Model | str, path: str | os.PathLike[str]) -> None:
        """Write a page of a model and its checkpoints, an .html file of its own. Raises `NotFound`, `InvalidInput`."""
        report.save_model(self._runtime, self.get(model), path)

    def delete_checkpoints(self, model: Model | str, steps: Iterable[int]) -> DeletedCheckpoints:
        """Delete the checkpoints of these steps, all or none; deleting again changes nothing. Raises `Conflict` when a
        running job needs one of them, or one is aliased, pinned, kept by a part or offered, `NotFound`,
        `InvalidInput`."""
        wanted = tuple(dict.fromkeys(steps))
        if len(wanted) > MAX_STEPS:
            raise InvalidInput.at("steps", msg=f"name at most {MAX_STEPS} steps at a time", type="too_long")
        gone = self._runtime.store.transact(lambda tx: delete_steps(tx, self._runtime, self._named(tx, model), wanted))
        self._remove_files(artifacts_of(*gone))
        deleted = {checkpoint.step for checkpoint in gone}
        return DeletedCheckpoints(len(gone), tuple(step for step in wanted if step not in deleted))

    def open_file(self, model: Model | str, step: int, name: str) -> BinaryIO:
        """Open a file of a checkpoint for reading. Raises `NotFound`, `ArtifactMissing`."""
        files = self.checkpoint(model, step).files
        if name not in files:
            raise NotFound("File", name)
        return self._runtime.artifacts.open(files[name]["artifact"])

    # ---- aliases

    def promote(
        self, model: Model | str, step: int, alias: str = PROD, *, require: NotWorse | None = None
    ) -> Promotion:
        """Point an alias at the checkpoint of a step, which is then served as `<entity>/<project>/<name>:<alias>`.

        The change is recorded: who made it, when, from which step, and the evidence that met the requirement. Repeating
        it changes nothing. Raises `NotFound`, `InvalidInput`, `PromotionRefused`, and `Conflict` if the alias was moved
        meanwhile.
        """
        return promote_step(self._runtime, self._principal, model, step, alias, require)

    def rollback(self, model: Model | str, alias: str = PROD) -> Promotion:
        """Point an alias back to its target before the last promotion; each further call goes back one more. The change
        is added to the history. Raises `NotFound`, and `Conflict` if it pointed to nothing before."""
        return change_alias(self._runtime, self._principal, model, alias, Change.ROLLED_BACK, roll_back)

    def remove_alias(self, model: Model | str, alias: str) -> Promotion:
        """Remove an alias; its history stays. Raises `NotFound`, and `Conflict` if the catalogue offers it."""
        return change_alias(self._runtime, self._principal, model, alias, Change.REMOVED, remove_alias)

    def aliases(self, model: Model | str) -> Listing[Alias]:
        """List the aliases of a model by name, with the steps that they point to. Raises `NotFound`."""
        return list_aliases(self._runtime, self.get(model).id)

    def promotions(self, model: Model | str, alias: str = PROD, *, order: Order = "asc") -> Listing[Promotion]:
        """List every change of an alias in order, also of one that was removed. Raises `NotFound`."""
        return list_promotions(self._runtime, self.get(model).id, alias, order)

    # ---- retention

    def set_retention(
        self,
        model: Model | str,
        *,
        keep_last: int | None = None,
        keep_best: tuple[str, int] | None = None,
        lower_is_better: bool = False,
        ttl: timedelta | None = None,
    ) -> Retention:
        """Set which checkpoints of a model are kept, whenever one is added and when `apply_retention` is called.

        Kept are the `keep_last` highest steps, the `keep_best` ones by a metric, such as ("reward", 3), and checkpoints
        that are younger than `ttl` or lack the metric; others are removed. Without any rule all stay. The latest
        checkpoint, step 0, pinned ones, checkpoints that a job needs, and targets of an alias, now or after a rollback,
        are always kept. Warns if checkpoints were measured, and none by this metric. Raises `InvalidInput`, `NotFound`.
        """
        metric, best = keep_best or (None, None)
        seconds = None if ttl is None else ttl.total_seconds()
        policy = Retention(self.get(model).id, keep_last, best, metric, lower_is_better, seconds)
        known = {name for one in self.checkpoints(model) for name in one.metrics} if metric else set()
        if known and metric not in known:
            meant = nearest(str(metric), known) or f"; they have {', '.join(sorted(known))}"
            warnings.warn(f"keep_best: no checkpoint has {metric!r}, so it removes none{meant}", stacklevel=2)
        return self._runtime.store.transact(lambda tx: self._retain(tx, policy))

    def get_retention(self, model: Model | str) -> Retention | None:
        """Return the policy that was set for a model, or None. Raises `NotFound`."""
        return self._runtime.store.read(lambda tx: get_or_none(tx, Retention, self._named(tx, model).id))

    def apply_retention(self, model: Model | str) -> tuple[int, ...]:
        """Remove the checkpoints that no rule keeps. Returns their steps. Raises `NotFound`."""
        removed: list[int] = []
        while gone := self._enforce(model):
            self._remove_files(artifacts_of(*gone))
            removed += [checkpoint.step for checkpoint in gone]
        return tuple(removed)

    def pin(self, model: Model | str, step: int) -> Checkpoint:
        """Keep the checkpoint of a step regardless of the rules until it is unpinned. Raises `NotFound`."""
        return self._runtime.store.transact(lambda tx: self._pin(tx, model, step, pinned=True))

    def unpin(self, model: Model | str, step: int) -> Checkpoint:
        """Let the rules apply to the checkpoint of a step again. Raises `NotFound`."""
        return self._runtime.store.transact(lambda tx: self._pin(tx, model, step, pinned=False))

    # ---- logs

    def log_trajectories(
        self, model: Model | str, groups: GroupData | StoredArtifact, split: str = "train"
    ) -> TrajectoryLog:
        """Store trajectory groups of a split, such as "val", with their mean reward and metrics.

        `groups` are values or plain dicts in the wire format, read one at a time, or an artifact that holds them in the
        format of `formats.training_data`. The log owns the artifact unless this raises. Raises `NotFound`,
        `InvalidInput`.
        """
        return store_log(self._runtime, self._principal, self.get(model), groups, split)

    def trajectory_logs(
        self, model: Model | str, *, split: str | None = None, order: Order = "asc"
    ) -> Listing[TrajectoryLog]:
        """List what was logged to a model, or to one split of it, in order. Raises `NotFound`."""
        model_id = self.get(model).id
        index, *where = ("by_model", model_id) if split is None else ("by_split", model_id, split)
        place = partial(log_place, index, model_id)
        return index_listing(self._runtime, TrajectoryLog, index, *where, place=place, order=order)

    def logged_trajectories(self, log_id: str) -> Iterator[TrajectoryGroup]:
        """Yield the groups of one log. Raises `NotFound`."""
        return read_log(self._runtime, self._principal, log_id)

    # ---- steps

    def _named(self, snapshot: Snapshot, model: Model | str) -> Model:
        return named_model(snapshot, self._principal, model)

    def _lineage(self, snapshot: Snapshot, model: Model, step: int) -> CheckpointLineage:
        found = checkpoint_lineage(snapshot, self._principal, model, found_checkpoint(snapshot, model, step))
        base = next(filter(None, (engine.source_of(model.base_model) for engine in self._runtime.engines)), EMPTY)
        return attrs.evolve(found, entries=entries_answered(snapshot, model, step, found.aliases), base=base)

    def _sees(self, model: Model) -> bool:
        return self._principal.scope.covers(model.entity, model.project)

    def _retain(self, tx: Tx, policy: Retention) -> Retention:
        self._named(tx, policy.model_id)
        return set_retention(tx, policy)

    def _enforce(self, model: Model | str) -> Sequence[Checkpoint]:
        now = self._runtime.clock.now()
        return self._runtime.store.transact(lambda tx: enforce(tx, self._runtime, self._named(tx, model), now))

    def _pin(self, tx: Tx, model: Model | str, step: int, pinned: bool) -> Checkpoint:
        checkpoint = attrs.evolve(found_checkpoint(tx, self._named(tx, model), step), pinned=pinned)
        tx.replace(checkpoint)
        return checkpoint

    def _delete_some(self, model_id: str) -> DeletedPart:
        runtime = self._runtime
        event_ids, now = [runtime.ids() for _ in range(JOBS_AT_ONCE)], runtime.clock.now()
        gone = runtime.store.transact(lambda tx: delete_some(tx, runtime, self._named(tx, model_id), event_ids, now))
        for job in gone.jobs:
            announce(self._runtime, job)
        self._remove_files(gone.files)
        return gone

    def _remove_files(self, names: Iterable[str]) -> None:
        for name in names:
            self._runtime.artifacts.remove(name)
