"""Runs in numbers and two runs side by side (specification 4.5)."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Protocol, get_args

from modelyard.domain.aggregate import aggregate
from modelyard.domain.comparison import compare
from modelyard.domain.evaluation import EvaluationRun
from modelyard.domain.statistics import CONFIDENCE
from modelyard.errors import InvalidInput
from modelyard.report.comparison import ComparisonReport
from modelyard.report.evaluation import RunReport
from modelyard.report.export import Format, run_lines
from modelyard.service.asserting import Gate, check_not_worse, checked_gate
from modelyard.service.judged import read_judged
from modelyard.service.ports import Ports


class HasRun(Protocol):
    """Anything that has a run, such as what `Evaluations.run` returns."""

    @property
    def run(self) -> EvaluationRun:
        """The run."""
        ...


AnyRun = str | EvaluationRun | HasRun
"""A run by its id or by value."""


def run_id_of(run: AnyRun) -> str:
    """The id of a run."""
    if isinstance(run, str):
        return run
    return run.id if isinstance(run, EvaluationRun) else run.run.id


def check_confidence(confidence: float) -> None:
    """Raise `InvalidInput` unless it lies between 0.5 and 1."""
    if not 0.5 <= confidence < 1:
        raise InvalidInput.at("confidence", msg="must be at least 0.5 and below 1, such as 0.95")


class Comparing(ABC):
    """What `Evaluations` says of the runs that it has: in numbers, beside each other, and row by row."""

    ports: Ports

    @abstractmethod
    def get(self, run_id: str, *, project: str | None = None, entity: str | None = None) -> EvaluationRun:
        """One run that the caller may see."""

    def report(
        self,
        run: AnyRun,
        *,
        reducer: str = "mean",
        cluster_by: str | None = None,
        confidence: float = CONFIDENCE,
        project: str | None = None,
        entity: str | None = None,
    ) -> RunReport:
        """A run in numbers, to print, to show in a notebook, and to save as .html, .jsonl or .csv.

        The trials of a row are reduced first: by "mean", "median", "min" or "max". `cluster_by` names an input that
        rows which go together have in common, such as the text that several questions are about: standard errors and
        intervals then allow for it. Raises `NotFound`, `InvalidInput`.
        """
        check_confidence(confidence)
        found = self.get(run_id_of(run), project=project, entity=entity)
        read = partial(read_judged, self.ports, found.id)
        numbers = aggregate(read(), reducer=reducer, cluster_by=cluster_by, confidence=confidence)
        return RunReport(found, numbers, read)

    def compare(
        self,
        baseline: AnyRun,
        candidate: AnyRun,
        *,
        reducer: str = "mean",
        cluster_by: str | None = None,
        confidence: float = CONFIDENCE,
        project: str | None = None,
        entity: str | None = None,
    ) -> ComparisonReport:
        """A candidate beside a baseline, row by row: whether it is shown to be better or worse, by each metric.

        Higher is better. Options are those of `report`. Raises `NotFound`, `InvalidInput`.
        """
        check_confidence(confidence)
        before, after = (self.get(run_id_of(run), project=project, entity=entity) for run in (baseline, candidate))
        reads = (partial(read_judged, self.ports, before.id), partial(read_judged, self.ports, after.id))
        numbers = compare(*(read() for read in reads), reducer=reducer, cluster_by=cluster_by, confidence=confidence)
        return ComparisonReport(before, after, numbers, *reads)

    def assert_not_worse(
        self,
        candidate: AnyRun,
        baseline: AnyRun,
        *,
        metric: str | None = None,
        margin: float = 0.0,
        confidence: float = CONFIDENCE,
        reducer: str = "mean",
        cluster_by: str | None = None,
    ) -> ComparisonReport:
        """For test suites: fail when the candidate is shown to be worse than the baseline by more than `margin`.

        All metrics count, corrected for how many there are, or the one that is named. A candidate that fails on rows
        where the baseline has a value does not get away with it: it must not be shown to be worse over all rows either,
        a missing value counted as the worst. Raises AssertionError that says on which rows, by how much and how sure
        that is, also when no row was scored in both; `NotFound`, `InvalidInput`.
        """
        found = self.compare(baseline, candidate, reducer=reducer, cluster_by=cluster_by, confidence=confidence)
        check_not_worse(found, metric, margin)
        return found

    def gate(self, run: AnyRun, thresholds: Mapping[str, float], *, max_errors: float = 0.0) -> Gate:
        """Whether each metric's mean reaches its threshold: `assert gate.passed, gate`.

        A metric without a scored row fails, as does one with a larger share of failed trials than `max_errors`. Raises
        `NotFound`, `InvalidInput`.
        """
        return checked_gate(self.report(run), thresholds, max_errors)

    def export(
        self, run: AnyRun, format: Format = "jsonl", *, project: str | None = None, entity: str | None = None
    ) -> Iterator[bytes]:
        """Every prediction of a run with its scores, as JSON Lines or CSV, read as it is asked for.

        Raises `NotFound` at once, `InvalidInput` for another format.
        """
        if format not in get_args(Format):
            raise InvalidInput.at("format", msg=f"must be one of {', '.join(get_args(Format))}")
        found = self.get(run_id_of(run), project=project, entity=entity)
        return run_lines(partial(read_judged, self.ports, found.id), format)
