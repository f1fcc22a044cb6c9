"""Several runs in one comparison, `platform.evaluations.compare_all`, as a data frame, and a run by its slices."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Command, DashboardPage, Part

if TYPE_CHECKING:
    from modelyard.parts.comparisons.frame import ToPandas
    from modelyard.parts.comparisons.service import CompareAll


def _compare_all() -> "type[CompareAll]":
    from modelyard.parts.comparisons.service import CompareAll as resource

    return resource


def _to_pandas() -> "type[ToPandas]":
    from modelyard.parts.comparisons.frame import ToPandas as resource

    return resource


def _pages() -> "Sequence[DashboardPage]":
    from modelyard.parts.comparisons import pages

    return (
        DashboardPage("GET", ("comparisons",), pages.listed, "Compare", pages.has_runs),
        DashboardPage("GET", ("comparisons", "evaluation"), pages.shown),
        DashboardPage("GET", ("runs", "{run}", "by"), pages.sliced),
    )


_COMMANDS = "modelyard.parts.comparisons.commands"

PART = Part(
    "comparisons",
    resources={"evaluations.compare_all": _compare_all, "evaluations.to_pandas": _to_pandas},
    pages=_pages,
    commands={
        "compare": Command("Work", f"{_COMMANDS}:compare", "Compare several runs in a table."),
        "runs compare": Command("", f"{_COMMANDS}:compare_runs", "Compare two runs, row by row."),
    },
)
