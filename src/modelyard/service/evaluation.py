"""Evaluation runs: creating, reading and ending them, and judging a model in one (specification 4.5)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import attrs

from modelyard.domain.canonical import canonical_json
from modelyard.domain.evaluation import EvaluationRun, RunState
from modelyard.domain.identity import check_name
from modelyard.domain.reference import (
    EVALUATION_KINDS,
    MODEL_KINDS,
    ObjectRef,
    RefKind,
    RefMode,
    reference_problem,
    same_scheme,
)
from modelyard.domain.training import Checkpoint, Model, ModelName
from modelyard.errors import InvalidInput, NotFound, Problem, RecordNotFound
from modelyard.protocols import Snapshot, Tx
from modelyard.service.evaluating import Evaluating
from modelyard.service.evaluation_rules import check_idle
from modelyard.service.place import Place

MAX_IDS = 1000
MAX_ID = 128
MAX_REASON = 2000
MAX_WINDOW = 2**53
_BATCH = 200


class Evaluations(Evaluating):
    """The evaluation runs that a principal may see.

    run = platform.evaluations.create(evaluation_ref, model_ref, project="support")
    platform.evaluations.finish(run.id, {"accuracy": 0.9})
    """

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
            self.ports.ids(),
            *self._place(project, entity),
            evaluation,
            model,
            self.ports.clock.now(),
            source_evaluation_run_id=source_evaluation_run_id or None,
        )
        mode = RefMode(self.ports.settings.reference_mode)
        return self.ports.store.transact(lambda tx: self._create(tx, run, mode))

    def get(self, run_id: str, *, project: str | None = None, entity: str | None = None) -> EvaluationRun:
        """One run. Where a project is named, it must lie there. Raises `NotFound`."""
        place = self._maybe_place(project, entity)
        return self.ports.store.read(lambda snapshot: self._found(snapshot, run_id, place))

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
        _check_window(limit, offset)
        place, wanted = self._place(project, entity), _few(ids)
        found = self._by_id(wanted, place, after) if wanted else self._scan(place, after)
        kept = filter(_matcher(evaluations, models, sources), found)
        return islice(kept, offset, None if limit is None else offset + limit)

    def delete(self, ids: Iterable[str], *, project: str, entity: str | None = None) -> int:
        """Delete runs for ever; returns how many of them there were."""
        place, wanted = self._place(project, entity), _few(ids)
        gone = self.ports.store.transact(lambda tx: [run_id for run_id in wanted if self._delete(tx, run_id, place)])
        for run_id in gone:
            self._drop_work(run_id)
        return len(gone)

    # ---- ending

    def finish(
        self,
        run_id: str,
        summary: Mapping[str, Any] | None = None,
        *,
        project: str | None = None,
        entity: str | None = None,
    ) -> EvaluationRun:
        """Complete a run. Doing it again with an equal summary, or with none, changes nothing.

        Raises `NotFound`, `RunAlreadyFinished`, and `InvalidInput` for a summary that is no JSON object.
        """
        _check_summary(summary)
        now = self.ports.clock.now()
        return self._change(run_id, project, entity, lambda run: run.finished(summary, now))

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

    def _create(self, tx: Tx, run: EvaluationRun, mode: RefMode) -> EvaluationRun:
        source = run.source_evaluation_run_id
        known = None if source is None else self._seen(tx, source, None) is not None
        problems = [
            reference_problem("evaluation", run.evaluation, EVALUATION_KINDS, mode),
            reference_problem("model", run.model, MODEL_KINDS, mode) or self._unresolved_model(tx, run.model, mode),
            _source_problem(source, known, mode),
        ]
        found = [problem for problem in problems if problem is not None]
        if found:
            raise InvalidInput(found)
        run = attrs.evolve(run, source_known=known)
        tx.add(run)
        return run

    def _unresolved_model(self, snapshot: Snapshot, text: str, mode: RefMode) -> Problem | None:
        ref = ObjectRef.parse(text)
        if mode is not RefMode.RESOLVE or (ref is not None and self._holds_model(snapshot, ref)):
            return None
        return Problem(("model",), "must be the reference of a trained model, or of a checkpoint, that is here")

    def _holds_model(self, snapshot: Snapshot, ref: ObjectRef) -> bool:
        """Whether a trained model, at the step that is named, is there for the caller; its scope decides first."""
        named = ModelName.parse(f"{ref.entity}/{ref.project}/{ref.name}:{ref.version or 'latest'}")
        if ref.kind is not RefKind.OBJECT or named is None or named.alias is not None:
            return False
        if not self.principal.scope.covers(ref.entity, ref.project):
            return False
        model = snapshot.find(Model, "name", named.entity, named.project, named.name)
        if model is None or named.step is None:
            return model is not None
        return snapshot.find(Checkpoint, "step", model.id, named.step) is not None

    def _seen(self, snapshot: Snapshot, run_id: str, place: Place | None) -> EvaluationRun | None:
        """The run, if it is in the caller's scope and, where one is named, in that place."""
        try:
            run = snapshot.get(EvaluationRun, run_id)
        except RecordNotFound:
            return None
        there = (run.entity, run.project)
        return run if self.principal.scope.covers(*there) and place in (None, there) else None

    def _found(self, snapshot: Snapshot, run_id: str, place: Place | None) -> EvaluationRun:
        run = self._seen(snapshot, run_id, place)
        if run is None:
            raise NotFound("Evaluation run", run_id)
        return run

    def _delete(self, tx: Tx, run_id: str, place: Place) -> bool:
        if self._seen(tx, run_id, place) is None:
            return False
        tx.remove(EvaluationRun, run_id)
        return True

    def _stop(
        self, state: RunState, run_id: str, reason: str, project: str | None, entity: str | None
    ) -> EvaluationRun:
        _checked_reason(reason)
        now = self.ports.clock.now()
        return self._change(run_id, project, entity, lambda run: run.stopped(state, reason, now))

    def _change(
        self,
        run_id: str,
        project: str | None,
        entity: str | None,
        change: Callable[[EvaluationRun], EvaluationRun],
    ) -> EvaluationRun:
        place = self._maybe_place(project, entity)

        def step(tx: Tx) -> EvaluationRun:
            before = self._found(tx, run_id, place)
            check_idle(tx, run_id)
            after = change(before)
            if after is before:
                return before
            tx.replace(after)
            return tx.get(EvaluationRun, run_id)  # as it is kept: frozen to its depth

        return self.ports.store.transact(step)

    # ---- where, and in batches

    def _place(self, project: str, entity: str | None) -> Place:
        """The entity and project, which the caller must have. Raises `Forbidden`, `InvalidInput`."""
        entity = self.principal.entity if entity is None else entity
        self.principal.require(entity, project)
        return check_name(entity, "entity"), check_name(project, "project")

    def _maybe_place(self, project: str | None, entity: str | None) -> Place | None:
        return None if project is None else self._place(project, entity)

    def _scan(self, place: Place, after: EvaluationRun | None) -> Iterator[EvaluationRun]:
        while True:
            page = self.ports.store.read(partial(_page, place, after))
            yield from page
            if len(page) < _BATCH:
                return
            after = page[-1]

    def _by_id(self, ids: Sequence[str], place: Place, after: EvaluationRun | None) -> Iterator[EvaluationRun]:
        seen = self.ports.store.read(lambda snapshot: [self._seen(snapshot, run_id, place) for run_id in ids])
        found = sorted((run for run in seen if run is not None), key=_cursor)
        return (run for run in found if after is None or _cursor(run) > _cursor(after))


