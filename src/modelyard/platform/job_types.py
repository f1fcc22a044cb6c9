"""The kinds of jobs, as the queue knows them."""

from collections.abc import Generator
from functools import partial

from modelyard.domain import batch
from modelyard.domain.job import Job, JobKind, JobProgress, JobStatus
from modelyard.domain.training import TRAINING_ENDED, TRAINING_FAILED
from modelyard.platform.batches import ends as batch_ends
from modelyard.platform.batches import job as batch_job
from modelyard.platform.evaluations import job as evaluation_job
from modelyard.platform.evaluations import shard_ends
from modelyard.platform.jobs.claimed_job import ClaimedJob
from modelyard.platform.jobs.job_type import JobType, JobTypes
from modelyard.platform.jobs.leases import latest_job
from modelyard.platform.jobs.queue import request_cancel
from modelyard.platform.paging import get_or_none
from modelyard.platform.responses import background
from modelyard.platform.runtime import Runtime, Settings
from modelyard.platform.training import rounds
from modelyard.platform.training.billing import book_rest, is_over_budget
from modelyard.platform.training.methods import METHODS
from modelyard.platform.training.run import train
from modelyard.platform.training.submission import CHILD, RUN
from modelyard.protocols import Tx


def _evaluate(claimed: ClaimedJob) -> Generator[None, None, None]:
    return evaluation_job.evaluate(claimed)  # loaded by the first evaluation


def _end_run(tx: Tx, job: Job) -> None:
    shard_ends.end_run(tx, job)


def _stop_others(runtime: Runtime, job: Job) -> None:
    shard_ends.stop_others(runtime, job)


def _shares_files(runtime: Runtime, job: Job) -> bool:
    return shard_ends.shares_files(runtime, job)


def _loop(claimed: ClaimedJob) -> Generator[None, None, None]:
    return rounds.run_loop(claimed)  # loaded by the first loop


def _end_loop(tx: Tx, job: Job) -> None:
    """Cancel the job that a loop waits for, if it has been ended while it waited."""
    child = get_or_none(tx, Job, job.result[CHILD]) if CHILD in job.result else None
    run = latest_job(tx, job.result[RUN]) if RUN in job.result else None
    for waited in (child, run):
        if waited is not None and not waited.ended:
            by = tx.get(JobProgress, job.id).cancelled_by or "the end of its loop"
            request_cancel(tx, JOB_TYPES, waited.id, job.id, by, job.ended_at or job.created_at)


def _respond(claimed: ClaimedJob) -> Generator[None, None, None]:
    return background.respond(claimed)  # loaded by the first response in the background


def _end_response(tx: Tx, job: Job) -> None:
    background.end_with_job(tx, job)


def _answer_batch(claimed: ClaimedJob) -> Generator[None, None, None]:
    return batch_job.run_batch(claimed)  # loaded by the first batch


def _end_batch(tx: Tx, job: Job) -> None:
    batch_ends.end_batch(tx, job)


def _keeps_files(runtime: Runtime, job: Job) -> bool:
    return batch_ends.keeps_files(runtime, job)


def _failed(job: Job) -> bool:
    return job.status is JobStatus.FAILED


def _trains(kind: JobKind, runtime: Runtime, base_model: str) -> bool:
    return any(kind in trainer.methods(base_model) for trainer in runtime.trainers)


def _answers(runtime: Runtime, base_model: str) -> bool:
    return not base_model or any(entry.id == base_model for entry in runtime.backend.entries())


def _longest_row(settings: Settings) -> float:
    return settings.longest_row


def _evaluation(kind: JobKind) -> JobType:
    return JobType(
        kind,
        _evaluate,
        "evaluation_ended",
        "evaluation_failed",
        _end_run,
        after_end=_stop_others,
        resumable=_failed,
        shares_files=_shares_files,
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
    _loop,
    TRAINING_ENDED,
    TRAINING_FAILED,
    _end_loop,
    resumable=is_over_budget,
    can_run=_answers,
    longest_pause=_longest_row,
)

_RESPONSE = JobType(
    JobKind.RESPONSE,
    _respond,
    "response_ended",
    "response_failed",
    _end_response,
    found_by_lane=True,
    can_run=_answers,
    longest_pause=_longest_row,
)

_BATCH = JobType(
    JobKind.BATCH,
    _answer_batch,
    batch.ENDED,
    batch.FAILED,
    _end_batch,
    shares_files=_keeps_files,
    longest_pause=_longest_row,
)

JOB_TYPES: JobTypes = {
    job_type.kind: job_type
    for job_type in (
        *map(_training, METHODS),
        _LOOP,
        _RESPONSE,
        _BATCH,
        _evaluation(JobKind.EVALUATE),
        _evaluation(JobKind.RESCORE),
    )
}
