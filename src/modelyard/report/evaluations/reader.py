"""How a run is read: whole, or as much of it as numbers need."""

from collections.abc import Iterator
from typing import Protocol

from modelyard.domain.evaluation.metrics import FullScoredPrediction, ScoredPrediction
from modelyard.domain.evaluation.options import TermOptions


class Reader(Protocol):
    """Reads a run from its beginning, in the order of the row digests, as often as it is asked."""

    def whole(self) -> Iterator[FullScoredPrediction]:
        """Everything."""
        ...

    def numbers(self, looking: bool = False) -> Iterator[ScoredPrediction]:
        """Views: inputs and outputs are looked up where they are asked for; quickly for one row after the other when
        `looking`.
        """
        ...

    def values(self) -> Iterator[ScoredPrediction]:
        """The same at a glance: values and errors, not what they took."""
        ...


def judged_on(reader: Reader, terms: TermOptions) -> Iterator[ScoredPrediction]:
    """What there is to judge on these terms: inputs are looked at where rows are clustered by one of them."""
    return reader.numbers(looking=terms.get("cluster_by") is not None)


def compared_on(reader: Reader, terms: TermOptions) -> Iterator[ScoredPrediction]:
    """What there is to compare on these terms."""
    return reader.values() if terms.get("cluster_by") is None else judged_on(reader, terms)
