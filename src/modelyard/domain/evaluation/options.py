"""On which terms a run is put in numbers: what aggregates and comparisons have in common (specification 4.5)."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypedDict

import attrs

from modelyard.domain.evaluation.statistics import CONFIDENCE
from modelyard.errors import InvalidInput

Reducer = Callable[[Sequence[float]], float]

REDUCERS: Mapping[str, Reducer] = {
    "mean": lambda values: math.fsum(values) / len(values),
    "median": statistics.median,
    "min": min,
    "max": max,
}
"""How several trials of a row become one. Of bools, `max` is "passed in some trial", `min` "passed in every one"."""


def _known(_: object, __: object, reducer: str) -> None:
    if reducer not in REDUCERS:
        raise InvalidInput.at("reducer", msg=f"must be one of {', '.join(REDUCERS)}")


def _sensible(_: object, __: object, confidence: float) -> None:
    if not isinstance(confidence, float) or not 0.5 <= confidence < 1:
        raise InvalidInput.at("confidence", msg="must be at least 0.5 and below 1, such as 0.95")


def _names(names: str | Iterable[str]) -> frozenset[str]:
    return frozenset([names] if isinstance(names, str) else names)


@attrs.frozen
class ReportOptions:
    """The trials of a row are reduced first, by `reducer`: "mean", "median", "min" or "max".

    `cluster_by` names an input that rows which go together have in common, such as the text that several questions are
    about: standard errors, intervals and p then allow for it. `confidence` is that of the intervals. `lower_is_better`
    names the metrics of which lower values are better, such as a length; the name of a scorer stands for all of its
    metrics. Raises `InvalidInput`.
    """

    reducer: str = attrs.field(default="mean", validator=_known)
    cluster_by: str | None = None
    confidence: float = attrs.field(default=CONFIDENCE, validator=_sensible)
    lower_is_better: frozenset[str] = attrs.field(default=frozenset(), converter=_names)

    @property
    def reduce(self) -> Reducer:
        """The reducer itself."""
        return REDUCERS[self.reducer]

    @property
    def policy(self) -> str:
        """What the pessimistic mean does with trials that have no value."""
        low = "a missing value counts as 0 (false), or as the lowest value where that is below 0"
        high = "where lower is better, as 1 (true), or as the highest value where that is above 1"
        return f"{low}; {high}" if self.lower_is_better else low


class ReportKeywords(TypedDict, total=False):
    """The fields of `ReportOptions`, as keyword arguments."""

    reducer: str
    cluster_by: str | None
    confidence: float
    lower_is_better: str | Iterable[str]
