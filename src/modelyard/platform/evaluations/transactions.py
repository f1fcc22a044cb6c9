"""What ties an evaluation run to the job that works on it, as functions of a transaction.

The jobs of a run queue up on the run's id, so that at most one is at work on it.
"""

from modelyard.domain.evaluation.run import EvaluationRun, RunState, RunStatus
from modelyard.domain.job import Job, JobProgress, JobStatus
from modelyard.errors import Conflict
from modelyard.platform.jobs.queue import latest_job
from modelyard.platform.paging import get_or_none
from modelyard.protocols import Snapshot, Tx

INTERRUPTED = "interrupted"
"""The reason of a run whose owner is gone: the functions that it needs are gone with it."""


def engine_job(snapshot: Snapshot, run_id: str) -> Job:
    """The last job of a run. Raises `Conflict` for a run that the engine did not make."""
    job = latest_job(snapshot, run_id)
    if job is None:
        raise Conflict(f"evaluation run {run_id} was not made by the engine: nothing works on it here")
    return job


def check_idle(snapshot: Snapshot, run_id: str) -> None:
    """Raise `Conflict` while the engine works on a run, or is to."""
    job = latest_job(snapshot, run_id)
    if job is not None and not job.ended:
        raise Conflict(f"the engine works on evaluation run {run_id}; wait for it, or cancel it")


def resumable(job: Job) -> bool:
    """Whether a job has ended in a way that its run can go on from."""
    return job.status is JobStatus.FAILED


def end_run(tx: Tx, job: Job) -> None:
    """The run of a job that did not succeed ends with it, in the same transaction."""
    if job.status is JobStatus.SUCCEEDED or job.ended_at is None:
        return
    run = get_or_none(tx, EvaluationRun, job.lane)
    if run is not None and run.state is RunState.RUNNING:
        state = RunState.CANCELLED if job.status is JobStatus.CANCELLED else RunState.FAILED
        tx.replace(run.stopped(state, run.reason or job.error_message or state.value, job.ended_at))


def run_status(snapshot: Snapshot, run: EvaluationRun) -> RunStatus:
    """The status of a run: of one that the engine works on, by its job."""
    job = latest_job(snapshot, run.id)
    progress = None if job is None else get_or_none(snapshot, JobProgress, job.id)
    if progress is None or progress.total is None:
        return RunStatus(run)
    return RunStatus(run, progress.step, progress.total)
