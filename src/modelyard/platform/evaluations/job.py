"""The work of an evaluation job: finished rows go from the scheduler to the store, with their scores. A batch of rows
and the event that reports it commit together, under the worker's claim. A run that is evaluated in this process is
claimed in the transaction that creates it, so no worker takes it. When its owner is gone, a worker finishes it, or
fails it if it needs functions that only the owner had."""

import math
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from itertools import takewhile
from typing import Any

import attrs

from modelyard.domain.evaluation.aggregate import aggregate_means, run_summary
from modelyard.domain.evaluation.objects import ObjectRef
from modelyard.domain.evaluation.run import PROMPTS, EvaluationRun, Prediction, Score
from modelyard.domain.evaluation.running_totals import RunningTotals
from modelyard.domain.events import JobEventRecorded
from modelyard.domain.job import Gain, Job, JobKind, JobProgress, JobStatus, NewEvent
from modelyard.errors import EvaluationError, StoreError
from modelyard.lazy import log
from modelyard.platform.evaluations.model_under_test import CompletionModel
from modelyard.platform.evaluations.pools import pools
from modelyard.platform.evaluations.row_evaluation import CallableModel, ModelUnderTest, RowScorer, RunLimits
from modelyard.platform.evaluations.scheduler import RowInFlight, RowScheduler, WorkItem, is_limited
from modelyard.platform.evaluations.scorers import NO_CALLABLES, LocalCallables, build_scorer
from modelyard.platform.evaluations.shards import (
    PROGRESS,
    SHARD_ENDED,
    RemainingRows,
    failed_rows,
    last_progress,
    others_of,
    shard_of,
)
from modelyard.platform.evaluations.stored_rows import JobRows, RowRecords, remaining_rows
from modelyard.platform.evaluations.stored_run import StoredRun
from modelyard.platform.jobs.claims import ClaimedJob, fenced, record_events, requester_principal, require_claim
from modelyard.platform.jobs.queue import announce, cancel, end, fail, succeed
from modelyard.platform.jobs.runner import BEATS_PER_LEASE
from modelyard.platform.paging import get_or_none
from modelyard.platform.usage.booking import CompletionBooking, book_together
from modelyard.protocols import Snapshot, Tx

STARTED = "evaluation_started"

INTERRUPTED = "interrupted"
"""The reason of a run that has lost its owner, and with it the functions that it needs."""

UNSURE = "unsure"
"""In the result of a job that was given back: how many of the first remaining rows were begun before."""

BETWEEN_EVENTS = 0.1
"""Least seconds between two progress events; each row is reported by its records."""


def evaluate(claimed: ClaimedJob, callables: LocalCallables = NO_CALLABLES) -> Generator[None, None, None]:
    """Do the work of an EVALUATE or RESCORE job. Yields after each batch that was stored, and now and then. To give the
    job back, close it: that finishes the rows in flight, in bounded time."""
    attempt = _Attempt(claimed, callables)
    attempt.begin()
    with attempt.scheduler() as scheduler:
        batches = scheduler.batches()
        try:
            yield
            for batch in batches:
                attempt.commit(batch, scheduler)
                if attempt.over_budget:
                    scheduler.stop()
                yield
        except GeneratorExit:
            if claimed.finishes_rows:
                attempt.leave(scheduler, batches)
            raise
    attempt.end()


