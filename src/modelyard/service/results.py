"""The results of runs, joined by row across them (specification 4.5).

One pass over the runs counts the rows that fit and remembers, of those on the page, no more than their digests and
what they are sorted by; the rows themselves are read afterwards, a few at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.evaluation import EvaluationRun
from modelyard.domain.metric import rows
from modelyard.domain.result_query import ResultQuery, ResultRow, RunSummary, RunTally, joined
from modelyard.service.judged import RowFinder, read_judged
from modelyard.service.ports import Ports


@attrs.frozen
class Results:
    """What a query of results found.

    `rows` are those of the page, read as they are asked for, once; `total_rows` is how many there are in all. `summary`
    is over `summary_rows` rows, one of each run that is here; `missing` are the ids of those that are not. `names`
    tells for each run what its scorers are called.
    """

    runs: Mapping[str, EvaluationRun]
    missing: tuple[str, ...]
    rows: Iterator[ResultRow]
    total_rows: int
    summary: tuple[RunSummary, ...]
    summary_rows: int
    names: Mapping[str, Mapping[str, str]]


def query_results(ports: Ports, runs: Sequence[EvaluationRun], query: ResultQuery) -> Results:
    """The results of runs: those of `query.run_ids` that are here, in that order."""
    search = _Search(query, {run.id: RunTally(run.id) for run in runs})
    for row in joined({run.id: rows(read_judged(ports, run.id)) for run in runs}):
        search.take(row)
    here = {run.id: run for run in runs}
    return Results(
        here,
        tuple(run_id for run_id in query.run_ids if run_id not in here),
        _read(ports, tuple(here), search.page()),
        search.total,
        tuple(tally.summary() for tally in search.tallies.values()),
        search.summary_rows,
        {run_id: tally.names() for run_id, tally in search.tallies.items()},
    )


@attrs.define
class _Search:
    """The pass over all rows."""

    query: ResultQuery
    tallies: Mapping[str, RunTally]
    total: int = 0
    summary_rows: int = 0
    _found: list[tuple[tuple[Any, ...], str]] = attrs.field(factory=list)

    def take(self, row: ResultRow) -> None:
        """Look at the next row, in the order of the digests."""
        for run_id, trials in row.runs.items():
            for trial in trials:
                self.tallies[run_id].note(trial)
        if self.query.keeps(row):
            in_all = self.query.in_all(row)
            self._summarise(row, in_all)
            if in_all or not self.query.require_intersection:
                self._keep(row)

    def _summarise(self, row: ResultRow, in_all: bool) -> None:
        wanted = self.query.summary_require_intersection
        if in_all or not (self.query.require_intersection if wanted is None else wanted):
            self.summary_rows += 1
            for run_id, trials in row.runs.items():
                for trial in trials:
                    self.tallies[run_id].add(trial)

    def _keep(self, row: ResultRow) -> None:
        if self.query.sorts or self.query.window(self.total):
            self._found.append((self.query.sort_values(row), row.digest))
        self.total += 1

    def page(self) -> list[str]:
        """The digests of the rows on the page."""
        ordered = self.query.order(self._found)
        return [digest for at, digest in enumerate(ordered) if self.query.window(at)] if self.query.sorts else ordered


def _read(ports: Ports, run_ids: Sequence[str], digests: Sequence[str]) -> Iterator[ResultRow]:
    """The rows of these digests, but those that have been deleted meanwhile."""
    finders = {run_id: RowFinder(ports, run_id) for run_id in run_ids}
    for digest in digests:
        found = {run_id: finder.trials(digest) for run_id, finder in finders.items()}
        here = {run_id: trials for run_id, trials in found.items() if trials}
        if here:
            yield ResultRow(digest, here)
