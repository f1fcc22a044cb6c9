"""Evaluation runs and the references that tie them to what was judged (specification 2.3, 4.5)."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import attrs

from modelyard.domain.canonical import canonical_json
from modelyard.domain.record import Index, Record, frozen_mapping
from modelyard.errors import RunAlreadyFinished

# ---- states ------------------------------------------------------------------------------------------------------


class RunState(StrEnum):
    """Where a run stands."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


# A failed run goes on under the same id when it is resumed.
RUN_TRANSITIONS: Mapping[RunState, frozenset[RunState]] = {
    RunState.RUNNING: frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED}),
    RunState.COMPLETED: frozenset(),
    RunState.FAILED: frozenset({RunState.RUNNING}),
    RunState.CANCELLED: frozenset(),
}


def check_run_transition(now: RunState, then: RunState) -> None:
    """Raise `RunAlreadyFinished` unless a run may go from `now` to `then`."""
    if then not in RUN_TRANSITIONS[now]:
        raise RunAlreadyFinished(f"the evaluation run is {now} and takes no more; rescore it to make a new run")


# ---- runs --------------------------------------------------------------------------------------------------------


@attrs.frozen
class EvaluationRun:
    """One judging of one model. `source_evaluation_run_id` is its provenance when it was made by rescoring.

    `source_known` says whether the source was there, and in its maker's scope, when the run was made; None without one.
    """

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

    @property
    def status(self) -> str:
        """The wire's word: a cancelled run reads as failed, with its reason."""
        return RunState.FAILED.value if self.state is RunState.CANCELLED else self.state.value

    def finished(self, summary: Mapping[str, Any] | None, at: datetime) -> "EvaluationRun":
        """This run, completed. A run that is so already stays as it is, if the summary is absent or equal.

        Raises `RunAlreadyFinished`.
        """
        if self.state is RunState.COMPLETED and (summary is None or _equal(summary, self.summary)):
            return self
        return self._ended(RunState.COMPLETED, at, summary=summary)

    def stopped(self, state: RunState, reason: str, at: datetime) -> "EvaluationRun":
        """This run, failed or cancelled for a reason. A run that is so already keeps its first reason.

        Raises `RunAlreadyFinished`.
        """
        return self if self.state is state else self._ended(state, at, reason=reason)

    def _ended(self, state: RunState, at: datetime, **changes: Any) -> "EvaluationRun":
        check_run_transition(self.state, state)
        return attrs.evolve(self, state=state, finished_at=max(at, self.started_at), **changes)


def _equal(one: Mapping[str, Any], other: Mapping[str, Any] | None) -> bool:
    """Equal as JSON: 1 and true differ."""
    return other is not None and canonical_json(one) == canonical_json(other)


# ---- judging -----------------------------------------------------------------------------------------------------

Scorer = Callable[[str, Mapping[str, Any]], Any]
"""Judges a model's output for a row: True or False, a number, or None for "not to be scored"."""


def exact_match(output: str, row: Mapping[str, Any]) -> bool:
    """Whether the output is the row's `expected`, white space around both aside."""
    return output.strip() == str(row["expected"]).strip()


class Outcome(StrEnum):
    """What came of one row. Every row has exactly one, so the counts add up to the number of rows."""

    SCORED = "scored"
    UNSCORED = "unscored"
    SCORER_ERROR = "scorer_errors"
    MODEL_ERROR = "model_errors"


@attrs.frozen
class RowResult:
    """One row judged. `output` is None when the model failed; `detail` says why there is no score."""

    index: int
    row: Mapping[str, Any]
    outcome: Outcome
    output: str | None = None
    score: float | None = None
    detail: str = ""


def judged(index: int, row: Mapping[str, Any], output: str, value: object) -> RowResult:
    """The result of a row whose scorer answered `value`. NaN and infinity are no scores, nor is text."""
    if value is None:
        return RowResult(index, row, Outcome.UNSCORED, output, detail="the scorer gave no score")
    if not isinstance(value, int | float):
        detail = f"the scorer answered {type(value).__name__}, which is neither bool nor number"
        return RowResult(index, row, Outcome.SCORER_ERROR, output, detail=detail)
    if not math.isfinite(value):
        return RowResult(index, row, Outcome.UNSCORED, output, detail=f"the score is {value}")
    return RowResult(index, row, Outcome.SCORED, output, float(value))


def summarise(scorer: str, rows: Iterable[RowResult]) -> Mapping[str, Any]:
    """Counts and the mean over the scored rows, None when there is none: `scored + unscored + scorer_errors +
    model_errors = trials`.
    """
    counts: Counter[Outcome] = Counter()
    scores = []
    for row in rows:
        counts[row.outcome] += 1
        if row.score is not None:
            scores.append(row.score)
    mean = math.fsum(scores) / len(scores) if scores else None
    return {
        "scorer": scorer,
        "trials": counts.total(),
        **{outcome.value: counts[outcome] for outcome in Outcome},
        "mean": mean,
    }


@attrs.frozen
class EvaluationResult:
    """A finished run with its rows, in order."""

    run: EvaluationRun
    rows: tuple[RowResult, ...]

    @property
    def score(self) -> float | None:
        """The mean over the scored rows, 0 to 1 for bools; None when no row was scored."""
        return self.run.summary["mean"] if self.run.summary else None

    @property
    def errors(self) -> tuple[RowResult, ...]:
        """The rows on which the model or the scorer failed."""
        return tuple(row for row in self.rows if row.outcome in (Outcome.MODEL_ERROR, Outcome.SCORER_ERROR))


RECORDS = (
    Record(
        EvaluationRun,
        "evaluation_runs",
        ("id",),
        indexes={
            "by_entity": Index(("entity",), ("started_at",)),
            "by_project": Index(("entity", "project"), ("started_at",)),
        },
    ),
)