class _Attempt:
    """One attempt at a run: its model, scorers and pools, and the running totals of what is stored."""

    def __init__(self, claimed: ClaimedJob, callables: LocalCallables) -> None:
        self.claimed, self.runtime, self.callables = claimed, claimed.runtime, callables
        self.spec, self.run_id = claimed.job.spec, claimed.job.subject
        self.shard = {"shard": list(shard_of(claimed.job))} if "shard" in self.spec else {}
        self.failed_elsewhere = 0
        self.namespace = (claimed.job.entity, claimed.job.project)
        limits = self.spec["limits"]
        self.limits = RunLimits(**{"judge_retries": limits["retries"], **limits})  # earlier ones lack the first
        self.principal = callables.principal or requester_principal(self.runtime, claimed.job)
        self.model, self.scorers = self._model(), tuple(map(self._scorer, self.spec["scorers"]))
        self.scorer_refs = {scorer.name: str(scorer.ref) for scorer in self.scorers}
        self.records = RowRecords(self.runtime.ids, self.namespace, self.run_id, self.model, self.scorer_refs)
        self.totals = RunningTotals(self.scorer_refs)
        self.rows, self.left = JobRows(self.runtime, claimed.job), RemainingRows()
        self.waiting: set[tuple[int, int]] = set()  # of the rows that an earlier job left open
        self.items: Iterator[WorkItem] = iter(())
        self.pending_usage: list[CompletionBooking] = []
        self._last_event_at = -math.inf
        callables.on_totals(self.totals)

    def _model(self) -> ModelUnderTest | None:
        if self.claimed.job.kind == JobKind.RESCORE:
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
        return build_scorer(self.runtime, self.principal, self.namespace, kept, function, self.limits.judge_retries)

    # ---- begin

    def begin(self) -> None:
        if self.claimed.progress.total is None:
            self.claimed.record(STARTED, {"total": self.spec["total"], **self.shard}, total=self.spec["total"])
        if self._resumed:
            self.left = self.runtime.store.read(self._remaining)
            self.waiting |= self.left.open
        self.items = self._items()
        if UNSURE in self.claimed.job.result:
            self._set_unsure(None)

    def _remaining(self, snapshot: Snapshot) -> RemainingRows:
        progress = last_progress(snapshot, self.claimed.job.lane)
        self.totals.restore(progress)
        keys = partial(self.rows.keys, snapshot)
        return remaining_rows(snapshot, self.run_id, progress, keys, self.limits.uncommitted, self.totals.add)

    @property
    def _resumed(self) -> bool:
        return self.claimed.job.attempts > 1 or "resumed" in self.spec

    @contextmanager
    def scheduler(self) -> Iterator[RowScheduler]:
        with ExitStack() as opened:
            opened.callback(self._flush_at_last)
            loop, pending = self.callables.loop, self.pending_usage
            threads = partial(self.runtime.threads.backends.of, self.namespace[0])
            pool, scorer_pool = pools(opened, self.limits, self.model, self.scorers, loop, pending, threads)
            limited = partial(is_limited, self.runtime, self.principal, *self.namespace)
            workers = self.model, self.scorers, pool, scorer_pool
            yield RowScheduler(self.runtime, self.items, *workers, self.limits, limited, self.left.begun)

    def _flush_at_last(self) -> None:
        try:
            self.flush_usage()
        except StoreError:
            log.exception("the usage of rows that are not stored could not be recorded")

    def _items(self) -> Iterator[WorkItem]:
        """Yield the rows that are not stored yet, in order, out of `waiting`. The first may have been begun before."""
        drained = not self._resumed or (self.claimed.job.attempts == 1 and self.spec.get("drained"))
        unsure = 0 if drained else self.claimed.job.result.get(UNSURE, self.limits.uncommitted)
        for at, item in enumerate(self.rows.items(self.left)):
            self.waiting.discard((item.index, item.trial))
            yield attrs.evolve(item, unsure=item.copied is None) if at < unsure else item

    # ---- leave

    def leave(self, scheduler: RowScheduler, batches: Iterator[list[RowInFlight]]) -> None:
        """Finish the rows in flight, as far as a third of the lease allows, and record how many are not finished."""
        scheduler.stop()
        until = self.runtime.clock.monotonic() + self.runtime.settings.lease / BEATS_PER_LEASE
        for batch in batches:
            self.commit(batch, scheduler)
            if self.runtime.clock.monotonic() >= until:
                break
        not_begun_again = takewhile(lambda item: item.unsure, self.items)
        self._set_unsure(len(scheduler.under_way) + sum(1 for _ in not_begun_again))

    def _set_unsure(self, count: int | None) -> None:
        """Keep with the job how many rows may have been begun; None, while it runs, means unknown."""

        def step(tx: Tx) -> JobProgress:
            job = require_claim(tx, self.claimed.claim)
            result = {name: value for name, value in job.result.items() if name != UNSURE}
            tx.replace(attrs.evolve(job, result=result if count is None else {**result, UNSURE: count}))
            return tx.get(JobProgress, job.id)

        self.claimed.write(step)

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
        usage: tuple[CompletionBooking, ...],
        tx: Tx,
    ) -> JobProgress:
        claimed = self.claimed.claim
        progress = record_events(tx, claimed, events, now) if events else fenced(tx, claimed)
        book_together(tx, usage)
        # Deleting a run cancels its job: only then can the run be gone.
        if progress.cancelled_by and get_or_none(tx, EvaluationRun, self.run_id) is None:
            return progress
        tx.add_all([prediction for prediction, _ in rows])
        tx.add_all([score for _, scores in rows for score in scores])
        if progress.gain is not Gain.NEW or progress.suspect:
            progress = progress.gained()
            tx.replace(progress)
        return progress

    def flush_usage(self) -> None:
        """Record the usage of rows that are not stored, yet or ever. Recorded again with its row, it counts once."""
        if usage := tuple(self.pending_usage):
            self.runtime.store.transact(lambda tx: book_together(tx, usage), self.runtime.settings.durable_usage)
            self._recorded(usage)

    def _recorded(self, usage: tuple[CompletionBooking, ...]) -> None:
        del self.pending_usage[: len(usage)]
        for one in usage:
            one.on_committed()

    def _progress_events(self, scheduler: RowScheduler) -> list[NewEvent]:
        """Return the event that reports progress: with the last row, and now and then before. It names the rows in
        flight, too, so that a resumed run need not read what it has done (see `resume`)."""
        done, total, moment = self.totals.rows, self.spec["total"], self.runtime.clock.monotonic()
        if done < total and moment - self._last_event_at < BETWEEN_EVENTS * (1 + len(self.waiting) / 100):
            return []
        self._last_event_at = moment
        if self.shard and self.spec["error_budget"] is not None:
            self.failed_elsewhere = self.runtime.store.read(self._failed_elsewhere)
        rows = {"begun": scheduler.begun, "open": [*scheduler.under_way, *sorted(self.waiting)]}
        data = {**self.totals.data, **self.shard, "total": total, **rows}
        return [NewEvent(self.runtime.ids(), PROGRESS, data, done)]

    # ---- end

    @property
    def over_budget(self) -> bool:
        """Whether more rows have failed than the error budget allows, not counting those it was resumed with. The
        failures of other shards count as far as they were reported."""
        budget = self.spec["error_budget"]
        if budget is None:
            return False
        total = self.spec.get("run_total", self.spec["total"])
        failed = self.totals.failed + self.failed_elsewhere - self.spec.get("forgiven", 0)
        return bool(failed > (budget * total if isinstance(budget, float) else budget))

    def _failed_elsewhere(self, snapshot: Snapshot) -> int:
        return failed_rows(snapshot, others_of(snapshot, self.claimed.job))

    def end(self) -> None:
        """End this shard; with the last one, complete the run with its summary, fail it, or end it as requested."""
        event_id, wall = self.runtime.ids(), self.runtime.clock.now()
        ended = None
        while ended is None:  # for a second time where the other shards ended meanwhile
            summary = self._summary() if self.runtime.store.read(self._is_last) else None
            ended = self.runtime.store.transact(partial(self._end, event_id, summary, wall))
        self.claimed.job = announce(self.runtime, ended)

    def _is_last(self, snapshot: Snapshot) -> bool:
        return all(job.ended for job in others_of(snapshot, self.claimed.job))

    def _end(self, event_id: str, summary: Mapping[str, Any] | None, wall: datetime, tx: Tx) -> Job | None:
        """End this shard. Returns None if that completes the run, and the summary is missing."""
        job, progress = require_claim(tx, self.claimed.claim), tx.get(JobProgress, self.claimed.claim.job_id)
        now, types, run = progress.time(wall), self.runtime.job_types, get_or_none(tx, EvaluationRun, self.run_id)
        if progress.cancelled_by or run is None:
            return cancel(tx, types, job, event_id, progress.cancelled_by or "deletion", now)
        others = others_of(tx, job)
        self.failed_elsewhere = failed_rows(tx, others)
        if self.over_budget:
            drained = attrs.evolve(job, result={"forgiven": self.totals.failed + self.failed_elsewhere})
            return fail(tx, types, drained, event_id, self._over_budget_text(), now)
        if not all(one.status is JobStatus.SUCCEEDED for one in others):
            return end(tx, types, job, JobStatus.SUCCEEDED, NewEvent(event_id, SHARD_ENDED, self.shard), now)
        if summary is None:
            return None
        finished = run.finished(summary, now)
        tx.replace(finished)
        self.runtime.tell(tx, finished)
        return succeed(tx, types, job, event_id, now)

    def _summary(self) -> Mapping[str, Any]:
        found = run_summary(aggregate_means(StoredRun(self.runtime, self.run_id).columns()), self.scorer_refs)
        prompts = {name: text for name, text in self.spec.get("options", {}).items() if name in PROMPTS and text}
        return {**found, "prompts": prompts} if prompts else found

    def _over_budget_text(self) -> str:
        rows = self.spec.get("run_total", self.totals.rows)
        return (
            f"{self.totals.failed + self.failed_elsewhere} of {rows} rows failed, more than the error "
            f"budget of {self.spec['error_budget']} allows; look at their errors, correct the cause, then resume the "
            "run: these rows stay as they are, and as many more may fail"
        )