def _cursor(run: EvaluationRun) -> tuple[object, ...]:
    """Where a run stands in the index `by_project`."""
    return run.started_at, run.id


def _page(place: Place, after: EvaluationRun | None, snapshot: Snapshot) -> Sequence[EvaluationRun]:
    cursor = None if after is None else _cursor(after)
    return snapshot.page(EvaluationRun, "by_project", *place, after=cursor, limit=_BATCH)


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


def _few(ids: Iterable[str]) -> Sequence[str]:
    """The ids, each once. Raises `InvalidInput`."""
    named = tuple(dict.fromkeys(ids))
    if len(named) > MAX_IDS:
        raise InvalidInput.at("ids", msg=f"name at most {MAX_IDS} runs at a time", type="too_long")
    return named


def _checked_reason(reason: str) -> str:
    if not 1 <= len(reason) <= MAX_REASON:
        raise InvalidInput.at("reason", msg=f"must be 1 to {MAX_REASON} characters")
    return reason


def _check_window(limit: int | None, offset: int) -> None:
    values = {"limit": 0 if limit is None else limit, "offset": offset}
    problems = [
        Problem((name,), f"must be a whole number from 0 to {MAX_WINDOW}")
        for name, value in values.items()
        if not 0 <= value <= MAX_WINDOW
    ]
    if problems:
        raise InvalidInput(problems)


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
