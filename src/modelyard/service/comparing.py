"""Runs in numbers and two runs side by side (specification 4.5)."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Protocol, Unpack, get_args

from modelyard.domain.evaluation import EvaluationRun
from modelyard.domain.terms import TermOptions
from modelyard.errors import InvalidInput
from modelyard.report.comparison import ComparisonReport
from modelyard.report.evaluation import RunReport
from modelyard.report.export import Format, run_lines
from modelyard.service.asserting import Gate, check_not_worse, checked_gate
from modelyard.service.judged import StoredRun
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
    """The id of a run. Raises `InvalidInput` for what is none."""
    found = run if isinstance(run, str | EvaluationRun) else getattr(run, "run", None)
    if not isinstance(found, str | EvaluationRun):
        raise InvalidInput.at("run", msg="must be a run, its id, or the result of one")
    return found if isinstance(found, str) else found.id


class Comparing(ABC):
    """What `Evaluations` says of the runs that it has: in numbers, beside each other, and row by row."""

    ports: Ports

    @abstractmethod
    def get(self, run_id: str, *, project: str | None = None, entity: str | None = None) -> EvaluationRun:
        """One run that the caller may see."""

    def report(
        self, run: AnyRun, *, project: str | None = None, entity: str | None = None, **options: Unpack[TermOptions]
    ) -> RunReport:
        """A run in numbers, to print, to show in a notebook, and to save as .html, .jsonl or .csv.

        The trials of a row are reduced first, by `reducer`: "mean", "median", "min" or "max". `cluster_by` names an
        input that rows which go together have in common, such as the text that several questions are about: standard
        errors and intervals then allow for it. `confidence` is that of the intervals. Raises `NotFound`,
        `InvalidInput`.
        """
        return RunReport.of(*self._readable(run, project, entity), **options)

    def compare(
        self,
        baseline: AnyRun,
        candidate: AnyRun,
        *,
        project: str | None = None,
        entity: str | None = None,
        **options: Unpack[TermOptions],
    ) -> ComparisonReport:
        """A candidate beside a baseline, row by row: whether it is shown to be better or worse, by each metric.

        Higher is better. Options are those of `report`. Raises `NotFound`, `InvalidInput`.
        """
        before, read_before = self._readable(baseline, project, entity)
        after, read_after = self._readable(candidate, project, entity)
        return ComparisonReport.of(before, after, (read_before, read_after), **options)

    def _readable(self, run: AnyRun, project: str | None, entity: str | None) -> tuple[EvaluationRun, StoredRun]:
        """A run and what reads it. Raises `NotFound`."""
        found = self.get(run_id_of(run), project=project, entity=entity)
        return found, StoredRun(self.ports, found.id)

    def assert_not_worse(
        self,
        candidate: AnyRun,
        baseline: AnyRun,
        *,
        metric: str | None = None,
        margin: float = 0.0,
        **options: Unpack[TermOptions],
    ) -> ComparisonReport:
        """For test suites: fail when the candidate is shown to be worse than the baseline by more than `margin`.

        All metrics count, corrected for how many there are, or the one that is named. A candidate that fails on rows
        where the baseline has a value does not get away with it: it must not be shown to be worse over all rows either,
        a missing value counted as the worst. Raises AssertionError that says on which rows, by how much and how sure
        that is, also when no row was scored in both; `NotFound`, `InvalidInput`.
        """
        found = self.compare(baseline, candidate, **options)
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
        _, reader = self._readable(run, project, entity)
        return run_lines(reader, format)
