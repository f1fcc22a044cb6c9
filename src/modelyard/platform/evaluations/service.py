"""Evaluation runs: creating, reading and ending them, and judging a model in one (specification 4.5)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import attrs

from modelyard.domain.canonical import canonical_json
from modelyard.domain.evaluation.objects import ObjectKind
from modelyard.domain.evaluation.references import RefMode, same_scheme
from modelyard.domain.evaluation.results import ResultQuery
from modelyard.domain.evaluation.run import EvaluationRun, RunState, RunStatus
from modelyard.domain.lineage import RunLineage
from modelyard.errors import InvalidInput, Problem
from modelyard.platform.evaluations.compare import Comparing
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.predictions import Predictions, Scores, close_open, remove_parts
from modelyard.platform.evaluations.query import Results, query_results
from modelyard.platform.evaluations.references import References
from modelyard.platform.evaluations.run import Evaluating
from modelyard.platform.evaluations.transactions import check_idle, run_status
from modelyard.platform.evaluations.watch import EndedWork
from modelyard.platform.lineage import run_lineage
from modelyard.platform.paging import BATCH, Cursor, check_slice, cursor_at, iter_index_live, slice_listing, unique_ids
from modelyard.platform.scope import Namespace
from modelyard.protocols import Snapshot, Tx

MAX_ID = 128
MAX_REASON = 2000


class Evaluations(Evaluating, Comparing):
    """The evaluation runs that a principal may see.

    run = platform.evaluations.create(evaluation_ref, model_ref, project="support")
    platform.evaluations.finish(run.id, {"accuracy": 0.9})
    """

    @property
    def objects(self) -> Objects:
        """Datasets, scorers, models, evaluations and ops, in versions."""
        return Objects(self.runtime, self.principal)

    @property
    def predictions(self) -> Predictions:
        """What models answered."""
        return Predictions(self.runtime, self.principal)

    @property
    def scores(self) -> Scores:
        """What scorers say of it."""
        return Scores(self.runtime, self.principal)

    # ---- making and reading

    def create(
        self,
        evaluation: str,
        model: str,
        source_evaluation_run_id: str | None = None,
        *,
        project: str,
        entity: str | None = None,
    ) -> EvaluationRun:
        """A new run, running, that ties an evaluation to a model by their references.

        How strictly references are taken is `Settings.reference_mode`. A source run that is unknown, or not in the
        caller's scope, is accepted and marked so; "" is none. Raises `InvalidInput` naming every field at fault.
        """
        run = EvaluationRun(
            self.runtime.ids(),
            *self._sight.place(project, entity),
            evaluation,
            model,
            self.runtime.clock.now(),
            source_evaluation_run_id=source_evaluation_run_id or None,
        )
        return self.runtime.store.transact(lambda tx: self._create(tx, run))

    def get(self, run_id: str, *, project: str | None = None, entity: str | None = None) -> EvaluationRun:
        """One run. Where a project is named, it must lie there. Raises `NotFound`."""
        place = self._sight.maybe_place(project, entity)
        return self.runtime.store.read(lambda snapshot: self._found(snapshot, run_id, place))

    def list(
        self,
        *,
        project: str,
        entity: str | None = None,
        evaluations: Iterable[str] = (),
        models: Iterable[str] = (),
        ids: Iterable[str] = (),
        sources: Iterable[str] = (),
        limit: int | None = None,
        offset: int = 0,
        after: EvaluationRun | None = None,
    ) -> Iterator[EvaluationRun]:
        """A project's runs in the order in which they started, read as they are asked for, a batch at a time.

        Each filter keeps runs with one of the given references, ids or sources; an empty filter keeps all. `after` goes
        on behind a run, which need no longer exist. Raises `InvalidInput`.
        """
        check_slice(limit, offset)
        place, wanted = self._sight.place(project, entity), unique_ids(ids)
        if wanted:
            found = self._by_id(wanted, place, after)
        else:
            found = iter_index_live(self.runtime, EvaluationRun, "by_project", *place, after=after)
        return slice_listing(filter(_matcher(evaluations, models, sources), found), limit, offset)

    def status(self, run_id: str, *, project: str | None = None, entity: str | None = None) -> RunStatus:
        """A run and how many of its rows are done. Raises `NotFound`."""
        place = self._sight.maybe_place(project, entity)
        return self.runtime.store.read(lambda snapshot: run_status(snapshot, self._found(snapshot, run_id, place)))

    def results(self, query: ResultQuery, *, project: str, entity: str | None = None) -> Results:
        """The rows of runs of a project, joined by their digests: filtered, sorted, counted, a page of them.

        Runs that are not there are told as `missing`. Raises `InvalidInput`, `Forbidden`.
        """
        check_slice(query.limit, query.offset)
        place, ids = self._sight.place(project, entity), unique_ids(query.run_ids)
        runs = [run for run_id in ids for run in self._by_id([run_id], place, None)]
        return query_results(self.runtime, runs, query)

    def lineage(self, run_id: str, *, project: str | None = None, entity: str | None = None) -> RunLineage:
        """What a run was rescored from, what was rescored from it, and the checkpoint that it judged.

        Raises `NotFound`.
        """
        place = self._sight.maybe_place(project, entity)
        return self.runtime.store.read(
            lambda snapshot: run_lineage(snapshot, self.principal, self._found(snapshot, run_id, place))
        )

    def delete(self, ids: Iterable[str], *, project: str, entity: str | None = None) -> int:
        """Delete runs for ever, with their predictions and scores; returns how many of them there were.

        What belongs to a run goes first, in small steps, so that this can be repeated after a crash.
        """
        place, left, deleted = self._sight.place(project, entity), unique_ids(ids), 0
        event_ids, now = {run_id: self.runtime.ids() for run_id in left}, self.runtime.clock.now()
        while left:
            gone, left = self.runtime.store.transact(partial(self._delete_some, left, place, event_ids, now))
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
        """Complete a run, and its open predictions before. Again with an equal summary, or with none, changes nothing.

        Raises `NotFound`, `RunAlreadyFinished`, and `InvalidInput` for a summary that is no JSON object.
        """
        _check_summary(summary)
        place, now = self._sight.maybe_place(project, entity), self.runtime.clock.now()
        step = partial(self._finish, run_id, place, summary, now)
        while (finished := self.runtime.store.transact(step)) is None:
            pass  # a step closes some of the open predictions
        return finished

    def cancel(
        self, run_id: str, reason: str = "cancelled", *, project: str | None = None, entity: str | None = None
    ) -> EvaluationRun:
        """End a running run because nobody wants it. Idempotent. Raises `NotFound`, `RunAlreadyFinished`.

        A run that the engine works on ends with the rows that are under way, and keeps what is done.
        """
        run = self.get(run_id, project=project, entity=entity)
        if self._stop_work(run.id, _checked_reason(reason)):
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
        known = None if source is None else self._sight.see(tx, EvaluationRun, source, None) is not None
        references = References(self.runtime.settings.reference_mode, self.principal)
        problems = [
            references.problem(tx, ("evaluation",), ObjectKind.EVALUATION, run.evaluation),
            references.problem(tx, ("model",), ObjectKind.MODEL, run.model),
            _source_problem(source, known, references.mode),
        ]
        found = [problem for problem in problems if problem is not None]
        if found:
            raise InvalidInput(found)
        run = attrs.evolve(run, source_known=known)
        tx.add(run)
        return run

    def _found(self, snapshot: Snapshot, run_id: str, place: Namespace | None) -> EvaluationRun:
        return self._sight.find(snapshot, EvaluationRun, "Evaluation run", run_id, place)

    def _finish(
        self, run_id: str, place: Namespace | None, summary: Mapping[str, Any] | None, now: datetime, tx: Tx
    ) -> EvaluationRun | None:
        """The run, completed; None while there are open predictions to close."""
        run = self._found(tx, run_id, place)
        check_idle(tx, run_id)
        finished = run.finished(summary, now)
        if finished is run:
            return run
        if not close_open(tx, run_id, now):
            return None
        tx.replace(finished)
        return tx.get(EvaluationRun, run_id)  # as it is kept: frozen to its depth

    def _delete_some(
        self, ids: Sequence[str], place: Namespace, event_ids: Mapping[str, str], now: datetime, tx: Tx
    ) -> tuple[Sequence[EndedWork], Sequence[str]]:
        """The work on the runs that went in this step, and which are left."""
        gone: tuple[EndedWork, ...] = ()
        room = BATCH
        for at, run_id in enumerate(ids):
            if self._sight.see(tx, EvaluationRun, run_id, place) is not None:
                room -= remove_parts(tx, run_id, room)
                if room <= 0:
                    return gone, ids[at:]
                gone += (self._end_work(tx, run_id, event_ids[run_id], now),)
                tx.remove(EvaluationRun, run_id)
        return gone, ()

    def _stop(
        self, state: RunState, run_id: str, reason: str, project: str | None, entity: str | None
    ) -> EvaluationRun:
        _checked_reason(reason)
        place, now = self._sight.maybe_place(project, entity), self.runtime.clock.now()

        def step(tx: Tx) -> EvaluationRun:
            before = self._found(tx, run_id, place)
            check_idle(tx, run_id)
            after = before.stopped(state, reason, now)
            if after is not before:
                tx.replace(after)
            return after

        return self.runtime.store.transact(step)

    # ---- in batches

    def _by_id(self, ids: Sequence[str], place: Namespace, after: EvaluationRun | None) -> Iterator[EvaluationRun]:
        see = self._sight.see
        seen = self.runtime.store.read(lambda snapshot: [see(snapshot, EvaluationRun, run_id, place) for run_id in ids])
        found = sorted((run for run in seen if run is not None), key=_cursor)
        return (run for run in found if after is None or _cursor(run) > _cursor(after))


def _cursor(run: EvaluationRun) -> Cursor:
    return cursor_at(EvaluationRun, "by_project", run)


def _matcher(
    evaluations: Iterable[str], models: Iterable[str], sources: Iterable[str]
) -> Callable[[EvaluationRun], bool]:
    of_evaluation = frozenset(map(same_scheme, evaluations))
    of_model = frozenset(map(same_scheme, models))
    of_source = frozenset(sources)

    def matches(run: EvaluationRun) -> bool:
        return (
            (not of_evaluation or same_scheme(run.evaluation) in of_evaluation)
            and (not of_model or same_scheme(run.model) in of_model)
            and (not of_source or run.source_evaluation_run_id in of_source)
        )

    return matches


# ---- bounds


def _checked_reason(reason: str) -> str:
    if not 1 <= len(reason) <= MAX_REASON:
        raise InvalidInput.at("reason", msg=f"must be 1 to {MAX_REASON} characters")
    return reason


def _check_summary(summary: Mapping[str, Any] | None) -> None:
    if summary is None:
        return
    try:
        canonical_json(summary)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput.at("summary", msg=f"must be a JSON object: {error}") from None


def _source_problem(source: str | None, known: bool | None, mode: RefMode) -> Problem | None:
    loc = ("source_evaluation_run_id",)
    if source is not None and not (len(source) <= MAX_ID and source.isprintable()):
        return Problem(loc, f"must be the id of a run, at most {MAX_ID} printable characters")
    if known is False and mode is RefMode.RESOLVE:
        return Problem(loc, "must be the id of a run that is here")
    return None
