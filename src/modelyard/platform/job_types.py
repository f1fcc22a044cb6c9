"""The kinds of jobs, as the queue knows them. The work of most is loaded by the first job of the kind."""

from functools import partial

from modelyard.domain.job import Job, JobKind, JobProgress
from modelyard.domain.training import TRAINING_ENDED, TRAINING_FAILED
from modelyard.lazy import calls
from modelyard.parts.batches import ends as batch_ends
from modelyard.parts.batches import job as batch_job
from modelyard.parts.batches import records as batch
from modelyard.parts.responses import background
from modelyard.parts.tinker import held_run, silent_sessions
from modelyard.parts.tinker import job as run_job
from modelyard.parts.traffic import job as collection_job
from modelyard.parts.traffic import records as collection
from modelyard.platform.evaluations import job as evaluation_job
from modelyard.platform.evaluations import shards
from modelyard.platform.jobs.claims import latest_job
from modelyard.platform.jobs.job_type import JobType, JobTypes
from modelyard.platform.jobs.queue import request_cancel
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime, Settings
from modelyard.platform.training import rounds
from modelyard.platform.training.billing import book_rest, is_over_budget
from modelyard.platform.training.methods import METHODS
from modelyard.platform.training.run import train
from modelyard.platform.training.submission import CHILD, RUN
from modelyard.protocols import Tx


def _end_loop(tx: Tx, job: Job) -> None:
    """Cancel the job that a loop waits for, if it has been ended while it waited."""
    child = get_or_none(tx, Job, job.result[CHILD]) if CHILD in job.result else None
    run = latest_job(tx, job.result[RUN]) if RUN in job.result else None
    for waited in (child, run):
        if waited is not None and not waited.ended:
            by = tx.get(JobProgress, job.id).cancelled_by or "the end of its loop"
            request_cancel(tx, JOB_TYPES, waited.id, job.id, by, job.ended_at or job.created_at)


def _trains_by_steps(runtime: Runtime, base_model: str) -> bool:
    return held_run.step_trainer(runtime, base_model) is not None


def _trains(kind: JobKind, runtime: Runtime, base_model: str) -> bool:
    return any(kind in trainer.methods(base_model) for trainer in runtime.trainers)


def _answers(runtime: Runtime, base_model: str) -> bool:
    return not base_model or any(entry.id == base_model for entry in runtime.backend.entries())


def _longest_row(settings: Settings) -> float:
    return settings.longest_row


def _evaluation(kind: JobKind) -> JobType:
    return JobType(
        kind,
        calls(evaluation_job, "evaluate"),
        "evaluation_ended",
        "evaluation_failed",
        calls(shards, "end_run"),
        after_end=calls(shards, "stop_others"),
        resumable=calls(shards, "has_failed"),
        shares_files=calls(shards, "shares_files"),
        found_by_lane=True,
        can_run=_answers,
        longest_pause=_longest_row,
    )


def _training(kind: JobKind) -> JobType:
    return JobType(
        kind,
        train,
        TRAINING_ENDED,
        TRAINING_FAILED,
        book_rest,
        resumable=is_over_budget,
        can_run=partial(_trains, kind),
    )


_LOOP = JobType(
    JobKind.LOOP,
    calls(rounds, "run_loop"),
    TRAINING_ENDED,
    TRAINING_FAILED,
    _end_loop,
    resumable=is_over_budget,
    can_run=_answers,
    longest_pause=_longest_row,
)

_RESPONSE = JobType(
    JobKind.RESPONSE,
    calls(background, "respond"),
    "response_ended",
    "response_failed",
    calls(background, "end_with_job"),
    found_by_lane=True,
    can_run=_answers,
    longest_pause=_longest_row,
)

_BATCH = JobType(
    JobKind.BATCH,
    calls(batch_job, "run_batch"),
    batch.ENDED,
    batch.FAILED,
    calls(batch_ends, "end_batch"),
    shares_files=calls(batch_ends, "keeps_files"),
    longest_pause=_longest_row,
)

_COLLECT = JobType(
    JobKind.COLLECT, calls(collection_job, "collect"), collection.ENDED, collection.FAILED, longest_pause=_longest_row
)

_COMMANDS = JobType(
    JobKind.COMMANDS,
    calls(run_job, "apply_commands"),
    TRAINING_ENDED,
    TRAINING_FAILED,
    calls(run_job, "end_with_job"),
    can_run=_trains_by_steps,
    tidy=calls(silent_sessions, "tidy_sessions"),
)

JOB_TYPES: JobTypes = {
    job_type.kind: job_type
    for job_type in (
        *map(_training, METHODS),
        _LOOP,
        _RESPONSE,
        _BATCH,
        _COMMANDS,
        _COLLECT,
        _evaluation(JobKind.EVALUATE),
        _evaluation(JobKind.RESCORE),
    )
}
