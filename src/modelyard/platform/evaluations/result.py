"""A run of the engine with its rows, which stay in the store and are read as they are asked for."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice

from modelyard.domain.evaluation.filters import scorer_keys
from modelyard.domain.evaluation.prediction import Prediction, Score
from modelyard.domain.evaluation.run import EvaluationRun, Outcome, RowResult
from modelyard.domain.evaluation.running_totals import VALUE, RunningTotals, outcome_of
from modelyard.errors import InvalidInput
from modelyard.platform.evaluations.stored_run import StoredRun, scores_of
from modelyard.platform.paging import BATCH, accept_all, iter_index_live
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot
from modelyard.report.evaluations.run import RunReport
from modelyard.report.numbers import ref_text
from modelyard.report.progress import Show, progress_bar
from modelyard.report.table import printable

_FAULTS = frozenset({Outcome.MODEL_ERROR, Outcome.SCORER_ERROR})


class Rows:
    """The rows of a run in the order in which they were begun, or those of them that `keep` keeps; read in batches."""

    def __init__(self, runtime: Runtime, run: EvaluationRun, keep: Callable[[RowResult], bool] = accept_all) -> None:
        self._ports, self._run, self._keep = runtime, run, keep

    def __iter__(self) -> Iterator[RowResult]:
        predictions = iter_index_live(self._ports, Prediction, "by_run", self._run.id)
        while batch := list(islice(predictions, BATCH)):
            scores = self._ports.store.read(partial(_scores, batch))
            rows = (_row(self._run, *pair) for pair in zip(batch, scores, strict=True))
            yield from filter(self._keep, rows)

    def __len__(self) -> int:
        if self._keep is not accept_all:
            return sum(1 for _ in self)
        return self._ports.store.read(lambda snapshot: snapshot.count(Prediction, "by_run", self._run.id))

    def __getitem__(self, at: int) -> RowResult:
        for row in islice(self, at if at >= 0 else len(self) + at, None):
            return row
        raise IndexError(f"the run has no row {at}")


class EvaluationResult:
    """A run that has ended, and its rows. `print` it, or leave it at the end of a notebook's cell, to see its report.

    result = platform.evaluations.run("politeness", "echo", rows, project="demo")
    result.score, [row.detail for row in result.errors]
    """

    def __init__(self, runtime: Runtime, run: EvaluationRun) -> None:
        self.run = run
        self._stored = StoredRun(runtime, run.id)
        self.rows = Rows(runtime, run)
        self.errors = Rows(runtime, run, lambda row: row.outcome in _FAULTS)

    def __repr__(self) -> str:
        return f"<EvaluationResult {self.run.id} {self.run.state}, score {self.score}>"

    def __str__(self) -> str:
        return str(RunReport.of(self.run, self._stored))

    def _repr_html_(self) -> str:
        return RunReport.of(self.run, self._stored)._repr_html_()

    @property
    def score(self) -> float | None:
        """The mean over the rows that the first scorer scored, 0 to 1 for bools; None when there is none, and where it
        answers objects.
        """
        return self.run.summary.get("mean") if self.run.summary else None


def _scores(predictions: list[Prediction], snapshot: Snapshot) -> list[list[Score]]:
    return [scores_of(snapshot, prediction) for prediction in predictions]


def _row(run: EvaluationRun, prediction: Prediction, scores: list[Score]) -> RowResult:
    by_name = {scorer_keys(score.scorer)[0]: score for score in scores}
    first = by_name.get(run.summary["scorer"]) if run.summary and "scorer" in run.summary else next(iter(scores), None)
    value = None if first is None else first.value.get(VALUE)
    return RowResult(
        prediction.index or 0,
        prediction.inputs,
        outcome_of(prediction, first),
        prediction.output.get(VALUE),
        float(value) if isinstance(value, int | float) else None,
        prediction.error or (first.error if first is not None else None) or "",
        prediction.trial,
        {name: score.value[VALUE] for name, score in by_name.items() if VALUE in score.value},
    )


Progress = bool | Show
"""Whether to show a bar; or a function that is told how many rows are done, of how many, and numbers by name."""

RATE = "rows/s"


class Told:
    """What the engine has told of its count, and whom to tell it; rows that were stored before are told first."""

    def __init__(self, show: Show | None) -> None:
        self._show = show
        self._tally: RunningTotals | None = None
        self._before: int | None = None
        self._shown = -1

    def begin(self, tally: RunningTotals) -> None:
        """Hear of the count."""
        self._tally = tally

    def tell(self, total: int | None, seconds: float) -> None:
        """Tell how far it has come so many seconds after it began, if that is further than before."""
        if self._show is None or self._tally is None:
            return
        rows = self._tally.rows
        self._before = rows if self._before is None else self._before
        if rows > self._shown:
            self._shown = rows
            self._show(rows, total, numbers(self._tally, rows - self._before, seconds))


@contextmanager
def telling(progress: Progress, run: EvaluationRun) -> Iterator[Told]:
    """What tells of the progress of a run, as long as the context lasts. Raises `InvalidInput`, ImportError."""
    if isinstance(progress, bool):
        with _bar(run) if progress else nullcontext() as show:
            yield Told(show)
    elif callable(progress):
        yield Told(progress)
    else:
        raise InvalidInput.at("progress", msg="must be True for a bar, or a function of done, total and numbers")


@contextmanager
def _bar(run: EvaluationRun) -> Iterator[Show]:
    """A bar beside which the rate does not stand: it tells that itself."""
    label = printable(f"{ref_text(run.model)} on {ref_text(run.evaluation)}")
    with progress_bar(label, "row") as show:
        yield lambda done, total, told: show(done, total, {name: told[name] for name in told if name != RATE})


def numbers(tally: RunningTotals, rows: int, seconds: float) -> Mapping[str, float]:
    """The running score, failed rows, the rate (`rows` in so many seconds), and USD, where they are known."""
    failed = tally.failed if tally.rows else None
    known = {"score": tally.mean, "failed": failed, RATE: rows / seconds if seconds > 0 else None}
    cost = tally.cost
    return {
        **{name: float(value) for name, value in known.items() if value is not None},
        **({} if cost is None else {"cost": float(cost)}),
    }
