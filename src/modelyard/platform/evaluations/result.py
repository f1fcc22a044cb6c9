"""The result of a run, with its rows; waiting for it; and showing its progress."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import Any

import attrs

from modelyard import report
from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.filters import scorer_keys
from modelyard.domain.evaluation.run import EvaluationRun, Outcome, Prediction, RowResult, RunState, Score
from modelyard.domain.evaluation.running_totals import RATE, VALUE, ProgressReporter, outcome_of
from modelyard.domain.identity import Principal
from modelyard.errors import InvalidInput, JobFailed
from modelyard.platform.evaluations.compare import report_of
from modelyard.platform.evaluations.resume import find_job
from modelyard.platform.evaluations.runs import find_run
from modelyard.platform.evaluations.spec import EvaluationOptions
from modelyard.platform.evaluations.stored_run import scores_of
from modelyard.platform.jobs.waiting import wait_so_long
from modelyard.platform.listing import BATCH, accept_all
from modelyard.platform.paging import cursor_at, iter_index_live
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot
from modelyard.report.evaluations.run import RunReport
from modelyard.report.numbers import model_text, ref_text, score_text
from modelyard.report.table import printable
from modelyard.report.terminal import Show, progress_bar

_FAILED = frozenset({Outcome.MODEL_ERROR, Outcome.SCORER_ERROR})


@attrs.frozen
class _Before:
    """The cursor before all trials of a row, in the index of predictions by their rows."""

    index: int
    trial: int = -1
    seq: int = 0


class Rows:
    """The rows of a run in the order of its dataset, or those that `keep` accepts; read in batches."""

    def __init__(self, runtime: Runtime, run: EvaluationRun, keep: Callable[[RowResult], bool] = accept_all) -> None:
        self._runtime, self._run, self._keep = runtime, run, keep

    def __repr__(self) -> str:
        return f"<{'rows' if self._keep is accept_all else 'some rows'} of run {self._run.id}>"

    def _repr_html_(self) -> str:
        return report.rows_table(self)

    def to_pandas(self) -> Any:
        """Return a data frame with a line for each trial of a row: the row, the output and each score in columns.
        Raises `MissingExtra` if pandas is not installed."""
        return report.data_frame(self)

    def __iter__(self) -> Iterator[RowResult]:
        return self.since(0)

    def since(self, index: int) -> Iterator[RowResult]:
        """Iterate over the rows from the one with this index in the dataset; earlier rows are not read."""
        after = None if index <= 0 else cursor_at(Prediction, "by_index", _Before(index))
        predictions = iter_index_live(self._runtime, Prediction, "by_index", self._run.id, after=after)
        while batch := list(islice(predictions, BATCH)):
            scores = self._runtime.store.read(partial(_scores, batch))
            rows = (_row(self._run, *pair) for pair in zip(batch, scores, strict=True))
            yield from filter(self._keep, rows)

    def __len__(self) -> int:
        if self._keep is not accept_all:
            return sum(1 for _ in self)
        return self._runtime.store.read(lambda snapshot: snapshot.count(Prediction, "by_run", self._run.id))

    def __getitem__(self, at: int) -> RowResult:
        for row in islice(self, at if at >= 0 else len(self) + at, None):
            return row
        raise IndexError(f"the run has no row {at}")

    def find(self, inputs: Mapping[str, object], trial: int = 0) -> RowResult | None:
        found = self._runtime.store.read(partial(_trial, self._run, digest(inputs), trial))
        return found if found is not None and self._keep(found) else None


class EvaluationResult:
    """A run and its rows. `print` it, or leave it at the end of a notebook's cell, to see its report.

    result = platform.evaluations.run("politeness", "echo", rows, project="demo")
    result.score, [row.detail for row in result.errors]
    """

    def __init__(self, runtime: Runtime, run: EvaluationRun) -> None:
        self.run: EvaluationRun = run
        self._runtime = runtime
        self.rows: Rows = Rows(runtime, run)
        self.errors: Rows = Rows(runtime, run, lambda row: row.outcome in _FAILED)

    def __repr__(self) -> str:
        return f"<EvaluationResult {self.run.id} {self.run.state}, score {score_text(self.run)}>"

    def __str__(self) -> str:
        return str(report_of(self._runtime, self.run))

    def _repr_html_(self) -> str:
        return report_of(self._runtime, self.run)._repr_html_()

    @property
    def score(self) -> float | None:
        """The mean over the rows that the first scorer scored, 0 to 1 for bools. None when there are no such rows, and
        if the scorer returns objects."""
        return self.run.summary.get("mean") if self.run.summary else None


def _scores(predictions: list[Prediction], snapshot: Snapshot) -> list[list[Score]]:
    return [scores_of(snapshot, prediction) for prediction in predictions]


def _row(run: EvaluationRun, prediction: Prediction, scores: list[Score]) -> RowResult:
    by_name = {scorer_keys(score.scorer)[0]: score for score in scores}
    first = by_name.get(run.summary["scorer"]) if run.summary and "scorer" in run.summary else next(iter(scores), None)
    value = None if first is None else first.value.get(VALUE)
    error = prediction.error or (first.error if first is not None else None) or ""
    values = {name: score.value[VALUE] for name, score in by_name.items() if VALUE in score.value}
    comments = {name: score.comment for name, score in by_name.items() if score.comment}
    score = float(value) if isinstance(value, int | float) else None
    of = prediction.index or 0, prediction.inputs, outcome_of(prediction, first), prediction.output.get(VALUE), score
    used = prediction.latency, prediction.prompt_tokens, prediction.completion_tokens, prediction.cost
    return RowResult(*of, error, prediction.trial, values, comments, *used)


def _trial(run: EvaluationRun, row_digest: str, trial: int, snapshot: Snapshot) -> RowResult | None:
    for prediction in snapshot.page(Prediction, "by_row", run.id, after=(row_digest, trial, ""), limit=1):
        if (prediction.row_digest, prediction.trial) == (row_digest, trial):
            return _row(run, prediction, scores_of(snapshot, prediction))
    return None


AnyRun = str | EvaluationRun | EvaluationResult | RunReport


def run_id_of(run: AnyRun) -> str:
    if isinstance(run, EvaluationResult | RunReport):
        run = run.run
    if not isinstance(run, str | EvaluationRun):
        raise InvalidInput.at("run", msg="must be a run, its id, or the result of one")
    return run if isinstance(run, str) else run.id


# ---- waiting


def completed(runtime: Runtime, run: EvaluationRun) -> EvaluationResult:
    if run.state is not RunState.COMPLETED:
        raise JobFailed(run.id, run.state, run.reason or "", "evaluation run")
    return EvaluationResult(runtime, run)


def wait(runtime: Runtime, principal: Principal, run_id: str, timeout: float | None) -> EvaluationResult:
    if wait_so_long(runtime, partial(find_job, runtime, principal, run_id), timeout).ended:
        return completed(runtime, find_run(runtime, principal, run_id))
    raise TimeoutError(f"evaluation run {run_id} has not ended after {timeout} seconds")


# ---- progress

Progress = bool | Show
"""Whether to show a bar; or a function that receives how many rows are done, of how many, and numbers by name."""


class RunOptions(EvaluationOptions, total=False):
    progress: Progress


def check_progress(progress: Progress) -> Progress:
    if not isinstance(progress, bool) and not callable(progress):
        raise InvalidInput.at("progress", msg="must be True for a bar, or a function of done, total and numbers")
    return progress


@contextmanager
def reporting(progress: Progress, run: EvaluationRun) -> Iterator[ProgressReporter]:
    shown = check_progress(progress)
    if not isinstance(shown, bool):
        yield ProgressReporter(shown)
        return
    with _bar(run) if shown else nullcontext() as show:
        yield ProgressReporter(show)


@contextmanager
def _bar(run: EvaluationRun) -> Iterator[Show]:
    """Show a bar without the rate among its numbers: the bar shows a rate itself."""
    label = printable(f"{model_text(run)} on {ref_text(run.evaluation)}")
    with progress_bar(label, "row") as show:
        yield lambda done, total, known: show(done, total, {name: known[name] for name in known if name != RATE})
