"""The work of an evaluation job: rows out of the engine into the store, with their scores, before they count as done.

A batch of rows and what tells of it commit together, under the worker's claim.
"""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.aggregate import aggregate
from modelyard.domain.evaluation.prediction import Prediction, Score, Source
from modelyard.domain.evaluation.references import ObjectRef
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.evaluation.run_summary import run_summary
from modelyard.domain.evaluation.running_totals import VALUE, RunningTotals
from modelyard.domain.events import JobEventRecorded
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobKind, JobProgress, NewEvent
from modelyard.domain.record import EMPTY
from modelyard.errors import EvaluationError, StoreError
from modelyard.lazy import log
from modelyard.platform.evaluations.model_under_test import CompletionModel
from modelyard.platform.evaluations.pools import pools
from modelyard.platform.evaluations.resume import PROGRESS, RemainingRows, last_told, remaining_rows
from modelyard.platform.evaluations.row import FunctionModel, ModelUnderTest, RowScorer, RunLimits
from modelyard.platform.evaluations.rows import JobRows
from modelyard.platform.evaluations.scheduler import Row, RowScheduler, WorkItem
from modelyard.platform.evaluations.scorers import ScorerFunction, at_work
from modelyard.platform.evaluations.stored_run import StoredRun
from modelyard.platform.evaluations.transactions import INTERRUPTED
from modelyard.platform.jobs.claimed_job import ClaimedJob
from modelyard.platform.jobs.events import record_events
from modelyard.platform.jobs.leases import fenced, held
from modelyard.platform.jobs.queue import announce, cancel, fail, succeed
from modelyard.platform.jobs.requester import requester_principal
from modelyard.platform.paging import get_or_none
from modelyard.platform.scope import Namespace
from modelyard.platform.usage.admission import RecordUsage
from modelyard.protocols import Snapshot, Tx

STARTED = "evaluation_started"

BETWEEN_EVENTS = 0.1
"""Seconds that pass at least between two events that tell of rows; each row is told by its records."""


@attrs.frozen
class LocalCallables:
    """What a run needs that no store can keep: functions of the caller's, and the event loop on which to ask.

    `tally` receives the run's count as soon as there is one.
    """

    model: Callable[[Mapping[str, Any]], Any] | None = None
    scorers: Mapping[str, ScorerFunction] = EMPTY
    loop: Any = None
    principal: Principal | None = None
    tally: Callable[[RunningTotals], None] = lambda _: None


def evaluate(hold: ClaimedJob, crew: LocalCallables = LocalCallables()) -> Generator[None, None, None]:
    """Do the work of an EVALUATE or RESCORE job. Yields after each batch that was stored, and now and then."""
    work = _Work(hold, crew)
    work.begin()
    yield
    with work.engine() as engine:
        for batch in engine.batches():
            work.store(batch, engine)
            if work.over_budget:
                engine.stop()
            yield
    work.end()


