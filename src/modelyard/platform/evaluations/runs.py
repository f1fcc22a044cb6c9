"""Evaluation runs as they are stored, and the job that works on each (specification 4.5). At most one job works on each
shard of a run (`shards`)."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import attrs

from modelyard.domain.evaluation.run import EvaluationRun, RunState, RunStatus, check_reason
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, files_of
from modelyard.domain.promotion import RunLineage
from modelyard.domain.record import Order
from modelyard.errors import Conflict, InvalidInput
from modelyard.formats.json import as_json
from modelyard.platform.evaluations.predictions import close_open, remove_parts
from modelyard.platform.evaluations.references import Namespace, References, ScopedReader, run_filter
from modelyard.platform.evaluations.shards import last_jobs, rows_done
from modelyard.platform.jobs.queue import announce, cancel_jobs
from modelyard.platform.lineage import run_lineage
from modelyard.platform.listing import BATCH, Cursor, Listing
from modelyard.platform.owned import remove_owned, store_texts
from modelyard.platform.paging import cursor_at, get_or_none, index_listing, listed_index, unique_ids
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

RUN = "Evaluation run"


class Runs:
    """The evaluation runs that a principal may see.

    run = platform.evaluations.runs.create(evaluation_ref, model_ref, project="support")
    platform.evaluations.runs.finish(run.id, {"accuracy": 0.9})
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal, self._reader = runtime, principal, ScopedReader(runtime, principal)

    # ---- making and reading

    def create(
        self,
        evaluation: str,
        model: str,
        source_evaluation_run_id: str | None = None,
        *,
        project: str | None = None,
        entity: str | None = None,
    ) -> EvaluationRun:
        """Create a running run that ties an evaluation to a model by their references.

        How strictly references are checked is `Settings.reference_mode`. A source run that is unknown, or outside of
        the caller's scope, is accepted and marked as unknown; "" means no source. Raises `InvalidInput` naming every
        field at fault.
        """
        run = EvaluationRun(
            self._runtime.ids(),
            *self._reader.place(project, entity),
            evaluation,
            model,
            self._runtime.clock.now(),
            source_evaluation_run_id=source_evaluation_run_id or None,
        )
        return store_texts(self._runtime, run.entity, partial(self._create, run=run))

    def get(self, run_id: str, *, project: str | None = None, entity: str | None = None) -> EvaluationRun:
        """Return a run. If a project is named, the run must be in it. Raises `NotFound`."""
        namespace = self._reader.maybe_place(project, entity)
        return self._runtime.store.read(lambda snapshot: self._find(snapshot, run_id, namespace))

    def list(
        self,
        *,
        project: str | None = None,
        entity: str | None = None,
        evaluations: Iterable[str] = (),
        models: Iterable[str] = (),
        ids: Iterable[str] = (),
        sources: Iterable[str] = (),
    ) -> Listing[EvaluationRun]:
        """List a project's runs in the order in which they started. Each filter keeps runs with one of the given
        references, ids or sources; an empty filter keeps all. Raises `InvalidInput`, `Forbidden`."""
        namespace, wanted = self._reader.place(project, entity), unique_ids(ids)
        keep, place = run_filter(evaluations, models, sources), partial(self._place, namespace)
        if wanted:
            return Listing(
                partial(self._by_id, wanted, namespace, keep),
                lambda name: self._runtime.store.read(partial(place, name)),
            )
        return index_listing(self._runtime, EvaluationRun, "by_project", *namespace, place=place, keep=keep)

    def list_all(self, *, order: Order = "asc") -> Listing[EvaluationRun]:
        """List all runs that the caller may see, of every project, in the order in which they started."""
        entity = self._principal.scope.entity
        index, *where = listed_index(entity, None)

        def place(id: str, snapshot: Snapshot) -> Cursor:
            return cursor_at(EvaluationRun, index, self._find(snapshot, id, None))

        return index_listing(self._runtime, EvaluationRun, index, *where, place=place, order=order, keep=self._sees)

    def _sees(self, run: EvaluationRun) -> bool:
        return self._principal.scope.covers(run.entity, run.project)

    def status(self, run_id: str, *, project: str | None = None, entity: str | None = None) -> RunStatus:
        """Return a run and how many of its rows are done. Raises `NotFound`."""
        namespace = self._reader.maybe_place(project, entity)
        return self._runtime.store.read(lambda snapshot: run_status(snapshot, self._find(snapshot, run_id, namespace)))

    def lineage(self, run_id: str, *, project: str | None = None, entity: str | None = None) -> RunLineage:
        """Return the runs that it was rescored from and into, and the checkpoint that it evaluated. Raises
        `NotFound`."""
        namespace = self._reader.maybe_place(project, entity)
        return self._runtime.store.read(
            lambda snapshot: run_lineage(snapshot, self._principal, self._find(snapshot, run_id, namespace))
        )

    def delete(self, ids: Iterable[str], *, project: str | None = None, entity: str | None = None) -> int:
        """Delete runs for ever, with their predictions and scores. Returns how many of `ids` existed. The parts of a
        run are deleted first, in small steps, so that this can be repeated after a crash."""
        namespace, left, deleted = self._reader.place(project, entity), unique_ids(ids), 0
        event_ids, now = defaultdict[str, str](self._runtime.ids), self._runtime.clock.now()
        while left:
            gone, left = self._runtime.store.transact(partial(self._delete_some, left, namespace, event_ids, now))
            for work in gone:
                self._drop_work(work)
            deleted += len(gone)
        return deleted

    # ---- ending

    def finish(
        self,
        run_id: str,
        summary: Mapping[str, Any] | None = None,
        *,
        project: str | None = None,
        entity: str | None = None,
    ) -> EvaluationRun:
        """Complete a run, after closing its open predictions. Repeating it with an equal summary changes nothing. Nor
        does repeating it without one. Raises `NotFound`, `RunAlreadyFinished`, and `InvalidInput` for a summary that is
        not a JSON object."""
        summary = as_json(summary, at=("summary",))
        if not isinstance(summary, Mapping | None):
            raise InvalidInput.at("summary", msg="must be a JSON object", type="dict_type")
        namespace, now = self._reader.maybe_place(project, entity), self._runtime.clock.now()
        step = partial(self._finish, run_id, namespace, summary, now)
        while (finished := self._runtime.store.transact(step)) is None:
            pass  # each step closes some of the open predictions
        return finished

    def cancel(
        self, run_id: str, reason: str = "cancelled", *, project: str | None = None, entity: str | None = None
    ) -> EvaluationRun:
        """End a running run that is no longer wanted. Idempotent. Raises `NotFound`, `RunAlreadyFinished`. A run that
        the engine works on ends after the rows in flight, and keeps what is done."""
        run = self.get(run_id, project=project, entity=entity)
        if self._stop_work(run.id, check_reason(reason)):
            return self.get(run_id)
        return self._stop(RunState.CANCELLED, run_id, reason, project, entity)

    def fail(
        self, run_id: str, reason: str = "failed", *, project: str | None = None, entity: str | None = None
    ) -> EvaluationRun:
        """End a running run because it went wrong. Idempotent. Raises `NotFound`, `RunAlreadyFinished`."""
        return self._stop(RunState.FAILED, run_id, reason, project, entity)

    # ---- steps

    def _create(self, tx: Tx, run: EvaluationRun) -> EvaluationRun:
        source = run.source_evaluation_run_id
        known = None if source is None else self._reader.see(tx, EvaluationRun, source, None) is not None
        run = attrs.evolve(run, source_known=known)
        References(self._runtime.settings.reference_mode, self._principal).check_run(tx, run)
        tx.add(run)
        return run

    def _find(self, snapshot: Snapshot, run_id: str, namespace: Namespace | None) -> EvaluationRun:
        return self._reader.find(snapshot, EvaluationRun, RUN, run_id, namespace)

    def _finish(
        self, run_id: str, namespace: Namespace | None, summary: Mapping[str, Any] | None, now: datetime, tx: Tx
    ) -> EvaluationRun | None:
        """Complete a run. Returns None while there are open predictions to close."""
        run = self._find(tx, run_id, namespace)
        check_idle(tx, run_id)
        finished = run.finished(summary, now)
        if finished is run:
            return run
        if not close_open(tx, run_id, now):
            return None
        tx.replace(finished)
        self._runtime.tell(tx, finished)
        return tx.get(EvaluationRun, run_id)  # as the store returns it: deeply frozen

    def _stop(
        self, state: RunState, run_id: str, reason: str, project: str | None, entity: str | None
    ) -> EvaluationRun:
        check_reason(reason)
        namespace, now = self._reader.maybe_place(project, entity), self._runtime.clock.now()

        def step(tx: Tx) -> EvaluationRun:
            before = self._find(tx, run_id, namespace)
            check_idle(tx, run_id)
            after = before.stopped(state, reason, now)
            if after is not before:
                tx.replace(after)
                self._runtime.tell(tx, after)
            return after

        return self._runtime.store.transact(step)

    # ---- the job of a run that ends or is deleted

    def _stop_work(self, run_id: str, reason: str) -> bool:
        event_ids, now = defaultdict[str, str](self._runtime.ids), self._runtime.clock.now()

        def step(tx: Tx) -> list[Job] | None:
            run, jobs = get_or_none(tx, EvaluationRun, run_id), last_jobs(tx, run_id)
            if all(job.ended for job in jobs):
                return None
            if run is not None:
                tx.replace(attrs.evolve(run, reason=run.reason or reason))
            return cancel_jobs(tx, self._runtime.job_types, jobs, event_ids, self._principal.name, now)

        ended = self._runtime.store.transact(step)
        for job in ended or ():
            announce(self._runtime, job)
        return ended is not None

    def _delete_some(
        self, ids: Sequence[str], namespace: Namespace, event_ids: Mapping[str, str], now: datetime, tx: Tx
    ) -> tuple[Sequence["_Work"], Sequence[str]]:
        gone: tuple[_Work, ...] = ()
        room = BATCH
        for at, run_id in enumerate(ids):
            run = self._reader.see(tx, EvaluationRun, run_id, namespace)
            if run is not None:
                room -= remove_parts(tx, run_id, room)
                if room <= 0:
                    return gone, ids[at:]
                gone += (self._end_work(tx, run_id, event_ids, now),)
                tx.remove(EvaluationRun, run_id)
                remove_owned(tx, self._runtime.records, run)
        return gone, ()

    def _end_work(self, tx: Tx, run_id: str, event_ids: Mapping[str, str], now: datetime) -> "_Work":
        """Cancel the jobs of a run in the transaction that deletes the run, so that nothing is added to it again."""
        jobs = last_jobs(tx, run_id)
        cancelled = cancel_jobs(tx, self._runtime.job_types, jobs, event_ids, self._principal.name, now)
        going = {job.id for job in jobs if not job.ended} - {job.id for job in cancelled}
        return _Work(() if going else tuple(jobs), cancelled)

    def _drop_work(self, work: "_Work") -> None:
        """Remove the files of a deleted run's jobs. The files of a running job are removed when it ends."""
        for job in work.cancelled:
            announce(self._runtime, job)
        for job in work.ended:
            for name in files_of(job):
                self._runtime.artifacts.remove(name)

    # ---- listing

    def _place(self, namespace: Namespace, run_id: str, snapshot: Snapshot) -> Cursor:
        return _cursor(self._find(snapshot, run_id, namespace))

    def _by_id(
        self,
        ids: Sequence[str],
        namespace: Namespace,
        keep: Callable[[EvaluationRun], bool],
        after: Cursor | None,
        size: int,
    ) -> Iterator[Sequence[EvaluationRun]]:
        see = self._reader.see
        seen = self._runtime.store.read(
            lambda snapshot: [see(snapshot, EvaluationRun, run_id, namespace) for run_id in ids]
        )
        found = sorted((run for run in seen if run is not None and keep(run)), key=_cursor)
        yield [run for run in found if after is None or _cursor(run) > after]


@attrs.frozen
class _Work:
    """The last jobs of a run that was deleted, once all have `ended`; and those that the deletion has `cancelled`."""

    ended: Sequence[Job]
    cancelled: Sequence[Job]


# ---- a run and its job


def find_run(runtime: Runtime, principal: Principal, run_id: str) -> EvaluationRun:
    return Runs(runtime, principal).get(run_id)


def check_idle(snapshot: Snapshot, run_id: str) -> None:
    if not all(job.ended for job in last_jobs(snapshot, run_id)):
        raise Conflict(f"the engine works on evaluation run {run_id}; wait for it, or cancel it")


def run_status(snapshot: Snapshot, run: EvaluationRun) -> RunStatus:
    return RunStatus(run, *rows_done(snapshot, run.id))


def _cursor(run: EvaluationRun) -> Cursor:
    return cursor_at(EvaluationRun, "by_project", run)
