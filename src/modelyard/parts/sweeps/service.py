"""Sweeps of the caller: start one, and find it again."""

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.identity import Principal, check_idempotency_key, check_name
from modelyard.domain.job import HELD_OUT, START, Job
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.record import Order
from modelyard.domain.training import Dataset
from modelyard.domain.training_config import TrainingConfig
from modelyard.domain.worker import Resources, check_resources
from modelyard.errors import Conflict, IdempotencyKeyUsed, InvalidInput, NotFound, nearest
from modelyard.parts.datasets.service import Datasets
from modelyard.parts.sweeps.handle import SweepHandle, found_sweep
from modelyard.parts.sweeps.plan import (
    METHODS_SWEPT,
    NOT_SWEPT,
    axes_of,
    check_halving,
    configs_of,
    rungs_of,
    trials_of,
)
from modelyard.parts.sweeps.records import RUNG, SWEEP_ID, TRIAL, Sweep
from modelyard.parts.sweeps.rungs import seed_of
from modelyard.platform.checkpoints.lookup import elsewhere, named_model
from modelyard.platform.checkpoints.transactions import create
from modelyard.platform.jobs.queue import announce
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.paging import cursor_at, index_listing, listed_entity, listed_index
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.data import BaseModelCheck, DatasetRows, readable_rows
from modelyard.platform.training.methods import METHODS, JobRequest, Method
from modelyard.platform.training.service import Training
from modelyard.platform.training.submission import add_job, new_job, require_offered
from modelyard.protocols import Snapshot, Tx

Data = Dataset | DatasetRows | str | os.PathLike[str]
"""Rows, the path of a file, or a data set: a version, its name or URL."""


@attrs.frozen
class SweepRequest:
    """A sweep as it is requested, checked."""

    method: Method
    options: Mapping[str, Any]
    axes: Mapping[str, list[Any]]
    trials: list[dict[str, Any]]
    configs: list[TrainingConfig]
    rungs: list[int]
    halving: int | None
    seed: int
    needs: Mapping[str, Any]
    key: str | None
    name: str | None


