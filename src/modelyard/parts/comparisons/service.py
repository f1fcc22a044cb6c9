"""`platform.comparisons`: several runs in one comparison, as `platform.evaluations.compare_all` makes it."""

import os
from collections.abc import Sequence
from typing import Any, Unpack, cast

from modelyard.domain.evaluation.aggregate import Aggregate, ReportKeywords, ReportOptions, aggregate
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import Principal
from modelyard.errors import InvalidInput
from modelyard.parts.comparisons.several import ComparedPair, RunsComparison, corrected, pairs_of
from modelyard.parts.reports.headline import labels_of
from modelyard.platform.evaluations.exported_run import ExportedFile
from modelyard.platform.evaluations.result import AnyRun, run_id_of
from modelyard.platform.evaluations.service import Evaluations
from modelyard.platform.runtime import Runtime
from modelyard.report.evaluations.comparison import ComparisonReport
from modelyard.report.evaluations.export import RunRows

MOST_RUNS = 20


class CompareAll:
    """A table of several runs: `platform.evaluations.compare_all`."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._evaluations = Evaluations(runtime, principal)

    def __call__(
        self,
        runs: Sequence[AnyRun | ExportedFile],
        baseline: AnyRun | ExportedFile | None = None,
        *,
        project: str | None = None,
        entity: str | None = None,
        **options: Unpack[ReportKeywords],
    ) -> RunsComparison:
        """Compare several runs, all with each other or each with a `baseline`, which may be one of them.

        Each pair is compared as `evaluations.compare` does, on the rows that are in both. p is corrected by Holm for
        all pairs and metrics together, so that the chance of one wrong verdict in the whole table is at most
        1 - confidence. Options are those of `report`. Raises `NotFound`, `InvalidInput`.
        """
        given = [*([] if baseline is None else [baseline]), *_checked(runs)]
        given = [one for at, one in enumerate(given) if at == 0 or baseline is None or _id(one) != _id(given[0])]
        _check_count(given)
        places = pairs_of(range(len(given)), None if baseline is None else 0)
        reports = [
            self._evaluations.compare(given[before], given[after], project=project, entity=entity, **options)
            for before, after in places
        ]
        sides: dict[int, tuple[EvaluationRun, RunRows]] = {}
        for (before, after), report in zip(places, reports, strict=True):
            sides |= {before: (report.baseline, report.rows[0]), after: (report.candidate, report.rows[1])}
        return _joined([sides[at] for at in range(len(given))], places, reports, baseline is not None)


def _joined(
    sides: Sequence[tuple[EvaluationRun, RunRows]],
    places: Sequence[tuple[int, int]],
    reports: Sequence[ComparisonReport],
    has_baseline: bool,
) -> RunsComparison:
    labels = labels_of([run for run, _ in sides])
    compared = corrected([report.comparison for report in reports])
    options = compared[0].options
    return RunsComparison(
        {label: run for label, (run, _) in zip(labels, sides, strict=True)},
        {label: _numbers(rows, options) for label, (_, rows) in zip(labels, sides, strict=True)},
        tuple(
            ComparedPair(labels[one], labels[other], found, report.remarks)
            for (one, other), found, report in zip(places, compared, reports, strict=True)
        ),
        labels[0] if has_baseline else None,
    )


def _numbers(rows: RunRows, options: ReportOptions) -> Aggregate:
    """Return the means of a run, of the metrics that it has: `lower_is_better` may name those of others."""
    scored = rows.columns() if options.cluster_by is None else rows.full()
    kept = {"reducer": options.reducer, "cluster_by": options.cluster_by, "confidence": options.confidence}
    return aggregate(scored, keep=0, **cast("ReportKeywords", kept))


# ---- what is given


def _checked(runs: object) -> Sequence[Any]:
    if not isinstance(runs, list | tuple):
        raise InvalidInput.at("runs", msg="must be a list of runs: values, ids or paths of exported runs")
    if len({_id(one) for one in runs}) < len(runs):
        raise InvalidInput.at("runs", msg="has a run twice")
    return runs


def _check_count(given: Sequence[object]) -> None:
    if not 2 <= len(given) <= MOST_RUNS:
        raise InvalidInput.at("runs", msg=f"must have 2 to {MOST_RUNS} runs with the baseline, and has {len(given)}")


def _id(run: Any) -> str:
    return os.fspath(run) if isinstance(run, str | os.PathLike) else run_id_of(run)
