"""Runs of the engine: asked for, driven, resumed, rescored (specification 4.5).

Each is a job on the run's own lane. One that is run here is claimed in the transaction that makes it, so no worker
takes it; when its owner is gone, a worker finishes it, or fails it where it needs functions that were the owner's.
"""

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from functools import partial
from typing import Any, Unpack, overload

import attrs

from modelyard.domain.evaluation.objects import OneObject
from modelyard.domain.evaluation.prediction import Prediction
from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.domain.job import Job, JobKind, JobProgress, JobStatus
from modelyard.errors import Conflict, LeaseLost
from modelyard.flow import settled
from modelyard.lazy import asyncio
from modelyard.platform.evaluations.dataset import RowData, kept_rows
from modelyard.platform.evaluations.job import LocalCallables, evaluate
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.references import evaluation_ref
from modelyard.platform.evaluations.result import EvaluationResult, Progress, Told, telling
from modelyard.platform.evaluations.scorers import NamedScorer, Scorers, named
from modelyard.platform.evaluations.spec import (
    OneModel,
    Published,
    RunSpec,
    WorkOptions,
    again,
    check_portable,
    functions_for,
    is_one,
    order_of,
    rescore_order,
    several,
)
from modelyard.platform.evaluations.transactions import INTERRUPTED, check_idle, engine_job
from modelyard.platform.evaluations.watch import Watching
from modelyard.platform.jobs.claimed_job import ClaimedJob
from modelyard.platform.jobs.job_type import JobTypes
from modelyard.platform.jobs.leases import claim
from modelyard.platform.jobs.queue import announce, enqueue, fail
from modelyard.platform.jobs.requester import requester_spec
from modelyard.platform.jobs.runner import Runner, never
from modelyard.protocols import Tx