class StartSweep:
    """Starts sweeps: `platform.training.sweep`, called as a method is.

    sweep = platform.training.sweep("desk/support", "answers.jsonl", learning_rate=[1e-5, 1e-4], epochs=[1, 2])
    print(sweep.wait().best)
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def __call__(
        self,
        model: Model | str,
        data: Data,
        *,
        validation: float | Data = 0.1,
        method: Literal["sft", "dpo"] = "sft",
        samples: int | None = None,
        halving: int | None = None,
        seed: int = 0,
        name: str | None = None,
        needs: Resources | None = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> SweepHandle:
        """Queue a job for each combination of the `options` that are lists, each with a model of its own.

        `options` are those of the method; an option that is no list is the same for all. The models are named
        "<name>-1" and so on, and start from the latest checkpoint of `model`. `validation` is a part of the rows that
        is held out by a hash of each, or rows of their own; trials are compared by the loss on them. With `samples`,
        that many combinations are drawn. With `halving=2`, all trials train for one epoch, the better half for two, the
        better half of those for four, up to `epochs`: each time in another job that begins with a new optimizer. The
        `seed` decides what is drawn and held out, and seeds the jobs. The same request under an `idempotency_key` is
        one sweep for ever. All is checked before anything is queued, and all is queued or nothing. Raises TypeError for
        an unknown option, `InvalidInput`, `NotFound`, `Forbidden`, `Conflict` for a name that is taken, `RateLimited`,
        `BudgetExceeded`, `StorageFull`.
        """
        start = self._runtime.store.read(lambda snapshot: named_model(snapshot, self._principal, model))
        request = self._request(method, start, samples, halving, seed, name, needs, idempotency_key, options)
        require_offered(self._runtime, start.base_model, method)
        self._runtime.require_room()
        sweep_id = self._runtime.ids()
        made_before = self._made_before(start, request.key)
        named = request.name or (made_before.name if made_before else f"{start.name}-sweep-{sweep_id[-6:]}")
        train, held_out = self._data(request, start, data, validation, named)
        sweep, jobs = self._planned(request, start, (train, held_out), sweep_id, named)
        found = self._runtime.store.transact(lambda tx: self._add(tx, sweep, jobs, start))
        for job in jobs if found.id == sweep.id else ():
            announce(self._runtime, job)
        return SweepHandle(self._runtime, self._principal, found.id)

    def _request(
        self,
        method: str,
        start: Model,
        samples: int | None,
        halving: int | None,
        seed: int,
        name: str | None,
        needs: Resources | None,
        key: str | None,
        options: Mapping[str, Any],
    ) -> SweepRequest:
        if method not in METHODS_SWEPT:
            why = f"; not {method}: {NOT_SWEPT[method]}, so start a loop for each" if method in NOT_SWEPT else ""
            why = why or nearest(method, METHODS_SWEPT)
            raise InvalidInput.at("method", msg=f"must be {' or '.join(METHODS_SWEPT)}{why}")
        if type(seed) is not int:
            raise InvalidInput.at("seed", msg="must be a whole number")
        chosen = METHODS[method].of(self._runtime.trainers, start.base_model)
        configs_of(chosen, options, [])
        axes = axes_of(options)
        trials = trials_of(axes, samples, seed)
        configs = configs_of(chosen, options, trials)
        check_halving(halving, axes, configs[0])
        epochs = getattr(configs[0], "epochs", 1)
        rungs = rungs_of(len(trials), epochs, halving)
        return SweepRequest(
            method=chosen,
            options={name: value for name, value in options.items() if name not in axes},
            axes=axes,
            trials=trials,
            configs=configs_of(chosen, options, [{**one, "epochs": rungs[0]} for one in trials])
            if halving
            else configs,
            rungs=rungs,
            halving=halving,
            seed=seed,
            needs=check_resources({} if needs is None else needs),
            key=check_idempotency_key(key),
            name=None if name is None else check_name(name, "name"),
        )

    def _made_before(self, start: Model, key: str | None) -> Sweep | None:
        place = (start.entity, start.project, key)
        return (key and self._runtime.store.read(lambda snapshot: snapshot.find(Sweep, "idempotency", *place))) or None

    # ---- its data

    def _data(
        self, request: SweepRequest, start: Model, data: Data, validation: float | Data, name: str
    ) -> tuple[Dataset, Dataset]:
        datasets, place = Datasets(self._runtime, self._principal), {"project": start.project, "entity": start.entity}
        if isinstance(validation, int | float):
            with _moved("held_out", "validation"):
                made = datasets.split(data, held_out=validation, seed=request.seed, name=name, **place)
            train, held_out = made.train, made.held_out
        else:
            train = self._dataset(data, f"{name}-train", place)
            with _moved("data", "validation"):
                held_out = self._dataset(validation, f"{name}-held-out", place)
        check = BaseModelCheck.of(self._runtime, start.base_model, request.configs[0])
        rows = []
        for place_, dataset in (("data", train), ("validation", held_out)):
            with _moved("training_data_url", place_):
                rows.append(readable_rows(self._runtime.artifacts, dataset, request.method.rows, check))
        for config in request.configs:
            config.check_rows(*rows)
        return train, held_out

    def _dataset(self, data: Data, name: str, place: Mapping[str, Any]) -> Dataset:
        if isinstance(data, Dataset) or (isinstance(data, str) and not os.path.exists(data)):
            return Datasets(self._runtime, self._principal).get(data)
        return Training(self._runtime, self._principal).upload(name, data, **place)

    # ---- what is stored

    def _planned(
        self, request: SweepRequest, start: Model, data: tuple[Dataset, Dataset], sweep_id: str, name: str
    ) -> tuple[Sweep, list[Job]]:
        train, held_out = data
        trials = [
            {
                "number": number,
                "name": check_name(f"{name}-{number}", "name"),
                "model_id": self._runtime.ids(),
                "options": options,
                "batch": config.rows_per_batch,  # type: ignore[attr-defined]
            }
            for number, (options, config) in enumerate(zip(request.trials, request.configs, strict=True), 1)
        ]
        asked = {
            "method": request.method.kind,
            "start": start.id,
            "options": dict(request.options),
            "axes": request.axes,
            "combinations": request.trials,
            "rungs": request.rungs,
            "halving": request.halving,
            "seed": request.seed,
            "needs": dict(request.needs),
            "data": train.digest,
            "held_out": held_out.digest,
            "name": request.name,
        }
        plan = {
            **{kept: asked[kept] for kept in ("method", "options", "axes", "rungs", "halving", "seed")},
            "trials": trials,
            "data": train.url,
            "rows": train.rows,
            "held_out": held_out.url,
            "held_out_rows": held_out.rows,
            "start": f"{start.entity}/{start.project}/{start.name}",
            "start_step": start.last_step,
        }
        state = {"rung": 0, "going": [trial["number"] for trial in trials], "cancelled": False}
        head = (sweep_id, start.entity, start.project, name, start.id, self._runtime.clock.now())
        sweep = Sweep(*head, digest(asked), plan, state, request.key)
        members = {
            "dataset_id": train.id,
            "url": train.url,
            "rows": train.rows,
            "digest": train.digest,
            HELD_OUT: {"dataset_id": held_out.id, "url": held_out.url, "rows": held_out.rows},
            **({START: self._latest(start)} if start.last_step else {}),
        }
        pairs = zip(trials, request.configs, strict=True)
        return sweep, [self._job(request, sweep, start, trial, config, members) for trial, config in pairs]

    def _latest(self, start: Model) -> str:
        def query(snapshot: Snapshot) -> Checkpoint:
            return snapshot.page(Checkpoint, "by_model", start.id, limit=1, descending=True)[0]

        return self._runtime.store.read(query).id

    def _job(
        self,
        request: SweepRequest,
        sweep: Sweep,
        start: Model,
        trial: Mapping[str, Any],
        config: TrainingConfig,
        members: Mapping[str, Any],
    ) -> Job:
        model = self._model(sweep, start, trial)
        seed = {"seed": seed_of(request.seed, trial["number"], 0)}
        own = {SWEEP_ID: sweep.id, TRIAL: trial["number"], RUNG: 0}
        asked = JobRequest(request.method, model, config, None, request.needs)
        return new_job(self._runtime, self._principal, asked, {**members, **seed, **own})

    def _model(self, sweep: Sweep, start: Model, trial: Mapping[str, Any]) -> Model:
        place = (start.entity, start.project, trial["name"], start.base_model, sweep.created_at)
        return Model(trial["model_id"], *place)

    def _add(self, tx: Tx, sweep: Sweep, jobs: list[Job], start: Model) -> Sweep:
        place = (sweep.entity, sweep.project)
        known = sweep.idempotency_key and tx.find(Sweep, "idempotency", *place, sweep.idempotency_key)
        if known:
            if known.request != sweep.request:
                msg = f"the idempotency key {sweep.idempotency_key!r} was used for another sweep, {known.name}"
                raise IdempotencyKeyUsed(f"{msg}; send that request again unchanged, or choose a new key")
            return known
        if tx.find(Sweep, "name", *place, sweep.name) is not None:
            raise Conflict(f"there is a sweep {sweep.project}/{sweep.name} already; choose another name")
        most = self._runtime.settings.max_queued_jobs
        for trial, job in zip(sweep.plan["trials"], jobs, strict=True):
            create(tx, self._model(sweep, start, trial), self._runtime.ids(), False)
            add_job(tx, job, most)
        tx.add(sweep)
        return sweep


class Sweeps:
    """The sweeps that a principal may see: `platform.training.sweeps`."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> StartSweep:
            if name != "start":
                raise AttributeError(f"there is no training.sweeps.{name}")
            warnings.warn("platform.sweeps.start is platform.training.sweep now", DeprecationWarning, stacklevel=2)
            return StartSweep(self._runtime, self._principal)

    def get(self, sweep: str) -> SweepHandle:
        """Return a sweep by its id or name: "name", "project/name" or "entity/project/name". Raises `NotFound`,
        `Forbidden`.
        """
        found = self._runtime.store.read(lambda snapshot: self._found(snapshot, sweep))
        return SweepHandle(self._runtime, self._principal, found.id)

    def list(
        self, *, project: str | None = None, entity: str | None = None, order: Order = "desc"
    ) -> Listing[SweepHandle]:
        """List sweeps, the newest first: all that the caller may see, or those of an entity or a project.

        Raises `Forbidden`.
        """
        index, *where = listed_index(listed_entity(self._principal, entity, project), project)

        def keep(one: Sweep) -> bool:
            return self._principal.scope.covers(one.entity, one.project)

        def show(snapshot: Snapshot, found: Any) -> list[SweepHandle]:
            return [SweepHandle(self._runtime, self._principal, one.id) for one in found]

        place = partial(self._place, index)
        return index_listing(self._runtime, Sweep, index, *where, place=place, order=order, keep=keep, shown=show)

    def _place(self, index: str, id: str, snapshot: Snapshot) -> Cursor:
        return cursor_at(Sweep, index, found_sweep(snapshot, self._principal, id))

    def _found(self, snapshot: Snapshot, sweep: str) -> Sweep:
        own = (self._principal.entity, self._runtime.project)
        parts = sweep.split("/")
        place = (*own[: max(3 - len(parts), 0)], *parts)
        named = None
        if len(place) == 3:
            named = snapshot.find(Sweep, "name", *place)
        if named is None and len(parts) == 1:
            return found_sweep(snapshot, self._principal, sweep)
        if named is None or not self._principal.scope.covers(named.entity, named.project):
            same = elsewhere(snapshot, self._principal, Sweep, sweep)
            raise NotFound("Sweep", sweep, nearest(sweep, same, 0.0).removeprefix("; "))
        return named


@contextmanager
def _moved(place: str, other: str) -> Iterator[None]:
    """Locate the problems of a block that lie at one place at another one."""
    try:
        yield
    except InvalidInput as wrong:
        problems = [
            attrs.evolve(one, loc=(other, *one.loc[1:])) if one.loc[:1] == (place,) else one for one in wrong.problems
        ]
        raise InvalidInput(problems) from None
