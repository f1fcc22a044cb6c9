"""Resuming a run: what it has left to do, with which functions, and by which job.

Every progress event records how many rows had been begun when it was stored, and which of these were not done. Rows
begin in order, and only so many can be uncommitted at a time. So what was stored since is found without reading what is
done: by looking up the rows that were open, and then one row after the other, until as many are missing as can be
uncommitted.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from modelyard.domain.evaluation.prediction import Prediction, Score
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobEvent, JobKind, JobProgress, JobStatus
from modelyard.domain.record import EMPTY
from modelyard.errors import Conflict, InvalidInput, Problem
from modelyard.lazy import log
from modelyard.platform.evaluations.row import check_signature
from modelyard.platform.evaluations.rows import RemainingRows, RowKey
from modelyard.platform.evaluations.runs import check_idle, find_run
from modelyard.platform.evaluations.scorers import (
    LocalCallables,
    ModelFunction,
    NamedScorer,
    callables_of,
    needs_function,
)
from modelyard.platform.evaluations.stored_run import scores_of
from modelyard.platform.jobs.claimed_job import ClaimedJob
from modelyard.platform.jobs.leases import claim, ready_in_lane
from modelyard.platform.jobs.queue import enqueue, latest_job
from modelyard.platform.jobs.requester import requester_spec
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.paging import iter_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

PROGRESS = "evaluation_progress"

# ---- which rows are left


def last_progress(snapshot: Snapshot, run_id: str) -> Mapping[str, Any]:
    """Return the data of a run's last progress event; empty where there is none."""
    for job in iter_index(snapshot, Job, "of_lane", run_id, descending=True):
        for event in iter_index(snapshot, JobEvent, "by_job", job.id, size=4, descending=True):
            if event.type == PROGRESS:
                return event.data
    return EMPTY


def remaining_rows(
    snapshot: Snapshot,
    run_id: str,
    progress: Mapping[str, Any],
    keys_from: Callable[[int], Iterable[RowKey]],
    width: int,
    count: Callable[[Prediction, list[Score]], None],
) -> RemainingRows:
    """Find what is left of a run, and `count` what was stored since its last `progress` event.

    `width` is how many rows may have begun and not be stored; `keys_from` gives the keys of all rows from a number on.
    """

    def stored(key: RowKey) -> bool:
        prediction = snapshot.find(Prediction, "place", run_id, *key)
        if prediction is not None:
            count(prediction, scores_of(snapshot, prediction))
        return prediction is not None

    begun = progress.get("begun", 0)
    still_open = [key for key in map(_key, progress.get("open", ())) if not stored(key)]
    missing: list[RowKey] = []
    for number, key in enumerate(keys_from(begun), begun):
        if not stored(key):
            missing.append(key)
        else:
            still_open += missing
            missing, begun = [], number + 1
        if len(missing) == width:
            break
    return RemainingRows(begun, frozenset(still_open))


def _key(pair: Iterable[int]) -> RowKey:
    index, trial = pair
    return index, trial


# ---- with which functions


def check_portable(job: Job) -> None:
    """Raise `Conflict` for a job that needs functions, which no worker has."""
    if _needs_model(job) or any(map(needs_function, job.spec["scorers"])):
        msg = "was begun with functions, which no worker has; resume it in Python, with the functions"
        raise Conflict(f"evaluation run {job.lane} {msg}")


def callables_for(job: Job, model: ModelFunction | None, scorers: Sequence[NamedScorer]) -> LocalCallables:
    """Return the functions that a job needs, from those given. Raises `InvalidInput` for a missing or changed one."""
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
    return job.kind is JobKind.EVALUATE and job.spec["model"] is None


# ---- by which job


def find_job(runtime: Runtime, principal: Principal, run_id: str) -> Job:
    """Return the last job of a run. Raises `NotFound`, and `Conflict` for a run that the engine did not make."""
    find_run(runtime, principal, run_id)
    return runtime.store.read(lambda snapshot: engine_job(snapshot, run_id))


def engine_job(snapshot: Snapshot, run_id: str) -> Job:
    """Return the last job of a run. Raises `Conflict` for a run that the engine did not make."""
    job = latest_job(snapshot, run_id)
    if job is None:
        raise Conflict(f"evaluation run {run_id} was not made by the engine: nothing works on it here")
    return job


def abandoned_job(runtime: Runtime, principal: Principal, run_id: str, runner: Runner) -> Job:
    """Return the last job of a run once no owner works on it. Raises `Conflict` when one is seen to."""
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
    """Claim what is left of a run, reopening the run if it has failed. Raises `RunAlreadyFinished`, `Conflict`."""
    resumed, now = _resumed_for(runtime, principal), runtime.clock.now()

    def step(tx: Tx) -> tuple[Job, JobProgress] | None:
        if engine_job(tx, run_id).ended:
            _reopen(runtime, tx, run_id, resumed)
        return claim(tx, runner.claimant, now, ready_in_lane(tx, run_id))

    claimed = runtime.store.transact(step)
    if claimed is None:
        raise Conflict(_at_work(run_id))
    return runner.track(*claimed)


def requeue(runtime: Runtime, principal: Principal, run_id: str) -> Job:
    """Queue what is left of a run that failed, for workers. Raises `RunAlreadyFinished`, `RateLimited`, `Conflict`."""
    check_portable(find_job(runtime, principal, run_id))
    resumed = _resumed_for(runtime, principal)

    def step(tx: Tx) -> Job:
        check_idle(tx, run_id)
        return _reopen(runtime, tx, run_id, resumed)

    return runtime.store.transact(step)


def _at_work(run_id: str) -> str:
    return f"another process works on evaluation run {run_id}; wait for it, or cancel it"


def _resumed_for(runtime: Runtime, principal: Principal) -> Callable[[Job], Job]:
    """Return the function that makes, of a job that failed, the one that resumes it for this principal."""
    asker = requester_spec(runtime, principal)
    return partial(_resumed, job_id=runtime.ids(), asker=asker, now=runtime.clock.now())


def _resumed(job: Job, job_id: str, asker: Mapping[str, Any], now: datetime) -> Job:
    """Make a job that resumes where one that failed has ended.

    One that failed by its error budget had finished all rows under way, and its failures do not count again.
    """
    spec = {**job.spec, **job.result, "asker": asker, "resumed": True, "drained": "forgiven" in job.result}
    return Job(job_id, job.kind, job.entity, job.project, job.lane, now, spec)


def _reopen(runtime: Runtime, tx: Tx, run_id: str, resumed: Callable[[Job], Job]) -> Job:
    """Set a run that has failed to running again, with a new job. Raises `RunAlreadyFinished`, `RateLimited`."""
    job = resumed(engine_job(tx, run_id))
    tx.replace(tx.get(EvaluationRun, run_id).reopened())
    return enqueue(tx, job, runtime.settings.max_queued_jobs)