class Evaluating(Watching):
    """What the engine does for a principal: part of `platform.evaluations`."""

    # ---- here and now

    @overload
    def run(
        self,
        evaluation: OneObject,
        model: OneModel,
        rows: RowData | None = None,
        scorers: Scorers | None = None,
        *,
        project: str,
        entity: str | None = None,
        progress: Progress = False,
        **options: Any,
    ) -> EvaluationResult: ...

    @overload
    def run(
        self,
        evaluation: OneObject,
        model: Sequence[OneModel],
        rows: RowData | None = None,
        scorers: Scorers | None = None,
        *,
        project: str,
        entity: str | None = None,
        progress: Progress = False,
        **options: Any,
    ) -> list[EvaluationResult]: ...

    def run(
        self,
        evaluation: OneObject,
        model: OneModel | Sequence[OneModel],
        rows: RowData | None = None,
        scorers: Scorers | None = None,
        *,
        project: str,
        entity: str | None = None,
        progress: Progress = False,
        **options: Any,
    ) -> EvaluationResult | list[EvaluationResult]:
        """Ask a model every row and score its answers, in a run of its own; several models make several runs.

        A row has `messages` (or `prompt`, a text) and whatever the scorers read, such as `expected`. `model` is a name
        that completions take, its reference, an entry, a trained model or a checkpoint, or a function of the row; a
        trained model is held at the checkpoint of this moment. `rows` are mappings, read once and kept before the first
        is asked, a version of a dataset, or the path of a JSON Lines file; without them, dataset, scorers and trials
        are those of the evaluation, which must be published: the run is held at the version of this moment. An
        evaluation is given by its name ("quiz", "quiz:v0"), by a reference, or as the version that `objects.publish`
        returned. `scorers` are "exact_match" if nothing is said. `options` are those of `chat.complete`, of
        `WorkOptions`, and `trials`, how often each row is asked, with another seed each time. A row on which model or
        scorer fails is kept with its error and counted; only scored rows are in the mean.

        Raises `InvalidInput`, `ModelNotFound`, `Forbidden` before anything is asked, and `JobFailed` for a run that
        failed or was cancelled: what was done stays, and `resume` goes on with a failed one.
        """
        orders = self._orders(evaluation, model, rows, scorers, project, entity, options)
        results = [self._here(order, progress) for order in orders]
        return results[0] if is_one(model) else results

    @overload
    async def arun(
        self,
        evaluation: OneObject,
        model: OneModel,
        rows: RowData | None = None,
        scorers: Scorers | None = None,
        *,
        project: str,
        entity: str | None = None,
        progress: Progress = False,
        **options: Any,
    ) -> EvaluationResult: ...

    @overload
    async def arun(
        self,
        evaluation: OneObject,
        model: Sequence[OneModel],
        rows: RowData | None = None,
        scorers: Scorers | None = None,
        *,
        project: str,
        entity: str | None = None,
        progress: Progress = False,
        **options: Any,
    ) -> list[EvaluationResult]: ...

    async def arun(
        self,
        evaluation: OneObject,
        model: OneModel | Sequence[OneModel],
        rows: RowData | None = None,
        scorers: Scorers | None = None,
        *,
        project: str,
        entity: str | None = None,
        progress: Progress = False,
        **options: Any,
    ) -> EvaluationResult | list[EvaluationResult]:
        """The same for tasks: models and scorers that can be awaited run on this event loop, which is never blocked.

        `rows` are read, and `progress` is told, in a thread of the loop's executor.
        """
        gone, loop = threading.Event(), asyncio.get_running_loop()

        def work() -> EvaluationResult | list[EvaluationResult]:
            orders = self._orders(evaluation, model, rows, scorers, project, entity, options)
            results = [self._here(order, progress, loop, gone.is_set) for order in orders]
            return results[0] if is_one(model) else results

        return await settled(work, gone.set)

    def rescore(
        self, run_id: str, scorers: Scorers, *, progress: Progress = False, **options: Unpack[WorkOptions]
    ) -> EvaluationResult:
        """Score the outputs of a run that has ended anew, in a new run. The source stays as it is.

        The new run shares the outputs: latency, usage and cost are the source's and are told as such (`copied_from`),
        and rows on which the model failed are carried as failed. Raises `NotFound`, `Conflict`, `InvalidInput`,
        `JobFailed`.
        """
        return self._here(self._rescore(run_id, scorers, options), progress)

    def resume(
        self,
        run_id: str,
        *,
        model: Callable[[Mapping[str, Any]], Any] | None = None,
        scorers: Scorers = (),
        progress: Progress = False,
    ) -> EvaluationResult:
        """Go on with a run that failed or whose owner is gone, under its id; no row that was stored is asked again.

        The functions that it was begun with must be given again. Whether an owner is gone shows when it stands still
        for the lease, which this waits for. Raises `NotFound`, `RunAlreadyFinished`, `JobFailed`, `Conflict` while it
        is worked on, and `InvalidInput` for a function that is missing or has changed.
        """
        with telling(progress, self._run(run_id)) as told:
            job = self._abandoned(run_id, self._runner(LocalCallables()))
            functions = functions_for(job, model, self._named(scorers))
            runner = self._runner(attrs.evolve(functions, principal=self.principal, tally=told.begin))
            return self._drive(runner, self._reclaimed(run_id, runner), told)

    # ---- by workers

    def submit(
        self,
        evaluation: OneObject,
        model: str,
        rows: RowData | None = None,
        scorers: Scorers | None = None,
        *,
        project: str,
        entity: str | None = None,
        **options: Any,
    ) -> EvaluationRun:
        """Put a run into the queue, for workers, and return at once. Model and scorers must be the platform's own.

        Raises as `run` does, and `RateLimited`.
        """
        (order,) = self._orders(evaluation, model, rows, scorers, project, entity, options, by_worker=True)
        return self._queued(order)

    def submit_rescore(self, run_id: str, scorers: Scorers, **options: Unpack[WorkOptions]) -> EvaluationRun:
        """Put a rescoring into the queue, for workers, and return the new run at once. Raises as `rescore` does."""
        order = self._rescore(run_id, scorers, options)
        order.check_portable()
        return self._queued(order)

    def submit_resume(self, run_id: str) -> EvaluationRun:
        """Put what is left of a run that failed into the queue, for workers, and return it at once, running again.

        Raises `NotFound`, `RunAlreadyFinished`, `RateLimited`, and `Conflict` while it is worked on, for a run that
        the engine did not make, and for one that needs functions.
        """
        check_portable(self._job(run_id))
        go_on = self._going_on()

        def step(tx: Tx) -> Job:
            check_idle(tx, run_id)
            return self._reopen(tx, run_id, go_on)

        announce(self.runtime, self.runtime.store.transact(step))
        return self._run(run_id)

    # ---- how it is asked for

    def _orders(
        self,
        evaluation: OneObject,
        model: OneModel | Sequence[OneModel],
        rows: RowData | None,
        scorers: Scorers | None,
        project: str,
        entity: str | None,
        options: Mapping[str, Any],
        by_worker: bool = False,
    ) -> Iterator[RunSpec]:
        """What there is to do, one order for each model; everything is checked when the first is asked for."""
        place = self._sight.place(project, entity)
        models = several(model)
        if rows is None:
            said = Published.of(Objects(self.runtime, self.principal), evaluation_ref(evaluation, place))
            evaluation, rows = str(said.ref), said.dataset
            scorers = said.scorers if scorers is None else scorers
            options = {"trials": said.trials, **options}
        given = self._named("exact_match" if scorers is None else scorers)
        drafts = [order_of(self.runtime, self.principal, evaluation, one, given, place, options) for one in models]
        for draft in drafts if by_worker else ():
            draft.check_portable()
        return kept_rows(self.runtime, self.principal, drafts, rows)

    def _named(self, scorers: Scorers) -> tuple[NamedScorer, ...]:
        return named(scorers, Objects(self.runtime, self.principal))

    def _rescore(self, run_id: str, scorers: Scorers, options: Mapping[str, Any]) -> RunSpec:
        source = self._run(run_id)
        if source.state is RunState.RUNNING:
            raise Conflict(f"evaluation run {run_id} is still running; finish or cancel it, then rescore it")
        total = self.runtime.store.read(lambda snapshot: snapshot.count(Prediction, "by_run", run_id))
        return rescore_order(self.runtime, self.principal, source, total, self._named(scorers), options)

    def _queued(self, order: RunSpec) -> EvaluationRun:
        order.keep(lambda tx: self._add(tx, order))
        announce(self.runtime, order.job)
        return order.run

    # ---- how it is driven

    def _here(
        self, order: RunSpec, progress: Progress, loop: Any = None, stop: Callable[[], bool] = never
    ) -> EvaluationResult:
        with telling(progress, order.run) as told:
            runner = self._runner(attrs.evolve(order.crew, principal=self.principal, loop=loop, tally=told.begin))
            return self._drive(runner, self._begun(order, runner), told, stop)

    def _begun(self, order: RunSpec, runner: Runner) -> ClaimedJob:
        """A hold on the run that an order makes."""

        def step(tx: Tx) -> tuple[Job, JobProgress]:
            self._add(tx, order)
            claimed = claim(tx, runner.id, order.job.created_at, order.run.id)
            assert claimed is not None
            return claimed

        return runner.hold(*order.keep(step))

    def _add(self, tx: Tx, order: RunSpec) -> None:
        tx.add(order.run)
        enqueue(tx, order.job, self.runtime.settings.max_queued_jobs)

    def _runner(self, crew: LocalCallables) -> Runner:
        """A runner of evaluations with these functions. What is broken off fails: it is the caller's to go on with."""

        def work(hold: ClaimedJob) -> Generator[None, None, None]:
            return evaluate(hold, crew)

        kinds = (self.runtime.job_types[kind] for kind in (JobKind.EVALUATE, JobKind.RESCORE))
        types = {one.kind: attrs.evolve(one, run=work) for one in kinds}
        return Runner(self.runtime, types, _interrupt)

    def _drive(
        self, runner: Runner, hold: ClaimedJob, told: Told, stop: Callable[[], bool] = never
    ) -> EvaluationResult:
        announce(self.runtime, hold.job)
        begun = self.runtime.clock.monotonic()
        with runner.beating(), closing(runner.steps(hold, stop)) as steps:
            for _ in steps:
                told.tell(hold.job.spec["total"], self.runtime.clock.monotonic() - begun)
        if self._run(hold.job.lane).state is RunState.RUNNING:
            raise LeaseLost(f"evaluation run {hold.job.lane} was taken over; wait for it")
        return self._completed(hold.job.lane)

    # ---- how it is found again

    def _abandoned(self, run_id: str, runner: Runner) -> Job:
        """The last job of a run, once nobody works on it. Raises `Conflict` when somebody is seen to."""
        first = None
        while (job := self._job(run_id)).status is JobStatus.RUNNING:
            progress = self.runtime.store.read(lambda snapshot: snapshot.get(JobProgress, job.id))
            mark = (progress.epoch, progress.beat, progress.step)
            first = first or mark
            if mark != first:
                raise Conflict(f"somebody works on evaluation run {run_id}; wait for it, or cancel it")
            runner.take_over()
            self.runtime.clock.sleep(self.runtime.settings.poll)
        return job

    def _reclaimed(self, run_id: str, runner: Runner) -> ClaimedJob:
        """A hold on what is left of a run. Raises `RunAlreadyFinished`, `Conflict`."""
        go_on, now = self._going_on(), self.runtime.clock.now()

        def step(tx: Tx) -> tuple[Job, JobProgress] | None:
            if engine_job(tx, run_id).ended:
                self._reopen(tx, run_id, go_on)
            return claim(tx, runner.id, now, run_id)

        claimed = self.runtime.store.transact(step)
        if claimed is None:
            raise Conflict(f"somebody works on evaluation run {run_id}; wait for it, or cancel it")
        return runner.hold(*claimed)

    def _going_on(self) -> Callable[[Job], Job]:
        """What makes, of a job that failed, the one that goes on for this principal."""
        asker = requester_spec(self.runtime, self.principal)
        return partial(again, job_id=self.runtime.ids(), asker=asker, now=self.runtime.clock.now())

    def _reopen(self, tx: Tx, run_id: str, go_on: Callable[[Job], Job]) -> Job:
        """Let a run that has ended run again, by a new job. Raises `RunAlreadyFinished`, `RateLimited`."""
        job = go_on(engine_job(tx, run_id))
        tx.replace(tx.get(EvaluationRun, run_id).reopened())
        return enqueue(tx, job, self.runtime.settings.max_queued_jobs)


def _interrupt(tx: Tx, types: JobTypes, job: Job, event_id: str, now: datetime) -> Job:
    return fail(tx, types, job, event_id, INTERRUPTED, now)
