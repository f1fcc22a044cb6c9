"""Runs that this process works on, or waits for: begun here, or resumed here."""

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from typing import Any

import attrs

from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.domain.evaluation.running_totals import ProgressReporter, RunningTotals
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobKind, JobProgress
from modelyard.errors import InvalidInput, LeaseLost, NotFound, StoreBusy
from modelyard.platform.evaluations.job import INTERRUPTED
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.resume import abandoned_job, callables_for, find_job, reclaim, requeue
from modelyard.platform.evaluations.runs import RUN, find_run
from modelyard.platform.evaluations.scorers import NO_CALLABLES, LocalCallables, ModelFunction, Scorers, name_scorers
from modelyard.platform.evaluations.shards import joined_progress, last_jobs, rows_done
from modelyard.platform.evaluations.spec import RunSpec
from modelyard.platform.jobs.claims import ClaimedJob, claim, ready_in_lane
from modelyard.platform.jobs.job_type import JobTypes
from modelyard.platform.jobs.queue import announce, fail
from modelyard.platform.jobs.runner import Runner, never
from modelyard.platform.jobs.waiting import wait_for_end
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Tx

Stop = Callable[[], bool]


def run_here(
    runtime: Runtime,
    principal: Principal,
    spec: RunSpec,
    reporter: ProgressReporter,
    loop: Any = None,
    stop: Stop = never,
) -> EvaluationRun:
    """Store a new run and its job, claimed by this process, and do the work; or wait for its shards. Returns the run.
    Raises `RateLimited`, `LeaseLost`, `InvalidInput`, and `NotFound` if the run was deleted meanwhile."""
    if spec.shards < 2 and (spec.job.rank or spec.job.accelerators or spec.job.memory):
        raise InvalidInput.at("needs", msg="this run is here and now; give shards, or submit it, for workers to run it")
    if spec.more:
        spec.store(spec.add)
        _announce(runtime, (spec.job, *spec.more))
        return _finish(runtime, principal, spec.run.id, reporter, stop)
    runner = _runner(runtime, principal, spec.callables, reporter, loop)

    def step(tx: Tx) -> tuple[Job, JobProgress]:
        spec.add(tx)
        claimed = claim(tx, runner.claimant, spec.job.created_at, ready_in_lane(tx, spec.run.id))
        assert claimed is not None
        return claimed

    return _drive(runner, principal, runner.track(*spec.store(step)), reporter, stop)


def resume_here(
    runtime: Runtime,
    principal: Principal,
    run_id: str,
    model: ModelFunction | None,
    scorers: Scorers,
    reporter: ProgressReporter,
) -> EvaluationRun:
    """Reclaim a run that failed or was abandoned, and do what is left; or queue what is left of its shards, and wait.
    Returns the run. Raises as `Evaluations.resume` does."""
    if len(runtime.store.read(lambda snapshot: last_jobs(snapshot, run_id))) > 1:
        if find_run(runtime, principal, run_id).state is not RunState.RUNNING:
            _announce(runtime, requeue(runtime, principal, run_id))
        return _finish(runtime, principal, run_id, reporter)
    job = abandoned_job(runtime, principal, run_id, _runner(runtime, principal, NO_CALLABLES, reporter))
    callables = callables_for(job, model, name_scorers(scorers, Objects(runtime, principal)))
    runner = _runner(runtime, principal, callables, reporter)
    return _drive(runner, principal, reclaim(runtime, principal, run_id, runner), reporter)


def _runner(
    runtime: Runtime, principal: Principal, callables: LocalCallables, reporter: ProgressReporter, loop: Any = None
) -> Runner:
    callables = attrs.evolve(callables, principal=principal, loop=loop, on_totals=reporter.begin)
    kinds = (runtime.job_types[kind] for kind in (JobKind.EVALUATE, JobKind.RESCORE))
    own = {one.kind: attrs.evolve(one, run=partial(one.run, callables=callables)) for one in kinds}
    return Runner(runtime, own, _interrupt)


def _interrupt(tx: Tx, types: JobTypes, job: Job, event_id: str, now: datetime) -> Job:
    return fail(tx, types, job, event_id, INTERRUPTED, now)


def _drive(
    runner: Runner, principal: Principal, claimed: ClaimedJob, reporter: ProgressReporter, stop: Stop = never
) -> EvaluationRun:
    runtime = runner.runtime
    announce(runtime, claimed.job)
    begun = runtime.clock.monotonic()
    with runner.beating(), closing(runner.steps(claimed, stop)) as steps:
        for _ in steps:
            reporter.report(claimed.job.spec["total"], runtime.clock.monotonic() - begun)
    run = runtime.store.read(lambda snapshot: get_or_none(snapshot, EvaluationRun, claimed.job.subject))
    if run is None:
        raise NotFound(RUN, claimed.job.subject)
    if run.state is RunState.RUNNING and claimed.job.ended:  # another job goes on
        return _finish(runtime, principal, run.id, reporter, stop)
    if run.state is RunState.RUNNING:
        raise LeaseLost(f"evaluation run {claimed.job.subject} was taken over; wait for it")
    return run


# ---- in shards


def _announce(runtime: Runtime, jobs: Sequence[Job]) -> None:
    for job in jobs:
        announce(runtime, job)


def _finish(
    runtime: Runtime, principal: Principal, run_id: str, reporter: ProgressReporter, stop: Stop = never
) -> EvaluationRun:
    begun = runtime.clock.monotonic()
    with closing(wait_for_end(runtime, partial(find_job, runtime, principal, run_id))) as waiting:
        for pause in waiting:
            with suppress(StoreBusy):
                _report(runtime, run_id, reporter, runtime.clock.monotonic() - begun)
            if stop():
                break
            pause.sleep()
    return find_run(runtime, principal, run_id)


def _report(runtime: Runtime, run_id: str, reporter: ProgressReporter, seconds: float) -> None:
    if not reporter.shows:
        return
    known, (_, total) = runtime.store.read(
        lambda snapshot: (joined_progress(snapshot, run_id), rows_done(snapshot, run_id))
    )
    totals = RunningTotals({})
    totals.restore(known)
    reporter.begin(totals)
    reporter.report(total, seconds)
