"""The lineage of an evaluation run as the clients of the evaluation interface know it."""

from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.domain.job import JobKind
from modelyard.domain.lineage import CheckpointLineage, RunLineage, TrainedStep
from modelyard.wire.evaluation import EvaluationRunObject, run_object


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
    """The checkpoint that a run judged: its model, what it was trained from, and the aliases that point to it."""

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


def lineage_object(lineage: RunLineage) -> Mapping[str, Any]:
    """A lineage as plain JSON data, in the members of `RunLineageObject`."""
    return {
        "run": run_object(lineage.run),
        "sources": [run_object(run) for run in lineage.sources],
        "missing_source": lineage.missing_source,
        "derived": [run_object(run) for run in lineage.derived],
        "checkpoint": None if lineage.checkpoint is None else _checkpoint(lineage.checkpoint),
        "has_more": lineage.more,
    }


def _checkpoint(lineage: CheckpointLineage) -> Mapping[str, Any]:
    return {
        "model_id": lineage.model.id,
        "checkpoint_id": lineage.checkpoint.id,
        "step": lineage.checkpoint.step,
        "steps": [_step(step) for step in lineage.steps],
        "aliases": list(lineage.aliases),
    }


def _step(step: TrainedStep) -> Mapping[str, Any]:
    return {**attrs.asdict(step), "kind": step.kind and step.kind.value}
