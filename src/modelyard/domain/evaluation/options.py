"""On which terms a run is put in numbers: what aggregates and comparisons have in common (specification 4.5)."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
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


@attrs.frozen
class ReportOptions:
    """The trials of a row are reduced first, by `reducer`: "mean", "median", "min" or "max".

    `cluster_by` names an input that rows which go together have in common, such as the text that several questions are
    about: standard errors, intervals and p then allow for it. `confidence` is that of the intervals. Raises
    `InvalidInput`.
    """

    reducer: str = attrs.field(default="mean", validator=_known)
    cluster_by: str | None = None
    confidence: float = attrs.field(default=CONFIDENCE, validator=_sensible)

    @property
    def reduce(self) -> Reducer:
        """The reducer itself."""
        return REDUCERS[self.reducer]


class ReportKeywords(TypedDict, total=False):
    """The fields of `ReportOptions`, as keyword arguments."""

    reducer: str
    cluster_by: str | None
    confidence: float
