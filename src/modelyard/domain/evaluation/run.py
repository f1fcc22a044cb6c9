"""Evaluation runs, and the prediction and the scores of each row (specification 4.5)."""

from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple

import attrs

from modelyard.domain.canonical import canonical_json
from modelyard.domain.frozen_fast import quick_init
from modelyard.domain.record import EMPTY, KEPT, Index, Record, frozen_mapping, sequence_field
from modelyard.errors import Conflict, InvalidInput, RunAlreadyFinished

MAX_REASON = 2000

MAX_SHARDS = 256

PROMPTS = ("system", "prompt")
"""The texts that a run may ask its rows with, in which `{name}` stands for a field of the row."""

# ---- states ------------------------------------------------------------------------------------------------------


class RunState(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


# A failed run continues under the same id when it is resumed.
RUN_TRANSITIONS: Mapping[RunState, frozenset[RunState]] = {
    RunState.RUNNING: frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED}),
    RunState.COMPLETED: frozenset(),
    RunState.FAILED: frozenset({RunState.RUNNING}),
    RunState.CANCELLED: frozenset(),
}


def check_run_transition(now: RunState, then: RunState) -> None:
    if then not in RUN_TRANSITIONS[now]:
        raise RunAlreadyFinished(f"the evaluation run is {now} and takes no more; rescore it to make a new run")


# ---- runs --------------------------------------------------------------------------------------------------------


@attrs.frozen
class EvaluationRun:
    """The evaluation of one model. `source_evaluation_run_id` is the run that it rescores. `source_known` is whether
    the source existed, in the scope of the caller, when the run was created; None if there is none."""

    id: str
    entity: str
    project: str
    evaluation: str
    model: str
    started_at: datetime
    state: RunState = RunState.RUNNING
    finished_at: datetime | None = None
    summary: Mapping[str, Any] | None = attrs.field(converter=attrs.converters.optional(frozen_mapping), default=None)
    source_evaluation_run_id: str | None = None
    source_known: bool | None = None
    reason: str | None = None
    seq: int = sequence_field()

    @property
    def status(self) -> str:
        """The status as clients see it: a cancelled run reads as failed, with its reason."""
        return RunState.FAILED.value if self.state is RunState.CANCELLED else self.state.value

    @property
    def prompts(self) -> Mapping[str, str]:
        """The `PROMPTS` that the rows of a completed run were asked with."""
        kept = (self.summary or EMPTY).get("prompts")
        return {name: kept[name] for name in PROMPTS if isinstance(kept, Mapping) and isinstance(kept.get(name), str)}

    def finished(self, summary: Mapping[str, Any] | None, at: datetime) -> "EvaluationRun":
        """Return this run, completed. A completed run stays as it is, if the summary is absent or equal. Raises
        `RunAlreadyFinished`."""
        if self.state is RunState.COMPLETED and (summary is None or _equal(summary, self.summary)):
            return self
        return self._ended(RunState.COMPLETED, at, summary=summary)

    def stopped(self, state: RunState, reason: str, at: datetime) -> "EvaluationRun":
        """Return this run, failed or cancelled for a reason. A run that has ended so keeps its first reason. Raises
        `RunAlreadyFinished`."""
        return self if self.state is state else self._ended(state, at, reason=reason)

    def reopened(self) -> "EvaluationRun":
        """Return this run, running again after it failed. Raises `RunAlreadyFinished`."""
        check_run_transition(self.state, RunState.RUNNING)
        return attrs.evolve(self, state=RunState.RUNNING, finished_at=None, reason=None)

    def _ended(self, state: RunState, at: datetime, **changes: Any) -> "EvaluationRun":
        check_run_transition(self.state, state)
        return attrs.evolve(self, state=state, finished_at=max(at, self.started_at), **changes)


