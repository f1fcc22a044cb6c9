"""`platform.evaluations`: evaluate models, and read the results (specification 4.5)."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Never, Unpack

from modelyard.domain.evaluation.aggregate import ReportKeywords
from modelyard.domain.evaluation.objects import OneObject
from modelyard.domain.evaluation.results import QueryOptions, ResultQuery
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import Principal
from modelyard.domain.training import TrainingEvent
from modelyard.errors import InvalidInput
from modelyard.lazy import asyncio
from modelyard.platform.evaluations import compare, events, result
from modelyard.platform.evaluations.compare import QualityGate
from modelyard.platform.evaluations.exported_run import ExportedFile, ExportedRun
from modelyard.platform.evaluations.input_rows import RowData, build_specs
from modelyard.platform.evaluations.local_runs import resume_here, run_here
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.predictions import Predictions, Scores
from modelyard.platform.evaluations.query import Results, query_results
from modelyard.platform.evaluations.queued import queue_evaluation, queue_rescore
from modelyard.platform.evaluations.rescore import build_rescore_spec
from modelyard.platform.evaluations.result import AnyRun, EvaluationResult, Progress, RunOptions
from modelyard.platform.evaluations.resume import requeue
from modelyard.platform.evaluations.runs import Runs, find_run
from modelyard.platform.evaluations.scorers import ModelFunction, Scorers
from modelyard.platform.evaluations.spec import EvaluationOptions, OneModel, RunSpec, WorkOptions
from modelyard.platform.extended import Extended
from modelyard.platform.jobs.queue import announce
from modelyard.platform.jobs.runner import never
from modelyard.platform.runtime import Runtime
from modelyard.report.evaluations.comparison import ComparisonReport
from modelyard.report.evaluations.export import Format
from modelyard.report.evaluations.run import RunReport

if TYPE_CHECKING:
    from modelyard.parts.resources import EvaluationsMembers
else:
    EvaluationsMembers = object


class Evaluations(Extended, EvaluationsMembers):
    """Evaluates models for a principal, and reads the runs that they may see.

    print(platform.evaluations.run("politeness", "echo", rows))
    """

    AREA: ClassVar[str] = "evaluations."

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        super().__init__(runtime, principal)
        self._specs = partial(build_specs, runtime, principal)

    @property
    def runs(self) -> Runs:
        return Runs(self._runtime, self._principal)

    @property
    def objects(self) -> Objects:
        """Datasets, scorers, models, evaluations and ops, in versions."""
        return Objects(self._runtime, self._principal)

    @property
    def predictions(self) -> Predictions:
        return Predictions(self._runtime, self._principal)

    @property
    def scores(self) -> Scores:
        return Scores(self._runtime, self._principal)

    # ---- evaluating in this process

    def run(
        self,
        evaluation: OneObject,
        model: OneModel,
        rows: RowData | None = None,
        scorers: Scorers | None = None,
        **options: Unpack[RunOptions],
    ) -> EvaluationResult:
        """Evaluate a model: call it with every row, and score its outputs, in a new run.

        A row has `messages` (or `prompt`, a string) and any fields that the scorers read, such as `expected`. `model`
        is a name that completions take, its reference, an entry, a trained model or a checkpoint, or a function of the
        row. A trained model is pinned to its checkpoint of this moment. `rows` are mappings, a version of a dataset, or
        the path of a file: CSV if it ends in .csv, else JSON Lines. They are read once and stored before the first
        call. Without them, dataset, scorers and trials are those of the published evaluation, and the run is pinned to
        its version of this moment. An evaluation is given by its name ("quiz", "quiz:v0"), by a reference, or as the
        version that `objects.publish` returned. `scorers` are "exact_match" by default.

        `options` are those of `chat.complete`, of `EvaluationOptions` and of `WorkOptions`, and `progress`: True for a
        bar, or a function that receives how many rows are done, of how many, and numbers by name. A row on which the
        model or a scorer fails is stored with its error and counted; only scored rows are in the mean.

        Raises TypeError for an unknown option; `InvalidInput`, `ModelNotFound`, `Forbidden` before the first row; and
        `JobFailed` for a run that failed or was cancelled. What was done stays, and `resume` continues a failed run.
        """
        return self.run_each(evaluation, (model,), rows, scorers, **options)[0]

    def run_each(
        self,
        evaluation: OneObject,
        models: Sequence[OneModel],
        rows: RowData | None = None,
        scorers: Scorers | None = None,
        **options: Unpack[RunOptions],
    ) -> list[EvaluationResult]:
        """Evaluate several models, one after the other, each in its own run. Everything is checked first. Rows are read
        once. Raises as `run` does."""
        progress = result.check_progress(options.pop("progress", False))
        with closing(self._specs(evaluation, models, rows, scorers, options)) as specs:
            return [self._run_here(spec, progress) for spec in specs]

    async def arun(
        self,
        evaluation: OneObject,
        model: OneModel,
        rows: RowData | None = None,
        scorers: Scorers | None = None,
        **options: Unpack[RunOptions],
    ) -> EvaluationResult:
        """Evaluate a model from a task, like `run`. Async models and scorers run on this event loop. The loop is never
        blocked: `rows` are read, and `progress` is called, in a thread."""
        return (await self.arun_each(evaluation, (model,), rows, scorers, **options))[0]

    async def arun_each(
        self,
        evaluation: OneObject,
        models: Sequence[OneModel],
        rows: RowData | None = None,
        scorers: Scorers | None = None,
        **options: Unpack[RunOptions],
    ) -> list[EvaluationResult]:
        """Evaluate several models from a task, like `run_each` and `arun`."""
        progress = result.check_progress(options.pop("progress", False))
        gone, loop = threading.Event(), asyncio.get_running_loop()

        def work() -> list[EvaluationResult]:
            with closing(self._specs(evaluation, models, rows, scorers, options)) as specs:
                return [self._run_here(spec, progress, loop, gone.is_set) for spec in specs]

        return await self._runtime.threads.backends.of(self._principal.entity).run(work, gone.set)

    def rescore(
        self, run_id: str, scorers: Scorers, *, progress: Progress = False, **options: Unpack[WorkOptions]
    ) -> EvaluationResult:
        """Score the outputs of a run that has ended again, in a new run. The source stays as it is.

        The new run shares the outputs: latency, usage and cost are the source's and are reported as such
        (`copied_from`), and rows on which the model failed stay failed. Raises `NotFound`, `Conflict`, `InvalidInput`,
        `JobFailed`.
        """
        spec = build_rescore_spec(self._runtime, self._principal, self.runs.get(run_id), scorers, options)
        return self._run_here(spec, progress)

    def resume(
        self, run_id: str, *, model: ModelFunction | None = None, scorers: Scorers = (), progress: Progress = False
    ) -> EvaluationResult:
        """Continue a run that failed or lost its owner, under its id; no stored row is evaluated again.

        The functions that it was begun with must be passed again. Shards are queued for workers. An owner is gone when
        it makes no progress for the lease, which this waits for. Raises `NotFound`, `RunAlreadyFinished`, `JobFailed`,
        `Conflict` while another process works on it, `InvalidInput` for a function that is missing or has changed.
        """
        with result.reporting(progress, find_run(self._runtime, self._principal, run_id)) as reporter:
            run = resume_here(self._runtime, self._principal, run_id, model, scorers, reporter)
        return result.completed(self._runtime, run)

    # ---- evaluating by workers

    def submit(
        self,
        evaluation: OneObject,
        model: str,
        rows: RowData | None = None,
        scorers: Scorers | None = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[EvaluationOptions],
    ) -> EvaluationRun:
        """Queue a run for workers, and return it at once. Model and scorers must be the platform's own. With an
        `idempotency_key` (1 to 255 visible ASCII characters) the same request is the same run for ever. Raises as `run`
        does, and `RateLimited`, and `IdempotencyKeyUsed` for another request with the key."""
        asked = (evaluation, (model,), rows, scorers, options)
        return queue_evaluation(self._runtime, self._principal, idempotency_key, *asked)

    def submit_rescore(
        self, run_id: str, scorers: Scorers, *, idempotency_key: str | None = None, **options: Unpack[WorkOptions]
    ) -> EvaluationRun:
        """Queue a rescoring for workers, and return the new run at once. Raises as `rescore` and `submit` do."""
        source = self.runs.get(run_id)
        return queue_rescore(self._runtime, self._principal, idempotency_key, source, scorers, options)

    def submit_resume(self, run_id: str) -> EvaluationRun:
        """Queue what is left of a failed run for workers, and return the run at once, running again. Raises `NotFound`,
        `RunAlreadyFinished`, `RateLimited`, and `Conflict` while it is worked on, for a run that the engine did not
        make, and for one that needs functions."""
        for job in requeue(self._runtime, self._principal, run_id):
            announce(self._runtime, job)
        return find_run(self._runtime, self._principal, run_id)

    # ---- following a run

    def wait(self, run_id: str, timeout: float | None = None) -> EvaluationResult:
        """Wait until a run has completed, and return its result. If no worker is alive, this thread works on it. Raises
        `NotFound`, `JobFailed`; and TimeoutError after `timeout` seconds."""
        return result.wait(self._runtime, self._principal, run_id, timeout)

    def events(self, run_id: str, after: str | None = None, *, follow: bool = True) -> Iterator[TrainingEvent]:
        """Yield the events of a run, live, until it has ended. `after` is the id of the event to start after. If no
        worker is alive, this thread works on the run; leaving the loop gives it back. Without `follow`, only the events
        recorded so far are yielded, which are none for a client's own run. Raises `NotFound`."""
        find_run(self._runtime, self._principal, run_id)
        return events.follow_events(self._runtime, self._principal, run_id, after, follow)

    async def aevents(
        self, run_id: str, after: str | None = None, *, follow: bool = True
    ) -> AsyncIterator[TrainingEvent]:
        """Yield the events of a run live, like `events`, without blocking the event loop."""
        async for event in events.afollow_events(self._runtime, self._principal, run_id, after, follow):
            yield event

    # ---- results

    def result(self, run_id: str) -> EvaluationResult:
        """Return a run with its rows, as it is now. Raises `NotFound`."""
        return EvaluationResult(self._runtime, find_run(self._runtime, self._principal, run_id))

    def results(
        self,
        runs: Sequence[AnyRun],
        *,
        check_names: bool = True,
        project: str | None = None,
        entity: str | None = None,
        **options: Unpack[QueryOptions],
    ) -> Results:
        """Join the rows of a project's runs by their contents: filtered, sorted, counted, a page of them.

            right = field("scores.right") == True
            results([before, after], where={before.id: right, after.id: ~right}, sort="inputs.prompt")

        `where` is a condition on a row's trials in each run, or conditions by the ids of the runs that must hold
        together; with `match="any"` it is enough that one run fits. `sort` names fields, or is a `Sort` or several.
        `in_all_runs` leaves out rows that some run lacks. `summarise` gives a summary of each run, over all rows that
        fit; `summary_in_all_runs` limits it to rows of all runs. Runs that do not exist are returned as `missing`.

        Raises `InvalidInput`, also for a scorer, an input or a run in the query that no row has, unless `check_names`
        is false; `CallerError` for a field that is not one of scores, inputs and output; `Forbidden`.
        """
        query = ResultQuery(tuple(map(result.run_id_of, runs)), **options)
        found = query_results(self._runtime, self._principal, query, project, entity)
        if check_names and found.unknown:
            raise InvalidInput(found.unknown)
        return found

    def report(
        self, run: AnyRun, *, project: str | None = None, entity: str | None = None, **options: Unpack[ReportKeywords]
    ) -> RunReport:
        """Report a run in numbers, to print, to show in a notebook, and to save (`RunReport.save`).

        The trials of a row are reduced first, by `reducer` (`ReportOptions`). `cluster_by` names an input that related
        rows share, such as the text that several questions are about: standard errors and intervals then allow for it.
        `confidence` is that of the intervals. `lower_is_better` names metrics, or scorers, of which lower values are
        better. Raises `NotFound`, `InvalidInput`.
        """
        return compare.report_of(self._runtime, self._run(run, project, entity), **options)

    def compare(
        self,
        baseline: AnyRun | ExportedFile,
        candidate: AnyRun | ExportedFile,
        *,
        project: str | None = None,
        entity: str | None = None,
        **options: Unpack[ReportKeywords],
    ) -> ComparisonReport:
        """Compare a candidate with a baseline, row by row: whether it is shown to be better or worse, by each metric.

        Either may be the path of a run that was exported, also from another store, by `report(run).save("x.jsonl")`.
        Higher is better, except in `lower_is_better`. Options are those of `report`. Raises `NotFound`, `InvalidInput`.
        """
        runs: tuple[Any, ...] = (baseline, candidate)
        before, after = (ExportedRun.of(run) or self._run(run, project, entity) for run in runs)
        return compare.compare_runs(self._runtime, before, after, **options)

    def remarks(self, *runs: AnyRun) -> tuple[str, ...]:
        """Return what parts say of a run, or of a baseline and a candidate: means that are corrected by labels."""
        return compare.remarks(self._runtime, [self._run(run, None, None) for run in runs], {})

    def assert_not_worse(
        self,
        *by_position: Never,
        baseline: AnyRun | ExportedFile,
        candidate: AnyRun | ExportedFile,
        metric: str | None = None,
        margin: float = 0.0,
        **options: Unpack[ReportKeywords],
    ) -> ComparisonReport:
        """Fail a test when the candidate is shown to be worse than the baseline by more than `margin`.

        All metrics count, corrected for how many there are, or the one that is named. A candidate gains nothing by
        failing on rows: it must not be shown to be worse over all rows either, with a missing value counted as the
        worst. Raises AssertionError with the rows, the differences and how certain these are, also when no row was
        scored in both; `NotFound`, `InvalidInput`; and TypeError for runs by position, which could be swapped.
        """
        if by_position:
            raise TypeError("assert_not_worse takes runs by name: baseline= and candidate=")
        report = self.compare(baseline=baseline, candidate=candidate, **options)
        compare.assert_not_worse(report, metric, margin)
        return report

    def gate(self, run: AnyRun, thresholds: Mapping[str, float], *, max_errors: float = 0.0) -> QualityGate:
        """Check whether each metric's mean reaches its threshold: `assert gate.passed, gate`. A metric without a scored
        row fails, as does one with a larger share of failed trials than `max_errors`. Raises `NotFound`,
        `InvalidInput`."""
        return compare.check_thresholds(self.report(run), thresholds, max_errors)

    def export(
        self, run: AnyRun, format: Format = "jsonl", *, project: str | None = None, entity: str | None = None
    ) -> Iterator[bytes]:
        """Export every prediction of a run with its scores, as JSON Lines or CSV. The rows are read lazily. Raises
        `NotFound` at once, `InvalidInput` for another format."""
        return compare.export_lines(self._runtime, self._run(run, project, entity), format)

    # ---- parts

    def _run_here(
        self, spec: RunSpec, progress: Progress, loop: Any = None, stop: Callable[[], bool] = never
    ) -> EvaluationResult:
        with result.reporting(progress, spec.run) as reporter:
            run = run_here(self._runtime, self._principal, spec, reporter, loop, stop)
        return result.completed(self._runtime, run)

    def _run(self, run: AnyRun, project: str | None, entity: str | None) -> EvaluationRun:
        return self.runs.get(result.run_id_of(run), project=project, entity=entity)
