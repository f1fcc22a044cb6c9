"""Evaluation runs as the clients of the evaluation interface know them (specification 4.5, 7)."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import attrs

from modelyard.domain.evaluation.run import RunState
from modelyard.domain.job import JobKind
from modelyard.http.message import answering, each
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


def run_filters(query: Query) -> Mapping[str, tuple[str, ...]]:
    """Read the filters of a listing of runs. Older clients send `evaluation_refs` and `model_refs`."""
    return {
        "evaluations": query.texts("evaluations", "evaluation_refs"),
        "models": query.texts("models", "model_refs"),
        "ids": query.texts("evaluation_run_ids"),
        "sources": query.texts("source_evaluation_run_ids"),
    }


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


show_run = answering(EvaluationRunObject, evaluation_run_id="id")
"""Describes a run."""


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


@attrs.frozen
class CheckpointLineageObject:
    """The checkpoint that a run evaluated: its model, what it was trained from, and the aliases that point to it."""

    model_id: str
    checkpoint_id: str
    step: int
    steps: tuple[TrainedStepObject, ...]
    aliases: tuple[str, ...]


@attrs.frozen
class RunLineageObject:
    """What a run was rescored from and what was rescored from it, both the nearest first."""

    run: EvaluationRunObject
    sources: tuple[EvaluationRunObject, ...]
    missing_source: str | None
    derived: tuple[EvaluationRunObject, ...]
    checkpoint: CheckpointLineageObject | None
    has_more: bool


show_checkpoint = answering(
    CheckpointLineageObject,
    model_id="model.id",
    checkpoint_id="checkpoint.id",
    step="checkpoint.step",
    steps=each(answering(TrainedStepObject), "steps"),
)
"""Describes the lineage of a checkpoint."""

show_lineage = answering(
    RunLineageObject,
    run=lambda found: show_run(found.run),
    sources=each(show_run, "sources"),
    derived=each(show_run, "derived"),
    checkpoint=lambda found: None if found.checkpoint is None else show_checkpoint(found.checkpoint),
    has_more="more",
)
"""Describes the lineage of a run."""
