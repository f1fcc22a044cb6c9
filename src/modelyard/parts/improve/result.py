"""What an improvement came to: its roads side by side, as a table and as a plot of quality against money."""

from decimal import Decimal
from functools import cached_property
from typing import Any

import attrs

from modelyard.domain.evaluation.comparison import Verdict
from modelyard.domain.evaluation.statistics import Interval
from modelyard.parts.comparisons.several import RunsComparison
from modelyard.parts.comparisons.sheet import Sheet, SheetTable, Shown
from modelyard.parts.reports.frames import load_pandas
from modelyard.parts.reports.line_plot import Panel, Plot, Series
from modelyard.report.numbers import NONE

COLUMNS = ("road", "version", "score", "difference", "interval", "p", "verdict", "USD", "per USD", "what happened")
NUMBERS = ("score", "difference", "interval", "p", "USD", "per USD")


@attrs.frozen
class RoadResult:
    """What a road came to. `version` is that of the variant, None where it made none. `score` is the mean reward of it
    on the unseen rows, and `difference` that to the version that all began with, with its interval, which is widened
    for the number of roads (Bonferroni); `p` is corrected for it, too (Holm). `spent` is in USD. `why` says what has
    ended it, in words. `job` is the id of its job, None before it begins."""

    road: str
    version: int | None
    score: float | None
    difference: float | None
    interval: Interval | None
    p: float | None
    verdict: Verdict | None
    spent: Decimal
    why: str
    job: str | None = None

    @property
    def between(self) -> str:
        """The interval in words, empty if there is none."""
        return "" if self.interval is None else f"{self.interval.low:+.4g} to {self.interval.high:+.4g}"

    def plain(self) -> dict[str, Any]:
        """Return it as one level of plain values, the interval in words."""
        return {**attrs.asdict(self, recurse=False), "interval": self.between, "per_usd": self.per_usd}

    @property
    def per_usd(self) -> float | None:
        """How much of the reward a USD has bought, None for what was free or made nothing."""
        return None if not self.spent or self.difference is None else self.difference / float(self.spent)


@attrs.frozen(repr=False, slots=False)
class ImprovementResult(Shown):
    """The roads of an improvement side by side: `print` it, leave it at the end of a notebook's cell, or save it.
    `baseline` is the score of the version `number` that all began with, on the same `rows`."""

    name: str
    variant: str
    number: int
    baseline: float | None
    rows: int
    roads: tuple[RoadResult, ...]
    comparison: RunsComparison | None

    @property
    def best(self) -> RoadResult | None:
        """The road that is shown to be better than the beginning, by most; None if none is."""
        better = [one for one in self.roads if one.verdict is Verdict.BETTER]
        return max(better, key=lambda one: one.difference or 0.0, default=None)

    @property
    def recommendation(self) -> str:
        """What to serve, in words."""
        best = self.best
        if best is None:
            return f"No road is shown to be better than {self.variant}@{self.number}: keep it."
        return (
            f"Take {self.variant}@{best.version}, by the road {best.road}: {best.difference:+.4g} ({best.between}) "
            f"on unseen rows, for {best.spent:f} USD."
        )

    def plot(self) -> Plot:
        """Plot the score on unseen rows against what was spent, a line from the beginning to each road."""
        start = self.baseline or 0.0
        scored = [(one, one.score) for one in self.roads if one.score is not None]
        ends = [(f"{one.road}, version {one.version}", (float(one.spent), score)) for one, score in scored]
        lines = [Series(road, [(0.0, start), end]) for road, end in ends]
        return Plot("Roads by what they cost", "USD spent", (Panel("score on unseen rows", tuple(lines)),))

    def to_pandas(self) -> Any:
        """Return the roads as a data frame. Raises `MissingExtra` if pandas is not installed."""
        return load_pandas().DataFrame([one.plain() for one in self.roads])

    def __repr__(self) -> str:
        return f"<ImprovementResult {self.name}: {self.recommendation}>"

    @cached_property
    def sheet(self) -> Sheet:
        """The table of the roads, and what it says."""
        start = (f"{self.variant}@{self.number}", self.number, _number(self.baseline), *[NONE] * 6, "where all began")
        lines = [start, *(_line(one) for one in self.roads)]
        notes = [f"means of {self.rows} rows that no road has seen; differences from the first line, row by row"]
        if self.baseline is None:
            notes.append("the first line has no score: none of its rows was answered and scored; its run says why")
        if self.comparison is not None and self.comparison.tests > 1:
            notes.append(f"p corrected for {self.comparison.tests} tests (Holm)")
        table = SheetTable("Roads", COLUMNS, lines, NUMBERS)
        return Sheet(f"Improvement {self.name}", [self.recommendation], [table], notes)


def _line(one: RoadResult) -> tuple[object, ...]:
    made = NONE if one.version is None else one.version
    verdict = NONE if one.verdict is None else one.verdict.value
    numbers = (_number(one.score), _number(one.difference), one.between or NONE, _number(one.p))
    return one.road, made, *numbers, verdict, f"{one.spent:f}", _number(one.per_usd), one.why


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}"
