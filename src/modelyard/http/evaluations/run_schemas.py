"""Evaluation runs as the clients of the evaluation interface know them (specification 4.5, 7)."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Self

import attrs

from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.domain.job import JobKind
from modelyard.domain.lineage import CheckpointLineage, RunLineage, TrainedStep
from modelyard.http.message import answer_from
from modelyard.http.query import Query

# ---- requests


@attrs.frozen
class EvaluationRunCreate:
    """The body that creates a run."""

    evaluation: str
    model: str
    source_evaluation_run_id: str | None = None


@attrs.frozen
class EvaluationRunFinish:
    """The body that completes a run; it may be left out."""

    summary: Mapping[str, Any] | None = None


@attrs.frozen
class EvaluationRunStop:
    """The body that cancels or fails a run; it may be left out."""

    reason: str | None = None


@attrs.frozen
class RunQuery:
    """Which runs to list. An empty filter keeps all."""

    evaluations: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    limit: int | None = None
    offset: int = 0


def parse_run_query(parameters: Mapping[str, Sequence[str]]) -> RunQuery:
    """Read the query of a listing. Raises `InvalidInput` naming every parameter at fault.

    Older clients send `evaluation_refs` and `model_refs`.
    """
    query = Query(parameters)
    limit, offset = query.whole("limit"), query.whole("offset") or 0
    found = RunQuery(
        evaluations=query.texts("evaluations", "evaluation_refs"),
        models=query.texts("models", "model_refs"),
        ids=query.texts("evaluation_run_ids"),
        sources=query.texts("source_evaluation_run_ids"),
        limit=limit,
        offset=offset,
    )
    query.check()
    return found


def parse_ids(parameters: Mapping[str, Sequence[str]], name: str = "evaluation_run_ids") -> tuple[str, ...]:
    """Read the ids of a deletion, at least one. Raises `InvalidInput`."""
    query = Query(parameters)
    ids = query.texts(name, required=True)
    query.check()
    return ids


# ---- responses


@attrs.frozen
class EvaluationRunCreated:
    """The answer to a creation."""

    evaluation_run_id: str


@attrs.frozen
class EvaluationRunObject:
    """A run.

    The members after `source_evaluation_run_id` are our additions: the exact `state`, the `reason` of a run that did
    not complete, and whether the source run was known.
    """

    evaluation_run_id: str
    evaluation: str
    model: str
    status: Literal["running", "completed", "failed"]
    started_at: datetime
    finished_at: datetime | None
    summary: Mapping[str, Any] | None
    source_evaluation_run_id: str | None
    state: RunState
    reason: str | None
    source_known: bool | None

    @classmethod
    def of(cls, run: EvaluationRun) -> Self:
        """Describe a run."""
        return answer_from(cls, run, evaluation_run_id=run.id)


@attrs.frozen
class Success:
    """The answer to an action."""

    success: bool


@attrs.frozen
class NumDeleted:
    """How many were deleted."""

    num_deleted: int


@attrs.frozen
class TrainedStepObject:
    """How one checkpoint came to be; of one that was `deleted` only the step is known."""

    step: int
    digest: str | None
    job_id: str | None
    kind: JobKind | None
    data_digest: str | None
    data_url: str | None
    deleted: bool

    @classmethod
    def of(cls, step: TrainedStep) -> Self:
        """Describe a step."""
        return answer_from(cls, step)


@attrs.frozen
class CheckpointLineageObject:
    """The checkpoint that a run evaluated: its model, what it was trained from, and the aliases that point to it."""

    model_id: str
    checkpoint_id: str
    step: int
    steps: tuple[TrainedStepObject, ...]
    aliases: tuple[str, ...]

    @classmethod
    def of(cls, lineage: CheckpointLineage) -> Self:
        """Describe the lineage of a checkpoint."""
        checkpoint, steps = lineage.checkpoint, tuple(map(TrainedStepObject.of, lineage.steps))
        return cls(lineage.model.id, checkpoint.id, checkpoint.step, steps, lineage.aliases)


@attrs.frozen
class RunLineageObject:
    """What a run was rescored from and what was rescored from it, both the nearest first."""

    run: EvaluationRunObject
    sources: tuple[EvaluationRunObject, ...]
    missing_source: str | None
    derived: tuple[EvaluationRunObject, ...]
    checkpoint: CheckpointLineageObject | None
    has_more: bool

    @classmethod
    def of(cls, lineage: RunLineage) -> Self:
        """Describe the lineage of a run."""
        return cls(
            run=EvaluationRunObject.of(lineage.run),
            sources=tuple(map(EvaluationRunObject.of, lineage.sources)),
            missing_source=lineage.missing_source,
            derived=tuple(map(EvaluationRunObject.of, lineage.derived)),
            checkpoint=None if lineage.checkpoint is None else CheckpointLineageObject.of(lineage.checkpoint),
            has_more=lineage.more,
        )
