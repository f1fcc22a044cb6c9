"""The work of an evaluation job: finished rows go from the scheduler to the store, with their scores.

A batch of rows and the event that reports it commit together, under the worker's claim. A run that is evaluated in this
process is claimed in the transaction that creates it, so no worker takes it. When its owner is gone, a worker finishes
it, or fails it where it needs functions that only the owner had.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

import attrs

from modelyard.domain.evaluation.aggregate import aggregate
from modelyard.domain.evaluation.prediction import Prediction, Score
from modelyard.domain.evaluation.references import ObjectRef
from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.domain.evaluation.running_totals import ProgressReporter, RunningTotals
from modelyard.domain.evaluation.summary import run_summary
from modelyard.domain.events import JobEventRecorded
from modelyard.domain.identity import Principal
from modelyard.domain.job import Gain, Job, JobKind, JobProgress, NewEvent
from modelyard.errors import EvaluationError, LeaseLost, StoreError
from modelyard.lazy import log
from modelyard.platform.evaluations.model_under_test import CompletionModel
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.pools import pools
from modelyard.platform.evaluations.resume import (
    PROGRESS,
    abandoned_job,
    callables_for,
    last_progress,
    reclaim,
    remaining_rows,
)
from modelyard.platform.evaluations.row import CallableModel, ModelUnderTest, RowScorer, RunLimits
from modelyard.platform.evaluations.rows import JobRows, RemainingRows, RowRecords
from modelyard.platform.evaluations.scheduler import RowInFlight, RowScheduler, WorkItem, is_limited
from modelyard.platform.evaluations.scorers import LocalCallables, ModelFunction, Scorers, build_scorer, name_scorers
from modelyard.platform.evaluations.spec import RunSpec
from modelyard.platform.evaluations.stored_run import StoredRun
from modelyard.platform.jobs.claimed_job import ClaimedJob
from modelyard.platform.jobs.events import record_events
from modelyard.platform.jobs.job_type import JobTypes
from modelyard.platform.jobs.leases import claim, fenced, ready_in_lane, require_claim
from modelyard.platform.jobs.queue import announce, cancel, fail, succeed
from modelyard.platform.jobs.requester import requester_principal
from modelyard.platform.jobs.runner import Runner, never
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage.booking import RecordUsage
from modelyard.protocols import Snapshot, Tx

STARTED = "evaluation_started"

INTERRUPTED = "interrupted"
"""The reason of a run whose owner is gone: the functions that it needs are gone with it."""

BETWEEN_EVENTS = 0.1
"""Least seconds between two progress events; each row is reported by its records."""


# ---- in this process


def run_here(
    runtime: Runtime,
    principal: Principal,
    spec: RunSpec,
    reporter: ProgressReporter,
    loop: Any = None,
    stop: Callable[[], bool] = never,
) -> None:
    """Store a new run and its job, claimed by this process, and do the work. Raises `RateLimited`, `LeaseLost`."""
    runner = _runner(runtime, principal, spec.callables, reporter, loop)

    def step(tx: Tx) -> tuple[Job, JobProgress]:
        spec.add(tx)
        claimed = claim(tx, runner.claimant, spec.job.created_at, ready_in_lane(tx, spec.run.id))
        assert claimed is not None
        return claimed

    _drive(runner, runner.track(*spec.store(step)), reporter, stop)


def resume_here(
    runtime: Runtime,
    principal: Principal,
    run_id: str,
    model: ModelFunction | None,
    scorers: Scorers,
    reporter: ProgressReporter,
) -> None:
    """Reclaim a run that failed or was abandoned, and do what is left. Raises as `Evaluations.resume` does."""
    job = abandoned_job(runtime, principal, run_id, _runner(runtime, principal, _NO_CALLABLES, reporter))
    callables = callables_for(job, model, name_scorers(scorers, Objects(runtime, principal)))
    runner = _runner(runtime, principal, callables, reporter)
    _drive(runner, reclaim(runtime, principal, run_id, runner), reporter)


def _runner(
    runtime: Runtime, principal: Principal, callables: LocalCallables, reporter: ProgressReporter, loop: Any = None
) -> Runner:
    """Return a runner of evaluations with these functions. A run that is stopped fails: its caller can resume it."""
    callables = attrs.evolve(callables, principal=principal, loop=loop, on_totals=reporter.begin)

    def work(claimed: ClaimedJob) -> Generator[None, None, None]:
        return evaluate(claimed, callables)

    kinds = (runtime.job_types[kind] for kind in (JobKind.EVALUATE, JobKind.RESCORE))
    return Runner(runtime, {one.kind: attrs.evolve(one, run=work) for one in kinds}, _interrupt)


def _interrupt(tx: Tx, types: JobTypes, job: Job, event_id: str, now: datetime) -> Job:
    return fail(tx, types, job, event_id, INTERRUPTED, now)


def _drive(runner: Runner, claimed: ClaimedJob, reporter: ProgressReporter, stop: Callable[[], bool] = never) -> None:
    """Do the work of a claimed run. Raises `LeaseLost`."""
    runtime = runner.runtime
    announce(runtime, claimed.job)
    begun = runtime.clock.monotonic()
    with runner.beating(), closing(runner.steps(claimed, stop)) as steps:
        for _ in steps:
            reporter.report(claimed.job.spec["total"], runtime.clock.monotonic() - begun)
    run = runtime.store.read(lambda snapshot: get_or_none(snapshot, EvaluationRun, claimed.job.lane))
    if run is not None and run.state is RunState.RUNNING:
        raise LeaseLost(f"evaluation run {claimed.job.lane} was taken over; wait for it")


# ---- the work


_NO_CALLABLES = LocalCallables()


def evaluate(claimed: ClaimedJob, callables: LocalCallables = _NO_CALLABLES) -> Generator[None, None, None]:
    """Do the work of an EVALUATE or RESCORE job. Yields after each batch that was stored, and now and then."""
    attempt = _Attempt(claimed, callables)
    attempt.begin()
    yield
    with attempt.scheduler() as scheduler:
        for batch in scheduler.batches():
            attempt.commit(batch, scheduler)
            if attempt.over_budget:
                scheduler.stop()
            yield
    attempt.end()


class _Attempt:
    """One attempt at a run: its model, scorers and pools, and the running totals of what is stored."""

    def __init__(self, claimed: ClaimedJob, callables: LocalCallables) -> None:
        self.claimed, self.runtime, self.callables = claimed, claimed.runtime, callables
        self.spec, self.run_id = claimed.job.spec, claimed.job.lane
        self.namespace = (claimed.job.entity, claimed.job.project)
        self.limits = RunLimits(**self.spec["limits"])
        self.principal = callables.principal or requester_principal(self.runtime, claimed.job)
        self.model, self.scorers = self._model(), tuple(map(self._scorer, self.spec["scorers"]))
        self.scorer_refs = {scorer.name: str(scorer.ref) for scorer in self.scorers}
        self.records = RowRecords(self.runtime.ids, self.namespace, self.run_id, self.model, self.scorer_refs)
        self.totals = RunningTotals(self.scorer_refs)
        self.rows, self.left = JobRows(self.runtime, claimed.job), RemainingRows()
        self.pending_usage: list[RecordUsage] = []
        self._last_event_at = -math.inf
        callables.on_totals(self.totals)

    def _model(self) -> ModelUnderTest | None:
        if self.claimed.job.kind is JobKind.RESCORE:
            return None
        if self.spec["model"] is not None:
            options = self.spec["options"]
            return CompletionModel.of(self.runtime, self.principal, self.spec["model"], self.namespace, options)
        ref = ObjectRef.parse(self.spec["model_ref"])
        if self.callables.model is None or ref is None:
            raise EvaluationError(INTERRUPTED)
        return CallableModel(self.callables.model, ref)

    def _scorer(self, kept: Mapping[str, Any]) -> RowScorer:
        function = self.callables.scorers.get(kept["name"])
        if self.callables.lack(kept):
            raise EvaluationError(INTERRUPTED)
        return build_scorer(self.runtime, self.principal, self.namespace, kept, function, self.limits.retries)

    # ---- begin

    def begin(self) -> None:
        """Record that the run begins; or count what it has stored already."""
        if self.claimed.progress.total is None:
            self.claimed.record(STARTED, {"total": self.spec["total"]}, total=self.spec["total"])
        if self._resumed:
            self.left = self.runtime.store.read(self._remaining)

    def _remaining(self, snapshot: Snapshot) -> RemainingRows:
        progress = last_progress(snapshot, self.run_id)
        self.totals.restore(progress)
        keys = partial(self.rows.keys, snapshot)
        return remaining_rows(snapshot, self.run_id, progress, keys, self.limits.uncommitted, self.totals.add)

    @property
    def _resumed(self) -> bool:
        return self.claimed.job.attempts > 1 or "resumed" in self.spec

    @contextmanager
    def scheduler(self) -> Iterator[RowScheduler]:
        """Open the scheduler with its pools, until they are closed and all usage is recorded."""
        with ExitStack() as opened:
            opened.callback(self._flush_at_last)
            loop, pending = self.callables.loop, self.pending_usage
            threads = self.runtime.threads.backends.of(self.namespace[0])
            pool, scorer_pool = pools(opened, self.limits, self.model, self.scorers, loop, pending, threads)
            items, begun = self._items(), self.left.begun
            limited = partial(is_limited, self.runtime, self.principal, self.namespace[0])
            workers = self.model, self.scorers, pool, scorer_pool
            yield RowScheduler(self.runtime, items, *workers, self.limits, limited, begun)

    def _flush_at_last(self) -> None:
        try:
            self.flush_usage()
        except StoreError:
            log.exception("the usage of rows that are not stored could not be recorded")

    def _items(self) -> Iterator[WorkItem]:
        """Yield the rows that are not stored yet, in order. The first ones may have been begun before a crash."""
        left = self.rows.items(self.left)
        drained = self.claimed.job.attempts == 1 and self.spec.get("drained")
        if self._resumed and not drained:
            for item in islice(left, self.limits.uncommitted):
                yield attrs.evolve(item, unsure=item.copied is None)
        yield from left

    # ---- commit

    def commit(self, batch: list[RowInFlight], scheduler: RowScheduler) -> None:
        """Store finished rows. A failure ends this attempt, and its running totals with it. Raises `LeaseLost`."""
        if not batch:
            self.flush_usage()
            return
        now = self.runtime.clock.now()
        rows = [self.records.of(done, now) for done in batch]
        for prediction, scores in rows:
            self.totals.add(prediction, scores)
        events, usage = self._progress_events(scheduler), tuple(self.pending_usage)
        progress = self.claimed.write(partial(self._write, events, now, rows, usage))
        self._recorded(usage)
        for event in events:
            self.runtime.observe(JobEventRecorded(progress.job_id, event.type, progress.last_seq))

    def _write(
        self,
        events: list[NewEvent],
        now: datetime,
        rows: list[tuple[Prediction, list[Score]]],
        usage: tuple[RecordUsage, ...],
        tx: Tx,
    ) -> JobProgress:
        claimed = self.claimed.claim
        progress = record_events(tx, claimed, events, now) if events else fenced(tx, claimed)
        _record(tx, usage)
        # Deleting a run cancels its job: only then can the run be gone.
        if progress.cancelled_by and get_or_none(tx, EvaluationRun, self.run_id) is None:
            return progress
        for prediction, scores in rows:
            tx.add(prediction)
            for score in scores:
                tx.add(score)
        if progress.gain is not Gain.NEW or progress.suspect:
            progress = progress.gained()
            tx.replace(progress)
        return progress

    def flush_usage(self) -> None:
        """Record the usage of rows that are not stored, yet or ever. Recorded again with its row, it counts once."""
        if usage := tuple(self.pending_usage):
            self.runtime.store.transact(lambda tx: _record(tx, usage), durable=False)
            self._recorded(usage)

    def _recorded(self, usage: tuple[RecordUsage, ...]) -> None:
        del self.pending_usage[: len(usage)]
        for one in usage:
            one.on_committed()

    def _progress_events(self, scheduler: RowScheduler) -> list[NewEvent]:
        """Return the event that reports progress: with the last row, and now and then before.

        It names the rows under way, too, so that a resumed run need not read what it has done (see `resume`).
        """
        done, total, moment = self.totals.rows, self.spec["total"], self.runtime.clock.monotonic()
        if done < total and moment - self._last_event_at < BETWEEN_EVENTS:
            return []
        self._last_event_at = moment
        data = {**self.totals.data, "total": total, "begun": scheduler.begun, "open": scheduler.under_way}
        return [NewEvent(self.runtime.ids(), PROGRESS, data, done)]

    # ---- end

    @property
    def over_budget(self) -> bool:
        """Whether more rows have failed than the error budget allows, not counting those it was resumed with."""
        budget = self.spec["error_budget"]
        if budget is None:
            return False
        failed = self.totals.failed - self.spec.get("forgiven", 0)
        return bool(failed > (budget * self.spec["total"] if isinstance(budget, float) else budget))

    def end(self) -> None:
        """Complete the run with its summary; or fail it for its errors, or end it as requested."""
        event_id, summary, wall = self.runtime.ids(), self._summary(), self.runtime.clock.now()
        types = self.runtime.job_types

        def step(tx: Tx) -> Job:
            job, progress = require_claim(tx, self.claimed.claim), tx.get(JobProgress, self.claimed.claim.job_id)
            now = progress.time(wall)
            run = get_or_none(tx, EvaluationRun, job.lane)
            if progress.cancelled_by or run is None:
                return cancel(tx, types, job, event_id, progress.cancelled_by or "deletion", now)
            if self.over_budget:
                drained = attrs.evolve(job, result={"forgiven": self.totals.failed})
                return fail(tx, types, drained, event_id, self._over_budget_text(), now)
            tx.replace(run.finished(summary, now))
            return succeed(tx, types, job, event_id, now)

        self.claimed.job = self.runtime.store.transact(step)
        announce(self.runtime, self.claimed.job)

    def _summary(self) -> Mapping[str, Any]:
        return run_summary(aggregate(StoredRun(self.runtime, self.run_id).columns()), self.scorer_refs)

    def _over_budget_text(self) -> str:
        return (
            f"{self.totals.failed} of {self.totals.rows} rows failed, more than the error budget of "
            f"{self.spec['error_budget']} allows; look at their errors, correct the cause, then resume the run: "
            "these rows stay as they are, and as many more may fail"
        )


def _record(tx: Tx, usage: tuple[RecordUsage, ...]) -> None:
    for one in usage:
        one.step(tx)
