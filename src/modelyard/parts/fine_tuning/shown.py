"""Training jobs in the words of fine-tuning services, and the names of their models."""

import re
from typing import Literal

from modelyard.domain.identity import NAME
from modelyard.domain.job import Job, JobProgress, JobStatus, QueueState
from modelyard.domain.models import Model
from modelyard.domain.record import EMPTY
from modelyard.domain.training import TrainingJob
from modelyard.errors import InvalidInput
from modelyard.parts.fine_tuning.records import REQUEST, FineTuningJob
from modelyard.parts.fine_tuning.result_file import RESULTS
from modelyard.parts.loops.part import LOOP
from modelyard.platform.paging import get_or_none, iter_index
from modelyard.protocols import Snapshot

MAX_SUFFIX, MAX_BASE, TAIL = 64, 40, 8
"""Characters of a new model's name: its suffix, that of its base model, and what makes it the only one."""


def as_fine_tuning(snapshot: Snapshot, job: Job, face: TrainingJob) -> FineTuningJob:
    model = get_or_none(snapshot, Model, job.subject)
    done = job.status is JobStatus.SUCCEEDED and face.step is not None and model is not None
    tuned = f"{full_name(model)}:step{face.step}" if done and model is not None else None
    results = job.result.get(RESULTS)
    written = () if results is None else (str(results["file"]),)
    tokens = None if results is None else results["tokens"]
    requested, pausing = job.spec.get(REQUEST, EMPTY), _pausing(snapshot, job)
    return FineTuningJob(face, job.base_model, tuned, requested, written, tokens, pausing)


def _pausing(snapshot: Snapshot, job: Job) -> Literal["pausing", "paused"] | None:
    if job.place is QueueState.PAUSED:
        return "paused"
    progress = None if job.ended else get_or_none(snapshot, JobProgress, job.id)
    return "pausing" if progress is not None and progress.paused_by else None


def full_name(model: Model) -> str:
    return f"{model.entity}/{model.project}/{model.name}"


def jobs_of(snapshot: Snapshot, job: Job) -> set[str]:
    """Return the ids of the jobs that made the checkpoints of a job: itself, or those of a loop's rounds."""
    if job.kind != LOOP:
        return {job.id}
    found = iter_index(snapshot, Job, "of_lane", job.subject)
    return {other.id for other in found if other.spec.get("loop_id") == job.id}


def name_of_model(base_model: str, suffix: str | None, model_id: str) -> str:
    """Return the name of a new model. Raises `InvalidInput` if the suffix cannot be a part of it."""
    if suffix is not None and not (NAME.fullmatch(suffix) and len(suffix) <= MAX_SUFFIX):
        raise InvalidInput.at("suffix", msg=f"must be 1 to {MAX_SUFFIX} characters of A-Z a-z 0-9 . _ -")
    base = re.sub(r"[^A-Za-z0-9._-]", "-", base_model.rpartition("/")[2])[:MAX_BASE]
    return "-".join(["ft", base, *([suffix] if suffix else []), model_id[-TAIL:]])
