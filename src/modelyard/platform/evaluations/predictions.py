"""Predictions and scores: the transactions that store them, and their resources (specification 4.5). Only a running run
accepts any. They can also be without a run."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.objects import ObjectKind
from modelyard.domain.evaluation.run import EvaluationRun, Prediction, RunState, Score
from modelyard.domain.identity import Principal
from modelyard.domain.record import EMPTY
from modelyard.errors import InvalidInput, RunAlreadyFinished
from modelyard.formats.json import as_json
from modelyard.platform.evaluations.references import Namespace, References, ScopedReader
from modelyard.platform.evaluations.stored_run import scores_of
from modelyard.platform.listing import BATCH, Cursor, Listing
from modelyard.platform.owned import store_texts
from modelyard.platform.paging import cursor_at, index_listing, unique_ids
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

K = TypeVar("K", Prediction, Score)

_BEYOND = 2**62


# ---- steps


def check_running(run: EvaluationRun) -> None:
    if run.state is not RunState.RUNNING:
        raise RunAlreadyFinished(f"the evaluation run is {run.state} and takes no more; rescore it to make a new run")


def add_prediction(tx: Tx, prediction: Prediction) -> Prediction:
    """Store a prediction. If it has no index, it is the next trial of its row in the run. Raises `RecordNotFound`,
    `RunAlreadyFinished`, and `RecordConflict` when its index and trial are taken."""
    if prediction.run_id is not None:
        check_running(tx.get(EvaluationRun, prediction.run_id))
        if prediction.index is None:
            prediction = attrs.evolve(prediction, trial=_next_trial(tx, prediction.run_id, prediction.row_digest))
    tx.add(prediction)
    return prediction


def _next_trial(tx: Tx, run_id: str, row_digest: str) -> int:
    last = tx.page(Prediction, "by_row", run_id, after=(row_digest, _BEYOND, ""), limit=1, descending=True)
    return last[0].trial + 1 if last and last[0].row_digest == row_digest else 0


def finish_prediction(tx: Tx, prediction: Prediction, output: Mapping[str, Any], at: datetime) -> Prediction:
    finished = prediction.finished(output, at)
    if finished is not prediction:
        _check_takes(tx, prediction.run_id)
        tx.replace(finished)
    return finished


def add_score(tx: Tx, score: Score) -> Score:
    """Store a score of a prediction, with its run and row. Raises `RecordNotFound`, `RunAlreadyFinished`, and
    `InvalidInput` when it names another run."""
    prediction = tx.get(Prediction, score.prediction_id)
    if score.run_id not in (None, prediction.run_id):
        raise InvalidInput.at("evaluation_run_id", msg="must be the run of the prediction, or left out")
    _check_takes(tx, prediction.run_id)
    row_digest, trial = prediction.row_digest, prediction.trial
    score = attrs.evolve(score, run_id=prediction.run_id, row_digest=row_digest, trial=trial)
    tx.add(score)
    return score


def close_open(tx: Tx, run_id: str, at: datetime) -> bool:
    first = tx.page(Prediction, "open_first", run_id, limit=BATCH)
    waiting = [prediction for prediction in first if prediction.finished_at is None]
    for prediction in waiting:
        tx.replace(prediction.closed(at))
    return len(waiting) < BATCH


def remove_parts(tx: Tx, run_id: str, limit: int) -> int:
    scores = tx.page(Score, "by_run", run_id, limit=limit)
    predictions = tx.page(Prediction, "by_run", run_id, limit=limit - len(scores))
    for score in scores:
        tx.remove(Score, score.id)
    for prediction in predictions:
        tx.remove(Prediction, prediction.id)
    return len(scores) + len(predictions)


def _check_takes(snapshot: Snapshot, run_id: str | None) -> None:
    if run_id is not None:
        check_running(snapshot.get(EvaluationRun, run_id))


# ---- resources


class _Kept(Generic[K]):
    """The methods that predictions and scores have in common."""

    _cls: type[K]
    _name: str

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal, self._reader = runtime, principal, ScopedReader(runtime, principal)
        self._references = References(runtime.settings.reference_mode, principal)

    def get(self, id: str, *, project: str | None = None, entity: str | None = None) -> K:
        """Return a record, which must be in the project if one is named. Raises `NotFound`."""
        namespace = self._reader.maybe_place(project, entity)
        return self._runtime.store.read(lambda snapshot: self._found(snapshot, id, namespace))

    def list(self, *, project: str | None = None, entity: str | None = None, run_id: str | None = None) -> Listing[K]:
        """List the records of a project, or of one run, in the order in which they were created. Raises `Forbidden`."""
        namespace = self._reader.place(project, entity)
        index, where = ("by_project", namespace) if run_id is None else ("by_run", self._visible(run_id, namespace))
        place = partial(self._place, index, namespace)
        return index_listing(self._runtime, self._cls, index, *where, place=place)

    def _visible(self, run_id: str, namespace: Namespace) -> tuple[str]:
        see = self._reader.see
        seen = self._runtime.store.read(lambda snapshot: see(snapshot, EvaluationRun, run_id, namespace))
        return ("" if seen is None else run_id,)

    def _place(self, index: str, namespace: Namespace, id: str, snapshot: Snapshot) -> Cursor:
        return cursor_at(self._cls, index, self._found(snapshot, id, namespace))

    def delete(self, ids: Iterable[str], *, project: str | None = None, entity: str | None = None) -> int:
        """Delete records for ever, with the scores of predictions; returns how many of `ids` there were. Raises
        `RunAlreadyFinished`, and deletes nothing, when one belongs to a run that is not running."""
        namespace, wanted = self._reader.place(project, entity), unique_ids(ids)
        return self._runtime.store.transact(lambda tx: sum(self._delete(tx, each, namespace) for each in wanted))

    def _delete(self, tx: Tx, id: str, namespace: Namespace) -> bool:
        found = self._reader.see(tx, self._cls, id, namespace)
        if found is None:
            return False
        _check_takes(tx, found.run_id)
        for score in self._scores(tx, found):
            tx.remove(Score, score.id)
        tx.remove(self._cls, id)
        return True

    def _scores(self, snapshot: Snapshot, found: K) -> Sequence[Score]:
        return ()

    def _found(self, snapshot: Snapshot, id: str, namespace: Namespace | None) -> K:
        return self._reader.find(snapshot, self._cls, self._name, id, namespace)

    def _check_run(self, snapshot: Snapshot, run_id: str | None, namespace: Namespace) -> None:
        if run_id is not None:
            self._reader.find(snapshot, EvaluationRun, "Evaluation run", run_id, namespace)


class Predictions(_Kept[Prediction]):
    """The predictions that a principal may see.

    predictions = platform.evaluations.predictions
    prediction = predictions.create(model_ref, {"prompt": "hi"}, "hello", run_id=run.id, project="support")
    """

    _cls, _name = Prediction, "Prediction"

    def create(
        self,
        model: str,
        inputs: Mapping[str, Any],
        output: Any = None,
        *,
        run_id: str | None = None,
        spans: Sequence[Mapping[str, str]] = (),
        project: str | None = None,
        entity: str | None = None,
    ) -> Prediction:
        """Store the output of a model, named by its reference, for `inputs`; it is open until it is finished. `output`
        is any JSON value; None means that it comes later. `spans` name the traces of the call. Raises `NotFound`,
        `RunAlreadyFinished`, and `InvalidInput` naming the field at fault."""
        inputs = as_json(inputs, at=("inputs",))
        namespace = self._reader.place(project, entity)
        new = Prediction(
            self._runtime.ids(),
            *namespace,
            model,
            inputs,
            digest(inputs),
            self._runtime.clock.now(),
            run_id=run_id,
            output=_answer(output),
            span={"genai_span_ref": spans} if spans else EMPTY,
        )
        return store_texts(self._runtime, new.entity, partial(self._create, new, namespace))

    def _create(self, new: Prediction, namespace: Namespace, tx: Tx) -> Prediction:
        self._references.check(tx, model=(ObjectKind.MODEL, new.model))
        self._check_run(tx, new.run_id, namespace)
        add_prediction(tx, new)
        return tx.get(Prediction, new.id)  # as the store returns it: deeply frozen

    def finish(
        self, id: str, output: Any = None, *, project: str | None = None, entity: str | None = None
    ) -> Prediction:
        """Finish a prediction, with its output if it has none yet. Doing it again with an equal output, or with none,
        changes nothing. Raises `NotFound`, `RunAlreadyFinished`, and `Conflict` for another output."""
        answer, namespace, now = _answer(output), self._reader.maybe_place(project, entity), self._runtime.clock.now()
        return self._runtime.store.transact(
            lambda tx: finish_prediction(tx, self._found(tx, id, namespace), answer, now)
        )

    def _scores(self, snapshot: Snapshot, found: Prediction) -> Sequence[Score]:
        return scores_of(snapshot, found)


def _answer(output: Any) -> Mapping[str, Any]:
    if output is None:
        return EMPTY
    return {"value": as_json(output, at=("output",))}


class Scores(_Kept[Score]):
    """The scores that a principal may see.

    platform.evaluations.scores.create(prediction.id, scorer_ref, {"correct": True}, project="p")
    """

    _cls, _name = Score, "Score"

    def create(
        self,
        prediction_id: str,
        scorer: str,
        value: Any,
        *,
        run_id: str | None = None,
        project: str | None = None,
        entity: str | None = None,
    ) -> Score:
        """Store the score of a prediction by a scorer, named by its reference. `value` is a bool, a number, a string,
        None or an object. `run_id`, if it is given, must be the prediction's. Raises `NotFound`, `RunAlreadyFinished`,
        and `InvalidInput` naming the field at fault."""
        value, namespace = _checked_value(value), self._reader.place(project, entity)
        new = Score(
            self._runtime.ids(),
            *namespace,
            prediction_id,
            scorer,
            self._runtime.clock.now(),
            run_id=run_id,
            value={"value": value},
        )
        return store_texts(self._runtime, new.entity, partial(self._create, new, namespace))

    def _create(self, new: Score, namespace: Namespace, tx: Tx) -> Score:
        self._references.check(tx, scorer=(ObjectKind.SCORER, new.scorer))
        self._reader.find(tx, Prediction, "Prediction", new.prediction_id, namespace)
        self._check_run(tx, new.run_id, namespace)
        add_score(tx, new)
        return tx.get(Score, new.id)  # as the store returns it: deeply frozen


def _checked_value(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str | Mapping | None):
        raise InvalidInput.at("value", msg="must be a bool, a number, a string, null or an object")
    return as_json(value, at=("value",))
