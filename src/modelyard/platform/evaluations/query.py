"""The results of runs, joined by row across them (specification 4.5). One pass over the runs counts the rows that fit,
and keeps only the digests and sort keys of those on the page. The rows themselves are read afterwards, a few at a time.
The pass reads only what the query needs: mostly views, and only digests and scorers if there is neither a condition nor
an order."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from heapq import merge
from itertools import groupby
from typing import Any

import attrs

from modelyard.domain.evaluation.filters import Field, scorer_keys
from modelyard.domain.evaluation.metrics import FullScoredPrediction, ScoredPrediction, rows
from modelyard.domain.evaluation.results import ResultQuery, ResultRow, RunSummary, RunTotals, joined
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.identity import Principal
from modelyard.errors import Problem
from modelyard.platform.evaluations.references import ScopedReader
from modelyard.platform.evaluations.stored_run import RowFinder, StoredRun
from modelyard.platform.paging import check_slice, unique_ids
from modelyard.platform.runtime import Runtime

MAX_NAMES = 5


@attrs.frozen
class Results:
    """The results of a query. `rows` are those of the page, read lazily, once; `total_rows` is how many there are in
    all.

    `summary` is over `summary_rows` rows, one of each run that exists, if it was requested; `missing` are the ids of
    the others. `names` gives the names of each run's scorers. `unknown` are the names in the query that the runs do not
    have.
    """

    runs: Mapping[str, EvaluationRun]
    missing: tuple[str, ...]
    rows: Iterator[ResultRow[FullScoredPrediction]]
    total_rows: int
    summary: tuple[RunSummary, ...]
    summary_rows: int
    names: Mapping[str, Mapping[str, str]]
    unknown: tuple[Problem, ...]


def query_results(
    runtime: Runtime, principal: Principal, query: ResultQuery, project: str | None, entity: str | None
) -> Results:
    check_slice(query.limit, query.offset)
    reader = ScopedReader(runtime, principal)
    namespace, ids = reader.place(project, entity), unique_ids(query.run_ids)
    find = reader.see
    found = runtime.store.read(lambda snapshot: [find(snapshot, EvaluationRun, run_id, namespace) for run_id in ids])
    here = {run.id: run for run in found if run is not None}
    search = _Search(query, {run_id: RunTotals(run_id) for run_id in here})
    search.over({run_id: StoredRun(runtime, run_id) for run_id in here})
    return Results(
        here,
        tuple(run_id for run_id in query.run_ids if run_id not in here),
        _read(runtime, tuple(here), search.page()),
        search.total,
        tuple(totals.summary() for totals in search.totals.values()) if query.summarise else (),
        search.summary_rows,
        {run_id: totals.names() for run_id, totals in search.totals.items()},
        tuple(search.unknown()),
    )


@attrs.define
class _Search:
    query: ResultQuery
    totals: Mapping[str, RunTotals]
    total: int = 0
    summary_rows: int = 0
    _found: list[tuple[tuple[Any, ...], str]] = attrs.field(factory=list)
    _inputs: tuple[str, ...] | None = None
    _unfound: list[Field] = attrs.field(init=False)

    @_unfound.default
    def _inputs_of_query(self) -> list[Field]:
        return [field for field in self.query.fields if field.path.startswith("inputs.")]

    def over(self, runs: Mapping[str, StoredRun]) -> None:
        if self.query.by_digest_alone:
            self._count(runs)
            return
        full = self.query.looks_inside
        for row in joined({run_id: rows(run.full() if full else run.columns()) for run_id, run in runs.items()}):
            self._take(row)

    def _count(self, runs: Mapping[str, StoredRun]) -> None:
        for run_id, run in runs.items():
            self.totals[run_id].note(run.scorers())
        for digest, several in groupby(merge(*(run.digests() for run in runs.values()))):
            self._keep(digest, self.query.is_in_all(sum(1 for _ in several)), ())

    def _take(self, row: ResultRow[ScoredPrediction]) -> None:
        for run_id, trials in row.runs.items():
            self.totals[run_id].note(score.scorer for _, scores in trials for score in scores)
        if self._unfound:
            self._look_for_inputs(row)
        if self.query.keeps(row):
            in_all = self.query.is_in_all(len(row.runs))
            if self.query.summarise:
                self._summarise(row, in_all)
            self._keep(row.digest, in_all, self.query.sort_values(row))

    def _summarise(self, row: ResultRow[ScoredPrediction], in_all: bool) -> None:
        wanted = self.query.summary_in_all_runs
        if in_all or not (self.query.in_all_runs if wanted is None else wanted):
            self.summary_rows += 1
            for run_id, trials in row.runs.items():
                for trial in trials:
                    self.totals[run_id].add(trial)

    def _keep(self, digest: str, in_all: bool, sort_values: tuple[Any, ...]) -> None:
        if not in_all and self.query.in_all_runs:
            return
        if self.query.sort or self.query.window(self.total):
            self._found.append((sort_values, digest))
        self.total += 1

    def page(self) -> list[str]:
        ordered = self.query.order(self._found)
        return [digest for at, digest in enumerate(ordered) if self.query.window(at)] if self.query.sort else ordered

    def _look_for_inputs(self, row: ResultRow[ScoredPrediction]) -> None:
        names = tuple(dict.fromkeys(name for trial, _ in row.trials(None) for name in trial.inputs))
        self._inputs = self._inputs or names
        self._unfound = [field for field in self._unfound if not _is_named(field, names)]

    def unknown(self) -> Iterator[Problem]:
        for run_id in self.query.where.keys() - {None, *self.query.run_ids}:
            yield Problem(("where", str(run_id)), "must be the id of one of the runs")
        scorers = (scorer for totals in self.totals.values() for scorer in totals.scorers)
        names = tuple(dict.fromkeys(key for scorer in scorers for key in scorer_keys(scorer)))
        for field in self.query.fields:
            if names and field.is_score and not _is_named(field, names):
                yield Problem((field.path,), f"must be a score of these runs, such as {_near(field, names)}")
        for field in self._unfound if self._inputs else ():
            yield Problem((field.path,), f"must be an input of these runs, such as {_near(field, self._inputs or ())}")


def _is_named(field: Field, names: Sequence[str]) -> bool:
    path = field.path.partition(".")[2]
    return any(path == name or path.startswith(f"{name}.") for name in names)


def _near(field: Field, names: Sequence[str]) -> str:
    part, _, path = field.path.partition(".")
    return " or ".join(f"{part}.{name}" for name in get_close_matches(path, names, n=1) or names[:MAX_NAMES])


def _read(
    runtime: Runtime, run_ids: Sequence[str], digests: Sequence[str]
) -> Iterator[ResultRow[FullScoredPrediction]]:
    finders = {run_id: RowFinder(runtime, run_id) for run_id in run_ids}
    for digest in digests:
        found = {run_id: finder.trials(digest) for run_id, finder in finders.items()}
        here = {run_id: trials for run_id, trials in found.items() if trials}
        if here:
            yield ResultRow(digest, here)
