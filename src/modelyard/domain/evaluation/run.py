"""Evaluation runs: their records, their states, and the results of their rows (specification 2.3, 4.5)."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import attrs

from modelyard.domain.json_text import canonical_json
from modelyard.domain.record import EMPTY, Index, Record, frozen_mapping, sequence_field
from modelyard.errors import InvalidInput, RunAlreadyFinished

MAX_REASON = 2000

MAX_SHARDS = 256

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


def check_summary(summary: Mapping[str, Any] | None) -> None:
    if summary is None:
        return
    try:
        canonical_json(summary)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput.at("summary", msg=f"must be a JSON object: {error}") from None


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
    ),
)
