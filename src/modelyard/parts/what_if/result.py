"""What came of a question: costs, answers compared row by row, and what users would have said."""

import heapq
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import attrs

from modelyard.domain.evaluation.statistics import Paired
from modelyard.domain.usage import EXACT
from modelyard.parts.what_if.estimates import Counterfactual
from modelyard.parts.what_if.question import AskingEstimate
from modelyard.parts.what_if.records import AskedRow
from modelyard.parts.what_if.repricing import Repriced
from modelyard.report.table import text_table

SHOWN = 10
_TEXT = 60


@attrs.frozen
class AnsweredAgain:
    """The rows that were asked again: how many are `done`, of them `failed`, and how the new answers compare with those
    that were served, row by row: the judge's `score`, or the `logprob` of a token of the served answers, each with its
    interval. Costs are those of the rows of which both are known. `why` is what most of the failed ones say."""

    done: int
    failed: int
    score: Paired | None
    logprob: Paired | None
    served_cost: Decimal
    cost: Decimal
    spent: Decimal
    why: str = ""


@attrs.frozen(repr=False)
class WhatIf:
    """What would have been. `id` and `status` are those of the job that asked again, None where nothing was asked;
    `reason` is why it ended before all rows were done.

    `repriced` is what the calls of the time would have cost, `answers` what came of asking again, and `feedback` what
    users would have said. None is what was not asked for.
    """

    model: str | None
    id: str | None = None
    status: str | None = None
    reason: str = ""
    estimate: AskingEstimate | None = None
    repriced: Repriced | None = None
    answers: AnsweredAgain | None = None
    feedback: Counterfactual | None = None
    read: Callable[[], Iterator[AskedRow]] = attrs.field(default=lambda: iter(()), repr=False, eq=False)

    def rows(self) -> Iterator[AskedRow]:
        """Yield the rows that were asked again, in the order in which they were begun."""
        return self.read()

    def differing(self, count: int = SHOWN) -> list[AskedRow]:
        """Return the rows that differ most, by their score or log-probability."""
        changed = (row for row in self.rows() if row.change is not None)
        return heapq.nlargest(count, changed, key=lambda row: abs(row.change or 0.0))

    def to_pandas(self) -> Any:
        """Return a data frame with a line for each row that was asked again. Raises `MissingExtra`."""
        from modelyard.parts.reports.frames import data_frame  # noqa: PLC0415 - printing needs none

        return data_frame(self.rows())

    def plot(self) -> Any:
        """Return a drawing of the changes of the rows, from the least to the greatest, for a notebook or to save."""
        from modelyard.parts.reports.line_plot import Panel, Plot, Series  # noqa: PLC0415 - printing needs none

        changes = sorted(row.change for row in self.rows() if row.change is not None)
        points = [(float(at), change) for at, change in enumerate(changes, 1)]
        panel = Panel("new minus served", (Series.of("change", points),))
        return Plot(f"{self.model} instead of what was served", "rows", (panel,))

    def __repr__(self) -> str:
        return f"<WhatIf {self.model or 'other prices'}>"

    def __str__(self) -> str:
        lines = [f"What if {self.model or 'prices'} had been: {self.status or 'nothing was asked'}"]
        lines += [f"ended early: {self.reason}"] if self.reason else []
        if self.repriced is not None:
            lines += _costs(self.repriced)
        if self.answers is not None:
            lines += _answers(self.answers)
            changed = [(row.source, f"{row.change:+.4g}", (row.answer or "")[:_TEXT]) for row in self.differing()]
            lines += ["", text_table(("differs most", "change", "new answer"), changed, ("change",))] if changed else []
        if self.feedback is not None:
            lines.append(f"feedback: {self.feedback}")
        return "\n".join(lines)


def usd(amount: Decimal, signed: bool = False) -> str:
    """Return an exact amount without zeros at its end."""
    return f"{EXACT.normalize(amount):{'+' if signed else ''}f}"


def _costs(found: Repriced) -> list[str]:
    change = EXACT.subtract(found.other_cost, found.cost)
    costs = f"{usd(found.other_cost)} instead of {usd(found.cost)} USD ({usd(change, signed=True)})"
    lines = [f"cost: {costs}, {found.calls} calls"]
    return lines + ([f"{found.unpriced} calls are of models without another price"] if found.unpriced else [])


def _answers(found: AnsweredAgain) -> list[str]:
    failed = f"{found.failed} failed" + (f" ({found.why})" if found.why else "")
    lines = [f"asked again: {found.done} rows, {failed}; it cost {usd(found.spent)} USD"]
    if found.score is not None or found.logprob is None:
        lines.append(f"answers cost {usd(found.cost)} instead of {usd(found.served_cost)} USD")
    named = (("score", found.score), ("log-probability of a token", found.logprob))
    return lines + [f"{name}: {paired_text(one)}" for name, one in named if one is not None]


def paired_text(found: Paired) -> str:
    """Return a difference with its interval and its wins, as people read it."""
    if found.difference is None:
        return "no row has both"
    between = f" ({found.interval.low:+.4f} to {found.interval.high:+.4f})" if found.interval else ""
    counts = f"{found.wins} better, {found.ties} same, {found.losses} worse of {found.count}"
    return f"{found.difference:+.4f}{between}; {counts}"
