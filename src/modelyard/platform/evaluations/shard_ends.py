"""What depends on the end of a shard: the other shards of its run, the run, and the rows that they share."""

from collections import defaultdict

from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.domain.evaluation.shards import shard_of
from modelyard.domain.job import Job, JobProgress, JobStatus
from modelyard.platform.evaluations.shards import others_of
from modelyard.platform.jobs.leases import latest_job
from modelyard.platform.jobs.queue import announce, cancel_jobs
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Tx

ANOTHER = "the failure of another shard"
"""Who cancels the shards of a run of which one has failed."""


def end_run(tx: Tx, job: Job) -> None:
    """End the run of a job in the transaction that ends the job, if this was its last shard and not all succeeded."""
    jobs = [*others_of(tx, job), job]
    if job.ended_at is None or not all(one.ended for one in jobs):
        return
    lost = [one for one in jobs if one.status is not JobStatus.SUCCEEDED]
    run = get_or_none(tx, EvaluationRun, job.subject)
    if not lost or run is None or run.state is not RunState.RUNNING:
        return
    failed = [one for one in lost if one.status is JobStatus.FAILED]
    state = RunState.FAILED if failed else RunState.CANCELLED
    reason = run.reason or (failed or lost)[0].error_message or state.value
    tx.replace(run.stopped(state, reason, job.ended_at))


def stop_others(runtime: Runtime, job: Job) -> None:
    """Have the other shards end once one was cancelled or has failed; those that are queued end at once."""
    if job.status is JobStatus.SUCCEEDED or shard_of(job)[1] == 1:
        return
    event_ids, now = defaultdict[str, str](runtime.ids), runtime.clock.now()

    def step(tx: Tx) -> list[Job]:
        latest = latest_job(tx, job.lane)
        if latest is None or latest.id != job.id:  # the run was resumed, or deleted
            return []
        by = tx.get(JobProgress, job.id).cancelled_by or ANOTHER
        return cancel_jobs(tx, runtime.job_types, others_of(tx, job), event_ids, by, now)

    for ended in runtime.store.transact(step):
        announce(runtime, ended)


def shares_files(runtime: Runtime, job: Job) -> bool:
    """Return whether other shards, or those of a run that is resumed, still read the rows of one that has ended."""
    if shard_of(job)[1] == 1:
        return False
    run = runtime.store.read(lambda snapshot: get_or_none(snapshot, EvaluationRun, job.subject))
    return run is not None and run.state in (RunState.RUNNING, RunState.FAILED)
