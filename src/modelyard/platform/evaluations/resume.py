"""Resuming a run: with which functions, and by which jobs."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import attrs

from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobKind, JobProgress, JobStatus
from modelyard.errors import Conflict, InvalidInput, Problem
from modelyard.lazy import log
from modelyard.platform.evaluations.row_evaluation import check_signature
from modelyard.platform.evaluations.runs import check_idle, find_run
from modelyard.platform.evaluations.scorers import (
    LocalCallables,
    ModelFunction,
    NamedScorer,
    callables_of,
    needs_function,
)
from modelyard.platform.evaluations.shards import failed_rows, last_jobs
from modelyard.platform.jobs.claims import ClaimedJob, claim, ready_in_lane, requester_spec
from modelyard.platform.jobs.queue import enqueue
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

# ---- with which functions


def check_portable(job: Job) -> None:
    if _needs_model(job) or any(map(needs_function, job.spec["scorers"])):
        msg = "was begun with functions, which no worker has; resume it in Python, with the functions"
        raise Conflict(f"evaluation run {job.subject} {msg}")


def callables_for(job: Job, model: ModelFunction | None, scorers: Sequence[NamedScorer]) -> LocalCallables:
    given = {scorer.name: scorer for scorer in scorers}
    problems, namespace = [], (job.entity, job.project)
    for kept in job.spec["scorers"]:
        scorer = given.get(kept["name"])
        if scorer is None and needs_function(kept):
            problems.append(Problem(("scorers", kept["name"]), "the run was begun with this function; pass it again"))
        elif scorer is not None and str(scorer.ref(namespace)) != kept["ref"]:
            problems.append(
                Problem(("scorers", kept["name"]), "has changed since the run began; rescore the run instead")
            )
    if _needs_model(job) and model is None:
        problems.append(Problem(("model",), "the run was begun with a function as its model; pass it again"))
    if model is not None and not _needs_model(job):
        problems.append(Problem(("model",), "the run needs no function: it resumes with the model that it names"))
    if problems:
        raise InvalidInput(problems)
    if model is not None:
        check_signature(model, ("row",), "model")
    return callables_of(model, scorers)


def _needs_model(job: Job) -> bool:
    return job.kind == JobKind.EVALUATE and job.spec["model"] is None


# ---- by which job


def find_job(runtime: Runtime, principal: Principal, run_id: str) -> Job:
    """Return the last job of a run, or of its first shard that has not ended. Raises `NotFound`, and `Conflict` for a
    run that the engine did not make."""
    find_run(runtime, principal, run_id)
    jobs = runtime.store.read(lambda snapshot: engine_jobs(snapshot, run_id))
    return next((job for job in jobs if not job.ended), jobs[0])


def engine_jobs(snapshot: Snapshot, run_id: str) -> list[Job]:
    jobs = last_jobs(snapshot, run_id)
    if not jobs:
        raise Conflict(f"evaluation run {run_id} was not made by the engine: nothing works on it here")
    return jobs


def abandoned_job(runtime: Runtime, principal: Principal, run_id: str, runner: Runner) -> Job:
    first, reported = None, False
    while (job := find_job(runtime, principal, run_id)).status is JobStatus.RUNNING:
        progress = runtime.store.read(lambda snapshot: snapshot.get(JobProgress, job.id))
        mark = (progress.epoch, progress.beat, progress.step)
        if mark == first and not reported:
            text = "evaluation run %s: waiting up to %g s for the lease of a worker that may have stopped responding"
            log.warning(text, run_id, runtime.settings.lease)
            reported = True
        first = first or mark
        if mark != first:
            raise Conflict(_at_work(run_id))
        runner.reclaim_expired()
        runtime.clock.sleep(runtime.settings.poll)
    return job


def reclaim(runtime: Runtime, principal: Principal, run_id: str, runner: Runner) -> ClaimedJob:
    resumed, now = _resumed_for(runtime, principal), runtime.clock.now()

    def step(tx: Tx) -> tuple[Job, JobProgress] | None:
        if all(job.ended for job in engine_jobs(tx, run_id)):
            _reopen(runtime, tx, run_id, resumed)
        return claim(tx, runner.claimant, now, ready_in_lane(tx, run_id))

    claimed = runtime.store.transact(step)
    if claimed is None:
        raise Conflict(_at_work(run_id))
    return runner.track(*claimed)


def requeue(runtime: Runtime, principal: Principal, run_id: str) -> list[Job]:
    check_portable(find_job(runtime, principal, run_id))
    resumed = _resumed_for(runtime, principal)

    def step(tx: Tx) -> list[Job]:
        check_idle(tx, run_id)
        return _reopen(runtime, tx, run_id, resumed)

    return runtime.store.transact(step)


def _at_work(run_id: str) -> str:
    return f"another process works on evaluation run {run_id}; wait for it, or cancel it"


def _resumed_for(runtime: Runtime, principal: Principal) -> Callable[[Job], Job]:
    asker = requester_spec(runtime, principal)
    return partial(_resumed, ids=defaultdict(runtime.ids), asker=asker, now=runtime.clock.now())


def _resumed(job: Job, ids: Mapping[str, str], asker: Mapping[str, Any], now: datetime) -> Job:
    """Make a job that continues a failed one. A job that failed by its error budget had finished all rows in flight,
    and its failures do not count again."""
    spec = {**job.spec, **job.result, "asker": asker, "resumed": True, "drained": "forgiven" in job.result}
    new = Job(ids[job.id], job.kind, job.entity, job.project, job.lane, now, spec)
    needs = {name: getattr(job, name) for name in ("base_model", "accelerators", "memory", "rank")}
    return attrs.evolve(new, **needs)


def _reopen(runtime: Runtime, tx: Tx, run_id: str, resumed: Callable[[Job], Job]) -> list[Job]:
    """Set a run that has failed to running again, with a new job for each shard that has rows left. Raises
    `RunAlreadyFinished`, `RateLimited`."""
    jobs = engine_jobs(tx, run_id)
    tx.replace(tx.get(EvaluationRun, run_id).reopened())
    left = [resumed(job) for job in jobs if job.status is not JobStatus.SUCCEEDED]
    if len(jobs) > 1 and any("forgiven" in job.result for job in jobs):
        forgiven = {"forgiven": failed_rows(tx, jobs)}
        left = [attrs.evolve(job, spec={**job.spec, **forgiven}) for job in left]
    return [enqueue(tx, job, runtime.settings.max_queued_jobs) for job in left]