class _Work:
    """One attempt at a run: what it works with, and the count of what is stored."""

    def __init__(self, hold: ClaimedJob, crew: LocalCallables) -> None:
        self.runtime, self.hold, self.crew, self.spec = hold.runtime, hold, crew, hold.job.spec
        self.place: Namespace = (hold.job.entity, hold.job.project)
        self.limits = RunLimits(**self.spec["limits"])
        self.principal = crew.principal or requester_principal(self.runtime, hold.job)
        self.subject, self.scorers = self._subject(), tuple(map(self._scorer, self.spec["scorers"]))
        self.refs = {scorer.name: str(scorer.ref) for scorer in self.scorers}
        self.tally = RunningTotals(self.refs)
        self.rows, self.left = JobRows(self.runtime, hold.job), RemainingRows()
        self.pending_usage: list[RecordUsage] = []
        self._told_at = -math.inf
        crew.tally(self.tally)

    def _subject(self) -> ModelUnderTest | None:
        if self.hold.job.kind is JobKind.RESCORE:
            return None
        if self.spec["model"] is not None:
            options = self.spec["options"]
            return CompletionModel.of(self.runtime, self.principal, self.spec["model"], self.place, options)
        ref = ObjectRef.parse(self.spec["model_ref"])
        if self.crew.model is None or ref is None:
            raise EvaluationError(INTERRUPTED)
        return FunctionModel(self.crew.model, ref)

    def _scorer(self, plain: Mapping[str, Any]) -> RowScorer:
        function = self.crew.scorers.get(plain["name"])
        if plain["rule"] is None and function is None:
            raise EvaluationError(INTERRUPTED)
        return at_work(self.runtime, self.principal, self.place, plain, function, self.limits.retries)

    # ---- begin, store, end

    def begin(self) -> None:
        """Tell that the run begins; or count what it has stored already."""
        if self.hold.progress.total is None:
            self.hold.record(STARTED, {"total": self.spec["total"]}, total=self.spec["total"])
        if self._resumed:
            self.left = self.runtime.store.read(self._go_on)

    def _go_on(self, snapshot: Snapshot) -> RemainingRows:
        run_id = self.hold.job.lane
        told = last_told(snapshot, run_id)
        self.tally.go_on(told)
        places = partial(self.rows.places, snapshot)
        return remaining_rows(snapshot, run_id, told, places, self.limits.concurrency, self.tally.add)

    @property
    def _resumed(self) -> bool:
        return self.hold.job.attempts > 1 or "resumed" in self.spec

    def store(self, batch: list[Row], engine: RowScheduler) -> None:
        """Commit what the engine has done; what cannot be ends this attempt, and its count with it.

        Raises `LeaseLost`.
        """
        if not batch:
            self.flush_usage()
            return
        now = self.runtime.clock.now()
        rows = [self._records(done, now) for done in batch]
        for prediction, scores in rows:
            self.tally.add(prediction, scores)
        events, pending = self._news(engine), tuple(self.pending_usage)
        progress = self.hold.write(partial(self._commit, events, now, rows, pending))
        self._recorded(pending)
        for event in events:
            self.runtime.observe(JobEventRecorded(progress.job_id, event.type, progress.last_seq))

    def flush_usage(self) -> None:
        """Record the usage of rows that are not stored: yet, or never. Recorded again, it counts once."""
        if pending := tuple(self.pending_usage):
            self.runtime.store.transact(lambda tx: _book(tx, pending), durable=False)
            self._recorded(pending)

    def _recorded(self, pending: Sequence[RecordUsage]) -> None:
        del self.pending_usage[: len(pending)]
        for one in pending:
            one.on_committed()

    def _news(self, engine: RowScheduler) -> list[NewEvent]:
        """The event that tells how far it has come: with the last row, and now and then before.

        It says what was begun, too, so that a run that goes on need not read what it has done (`evaluation_left`).
        """
        done, total, moment = self.tally.rows, self.spec["total"], self.runtime.clock.monotonic()
        if done < total and moment - self._told_at < BETWEEN_EVENTS:
            return []
        self._told_at = moment
        data = {**self.tally.told, "total": total, "begun": engine.begun, "open": engine.under_way}
        return [NewEvent(self.runtime.ids(), PROGRESS, data, done)]

    def _commit(
        self,
        events: list[NewEvent],
        now: datetime,
        rows: list[tuple[Prediction, list[Score]]],
        pending: Sequence[RecordUsage],
        tx: Tx,
    ) -> JobProgress:
        claim = self.hold.claim
        progress = record_events(tx, claim, events, now) if events else fenced(tx, claim)
        _book(tx, pending)
        # Whoever deletes a run cancels its job with it: only then is there a need to look whether it is still here.
        if progress.cancelled_by and get_or_none(tx, EvaluationRun, self.hold.job.lane) is None:
            return progress
        for prediction, scores in rows:
            tx.add(prediction)
            for score in scores:
                tx.add(score)
        return progress

    @property
    def over_budget(self) -> bool:
        """Whether more rows have failed than the run may have; those are forgiven with which it was resumed."""
        budget = self.spec["error_budget"]
        if budget is None:
            return False
        failed = self.tally.failed - self.spec.get("forgiven", 0)
        return bool(failed > (budget * self.spec["total"] if isinstance(budget, float) else budget))

    def end(self) -> None:
        """Complete the run with its summary; or fail it for its errors, or as somebody has asked."""
        event_id, summary, wall = self.runtime.ids(), self._summary(), self.runtime.clock.now()
        types = self.runtime.job_types

        def step(tx: Tx) -> Job:
            job, progress = held(tx, self.hold.claim), tx.get(JobProgress, self.hold.claim.job_id)
            now = progress.time(wall)
            run = get_or_none(tx, EvaluationRun, job.lane)
            if progress.cancelled_by or run is None:
                return cancel(tx, types, job, event_id, progress.cancelled_by or "deletion", now)
            if self.over_budget:
                drained = attrs.evolve(job, result={"forgiven": self.tally.failed})
                return fail(tx, types, drained, event_id, self._why(), now)
            tx.replace(run.finished(summary, now))
            return succeed(tx, types, job, event_id, now)

        self.hold.job = self.runtime.store.transact(step)
        announce(self.runtime, self.hold.job)

    def _summary(self) -> Mapping[str, Any]:
        found = aggregate(StoredRun(self.runtime, self.hold.job.lane).numbers())
        return run_summary(found, {scorer.name: str(scorer.ref) for scorer in self.scorers})

    def _why(self) -> str:
        return (
            f"{self.tally.failed} of {self.tally.rows} rows failed, more than the error budget of "
            f"{self.spec['error_budget']} allows; look at their errors, correct the cause, then resume the run: "
            "these rows stay as they are, and as many more may fail"
        )

    # ---- what there is to do

    @contextmanager
    def engine(self) -> Iterator[RowScheduler]:
        """The engine, with the pools that this work needs, until they are closed and pending usage is recorded."""
        with ExitStack() as opened:
            opened.callback(self._flush_at_last)
            pool, scorer_pool = pools(
                opened, self.limits, self.subject, self.scorers, self.crew.loop, self.pending_usage
            )
            items, begun = self._items(), self.left.begun
            yield RowScheduler(self.runtime, items, self.subject, self.scorers, self.limits, pool, scorer_pool, begun)

    def _flush_at_last(self) -> None:
        try:
            self.flush_usage()
        except StoreError:
            log.exception("what was produced for rows that are not stored could not be booked")

    def _items(self) -> Iterator[WorkItem]:
        """What is not stored yet, in order. The first ones may have been begun before, if nobody knows better."""
        left = self.rows.items(self.left)
        drained = self.hold.job.attempts == 1 and self.spec.get("drained")
        if self._resumed and not drained:
            for item in islice(left, self.limits.concurrency):
                yield attrs.evolve(item, unsure=item.copied is None)
        yield from left

    # ---- records

    def _records(self, done: Row, now: datetime) -> tuple[Prediction, list[Score]]:
        copied = done.item.copied
        prediction = self._prediction(done, now) if copied is None else self._copy(done, copied, now)
        pairs = zip(self.refs.values(), done.verdicts, strict=False)
        return prediction, [
            Score(
                self.runtime.ids(),
                *self.place,
                done.id,
                ref,
                now,
                self.hold.job.lane,
                {VALUE: verdict.value} if verdict.scored else EMPTY,
                verdict.reason or None,
                verdict.prompt_tokens,
                verdict.completion_tokens,
                verdict.cost,
                row_digest=prediction.row_digest,
                trial=prediction.trial,
            )
            for ref, verdict in pairs
        ]

    def _prediction(self, done: Row, now: datetime) -> Prediction:
        subject, asked, item = self.subject, done.asked, done.item
        assert subject is not None
        assert asked is not None
        reply = asked.reply
        return Prediction(
            done.id,
            *self.place,
            str(subject.ref),
            item.row,
            digest(item.row),
            done.started_at,
            self.hold.job.lane,
            item.index,
            item.trial,
            Source.ENGINE,
            EMPTY if reply is None else {VALUE: reply.output},
            asked.error,
            max(now, done.started_at),
            asked.latency,
            None if reply is None else reply.prompt_tokens,
            None if reply is None else reply.completion_tokens,
            None if reply is None else reply.cost,
            subject.price,
            subject.checkpoint_step,
            asked.attempts,
            int(item.unsure),
        )

    def _copy(self, done: Row, source: Prediction, now: datetime) -> Prediction:
        return attrs.evolve(
            source,
            id=done.id,
            entity=self.place[0],
            project=self.place[1],
            run_id=self.hold.job.lane,
            index=done.item.index,
            source=Source.COPIED,
            copied_from=source.id,
            started_at=done.started_at,
            finished_at=max(now, done.started_at),
            possibly_repeated=0,
        )


def _book(tx: Tx, pending: Sequence[RecordUsage]) -> None:
    for one in pending:
        one.step(tx)
