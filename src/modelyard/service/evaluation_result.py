"""A run of the engine with its rows, which stay in the store and are read as they are asked for."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

from modelyard.domain.evaluation import EvaluationRun, Outcome, RowResult
from modelyard.domain.expression import scorer_keys
from modelyard.domain.prediction import Prediction, Score
from modelyard.domain.tally import VALUE, outcome_of
from modelyard.protocols import Snapshot
from modelyard.report.evaluation import RunReport
from modelyard.service.judged import StoredRun, scores_of
from modelyard.service.listing import BATCH, everything, scan
from modelyard.service.ports import Ports

_FAULTS = frozenset({Outcome.MODEL_ERROR, Outcome.SCORER_ERROR})


class Rows:
    """The rows of a run in the order in which they were begun, or those of them that `keep` keeps; read in batches."""

    def __init__(self, ports: Ports, run: EvaluationRun, keep: Callable[[RowResult], bool] = everything) -> None:
        self._ports, self._run, self._keep = ports, run, keep

    def __iter__(self) -> Iterator[RowResult]:
        predictions = scan(self._ports, Prediction, "by_run", self._run.id)
        while batch := list(islice(predictions, BATCH)):
            scores = self._ports.store.read(partial(_scores, batch))
            rows = (_row(self._run, *pair) for pair in zip(batch, scores, strict=True))
            yield from filter(self._keep, rows)

    def __len__(self) -> int:
        if self._keep is not everything:
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

    def __init__(self, ports: Ports, run: EvaluationRun) -> None:
        self.run = run
        self._stored = StoredRun(ports, run.id)
        self.rows = Rows(ports, run)
        self.errors = Rows(ports, run, lambda row: row.outcome in _FAULTS)

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