def _equal(one: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    return other is not None and canonical_json(one) == canonical_json(other)


def check_reason(reason: str) -> str:
    if not 1 <= len(reason) <= MAX_REASON:
        raise InvalidInput.at("reason", msg=f"must be 1 to {MAX_REASON} characters")
    return reason


@attrs.frozen
class RunStatus:
    """A run, and how many of its trials are done; 0 of 0 before it has begun."""

    run: EvaluationRun
    completed_rows: int = 0
    total_rows: int = 0


# ---- rows --------------------------------------------------------------------------------------------------------


class Outcome(StrEnum):
    """The outcome of one row for one scorer. Every row has exactly one, so the counts add up to the trials."""

    SCORED = "scored"
    UNSCORED = "unscored"
    SCORER_ERROR = "scorer_errors"
    MODEL_ERROR = "model_errors"


@attrs.frozen
class RowResult:
    """The result of one trial of one row. `output` is None when the model failed. `scores` are by the names of the
    scorers. `outcome`, `score` and `detail`, the reason why there is no score, are of the first scorer; `score` counts
    a bool as 0 or 1, and is None if there was neither bool nor number. `comments` are what scorers say of their values,
    by their names. `latency` is in seconds, `cost` in USD; they and the tokens are of the model's call, None if nothing
    was reported."""

    index: int
    row: Mapping[str, Any]
    outcome: Outcome
    output: Any = None
    score: float | None = None
    detail: str = ""
    trial: int = 0
    scores: Mapping[str, Any] = EMPTY
    comments: Mapping[str, str] = EMPTY
    latency: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: Decimal | None = None


class Source(StrEnum):
    """Where a prediction came from."""

    CLIENT = "client"
    ENGINE = "engine"
    COPIED = "copied"


@quick_init
@attrs.frozen(weakref_slot=False)
class Prediction:
    """The output of a model for the inputs of one row.

    `output` holds any JSON value under "value"; it is empty while there is none yet, and if the model failed, and
    `error` is the reason. A prediction is open until `finished_at`. Equal rows have the same `row_digest`: those of one
    run are trials of each other, numbered by `trial` from 0. `index` is the row's position in an engine's run, and
    (run, index, trial) is unique there; None for a client's. `model` is a reference; `checkpoint_step` and `price` (per
    token, as recorded in the ledger) are those of the checkpoint that answered, if they are known. `latency` is in
    seconds. `prompt_tokens`, `completion_tokens` and `cost` (USD) are of the model's call only, None if nothing was
    reported. `attempts` counts the calls, `possibly_repeated` those that a kill may have caused to be made twice.
    `copied_from` is the prediction of another run with which this one shares output, latency, usage and cost.
    """

    id: str
    entity: str
    project: str
    model: str
    inputs: Mapping[str, Any] = attrs.field(converter=frozen_mapping)
    row_digest: str
    started_at: datetime
    run_id: str | None = None
    index: int | None = None
    trial: int = 0
    source: Source = Source.CLIENT
    output: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    error: str | None = None
    finished_at: datetime | None = None
    latency: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: Decimal | None = None
    price: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    checkpoint_step: int | None = None
    attempts: int = 1
    possibly_repeated: int = 0
    copied_from: str | None = None
    user_id: str | None = None
    span: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    seq: int = sequence_field()

    def finished(self, output: Mapping[str, Any], at: datetime) -> "Prediction":
        """Return this prediction, finished, with `output` unless that is empty, and its latency. A prediction that is
        finished already stays as it is, if `output` is empty or equal. Raises `Conflict`."""
        if self.finished_at is None:
            seconds = max((at - self.started_at).total_seconds(), 0.0)
            return attrs.evolve(self, output=output or self.output, latency=seconds).closed(at)
        if output and canonical_json(output) != canonical_json(self.output):
            raise Conflict("the prediction is finished and keeps its output")
        return self

    def closed(self, at: datetime) -> "Prediction":
        """Return this prediction, closed because its run ends, without a latency. A missing output reads as null."""
        output = self.output or ({} if self.error else {"value": None})
        return attrs.evolve(self, output=output, finished_at=max(at, self.started_at))


@quick_init
@attrs.frozen(weakref_slot=False)
class Score:
    """The score of one scorer for one prediction.

    `value` holds the value under "value": a bool, a number, a string, None or nested objects of these. It is empty if
    the scorer failed, and `error` is the reason. `comment` is what the scorer says of its value, such as the words of a
    judge. `scorer` is the reference of a scorer's version. The usage of a judge that is a model is booked apart from
    the prediction's: `judge_cost` in USD. `row_digest` and `trial` are the prediction's too, so that the scores of a
    run can be read in the order of its predictions.
    """

    id: str
    entity: str
    project: str
    prediction_id: str
    scorer: str
    created_at: datetime
    run_id: str | None = None
    value: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    error: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    judge_cost: Decimal | None = None
    user_id: str | None = None
    row_digest: str = ""
    trial: int = 0
    comment: str | None = None
    seq: int = sequence_field()


# ---- views -------------------------------------------------------------------------------------------------------


class PredictionView(NamedTuple):
    """The columns of a prediction that metrics need; `whole` looks up its inputs and its output on access. If only
    values are read, it has neither model nor usage."""

    id: str
    row_digest: str
    trial: int
    model: str
    error: str | None
    latency: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cost: Decimal | None
    copied_from: str | None
    possibly_repeated: int
    whole: Callable[[str], Prediction | None]

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The model's inputs; empty once the prediction is deleted."""
        found = self.whole(self.id)
        return EMPTY if found is None else found.inputs

    @property
    def output(self) -> Mapping[str, Any]:
        """The output as `Prediction.output` has it; empty once the prediction is deleted."""
        found = self.whole(self.id)
        return EMPTY if found is None else found.output


class ScoreView(NamedTuple):
    """The columns of a score that metrics need. If only values are read, it has no usage."""

    id: str
    row_digest: str
    trial: int
    prediction_id: str
    seq: int
    scorer: str
    value: Mapping[str, Any]
    error: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    judge_cost: Decimal | None


RECORDS = (
    Record(
        EvaluationRun,
        "evaluation_runs",
        ("id",),
        indexes={
            "all": Index(()),
            "by_entity": Index(("entity",)),
            "by_project": Index(("entity", "project")),
            "by_source": Index(("source_evaluation_run_id",)),
            "by_model": Index(("model",)),
        },
        sequence="seq",
        texts=KEPT,
    ),
    Record(
        Prediction,
        "predictions",
        ("id",),
        unique={"place": ("run_id", "index", "trial")},
        indexes={
            "by_project": Index(("entity", "project")),
            "by_run": Index(("run_id",)),
            "by_index": Index(("run_id",), ("index", "trial")),
            "open_first": Index(("run_id",), ("finished_at",)),
            "by_row": Index(("run_id",), ("row_digest", "trial", "id"), also=("error",)),
            "by_entity": Index(("entity",), ("project",)),
        },
        sequence="seq",
        texts=KEPT,
    ),
    Record(
        Score,
        "scores",
        ("id",),
        indexes={
            "by_project": Index(("entity", "project")),
            "by_run": Index(("run_id",)),
            "by_row": Index(
                ("run_id",),
                ("row_digest", "trial", "prediction_id", "id"),
                also=("scorer", "value", "error"),
            ),
            "by_prediction": Index(("run_id", "row_digest", "trial", "prediction_id"), ("id",)),
            "by_entity": Index(("entity",), ("project",)),
        },
        sequence="seq",
        texts=KEPT,
    ),
)
