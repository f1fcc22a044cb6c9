"""The kinds of jobs, as the queue knows them."""

from collections.abc import Generator
from functools import partial

from modelyard.domain.job import Job, JobKind, JobStatus
from modelyard.domain.training import TRAINING_ENDED, TRAINING_FAILED
from modelyard.platform.evaluations import job as evaluation_job
from modelyard.platform.evaluations import runs as evaluation_runs
from modelyard.platform.jobs.claimed_job import ClaimedJob
from modelyard.platform.jobs.job_type import JobType, JobTypes
from modelyard.platform.runtime import Runtime, Settings
from modelyard.platform.training.billing import book_rest, is_over_budget
from modelyard.platform.training.methods import METHODS
from modelyard.platform.training.run import train
from modelyard.protocols import Tx


def _evaluate(claimed: ClaimedJob) -> Generator[None, None, None]:
    return evaluation_job.evaluate(claimed)  # loaded by the first evaluation


def _end_run(tx: Tx, job: Job) -> None:
    evaluation_runs.end_run(tx, job)


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
        resumable=_failed,
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


JOB_TYPES: JobTypes = {
    job_type.kind: job_type
    for job_type in (
        *map(_training, METHODS),
        _evaluation(JobKind.EVALUATE),
        _evaluation(JobKind.RESCORE),
    )
}
