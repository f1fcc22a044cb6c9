"""Labels as people give and read them: nobody sees what others or the judge say of a row before they are done."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs

from modelyard.domain.record import EMPTY
from modelyard.parts.review.agreement import Confusion
from modelyard.parts.review.records import Review, ReviewLabel, ReviewRow
from modelyard.platform.paging import iter_index
from modelyard.protocols import Snapshot


@attrs.frozen
class RowToLabel:
    """A row as a person sees it who labels: what was asked and answered, and their own label. `output` is None for a
    row that is gone."""

    place: int
    inputs: Mapping[str, Any]
    output: Any
    labelled: bool = False
    value: float | None = None
    note: str = ""


@attrs.frozen
class Disagreement:
    """A row of which people, or people and the judge, say different things. `labels` are by person."""

    place: int
    verdict: float
    labels: Mapping[str, float | None] = EMPTY


@attrs.frozen
class ReviewProgress:
    """How many of the rows each person has labelled, and how many rows count: the first ones that somebody labelled,
    up to the first that nobody did."""

    size: int
    people: Mapping[str, int]
    counted: int


@attrs.frozen(slots=False)
class LabelledRows:
    """The rows of a review, in its random order, and the labels of each by person."""

    review: Review
    rows: Sequence[ReviewRow]
    labels: Sequence[Mapping[str, ReviewLabel]]

    @classmethod
    def read(cls, snapshot: Snapshot, review: Review) -> "LabelledRows":
        """Read the rows and labels of a review."""
        rows = list(iter_index(snapshot, ReviewRow, "by_review", review.id))
        labels: list[dict[str, ReviewLabel]] = [{} for _ in rows]
        for one in iter_index(snapshot, ReviewLabel, "by_review", review.id):
            labels[one.place][one.person] = one
        return cls(review, rows, labels)

    @property
    def progress(self) -> ReviewProgress:
        """How far each person is with the rows."""
        people: dict[str, int] = {}
        for row in self.labels:
            for name in row:
                people[name] = people.get(name, 0) + 1
        return ReviewProgress(len(self.rows), people, self.counted)

    @cached_property
    def counted(self) -> int:
        """How many rows count: the first in the random order, up to the first without a label. Which these are depends
        on nothing that anybody chose, so they are a random sample, too."""
        return next((at for at, row in enumerate(self.labels) if not row), len(self.labels))

    def done(self, person: str) -> bool:
        """Return whether a person has labelled every row, and may see what others say."""
        return all(person in row for row in self.labels)

    def values(self) -> Iterator[tuple[ReviewRow, list[float]]]:
        """Yield the rows that count, with the labels of those who could say."""
        for row, labels in zip(self.rows[: self.counted], self.labels, strict=False):
            yield row, [one.value for one in labels.values() if one.value is not None]

    @property
    def ratings(self) -> list[list[float]]:
        """The labels of each row that counts."""
        return [values for _, values in self.values()]

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """What the judge and most people say of each row that counts: the mean of their labels, or for yes and no what
        the majority says; without rows that are a tie."""
        return [(verdict, said) for verdict, said, _ in self._said()]

    @property
    def weights(self) -> list[float]:
        """How much each of the `pairs` weighs: as many as there are rows that were drawn with the same chance. Together
        they are as many as rows that all weigh the same would have to be to say as much (Kish 1965). Empty if each
        weighs the same."""
        if not self.review.by_score:
            return []
        drawn, said = Counter(row.propensity for row in self.rows), [chance for *_, chance in self._said()]
        counted = Counter(said)
        weights = [drawn[chance] / chance / counted[chance] for chance in said]
        scale = sum(weights) / sum(one * one for one in weights) if weights else 0.0
        return [one * scale for one in weights]

    def _said(self) -> Iterator[tuple[float, float, float]]:
        for row, values in self.values():
            mean = sum(values) / len(values) if values else 0.5
            if values and not (self.review.yes_no and mean == 0.5):
                yield row.verdict, float(mean > 0.5) if self.review.yes_no else mean, row.propensity

    @property
    def confusion(self) -> Confusion:
        """How often the judge says yes and no where people do; for a review of yes and no."""
        return Confusion.of([(bool(verdict), bool(people)) for verdict, people in self.pairs], self.weights)

    def disagreements(self) -> list[Disagreement]:
        """Return the rows of which not all say the same."""
        found = []
        for row, labels in zip(self.rows, self.labels, strict=True):
            said = {name: one.value for name, one in sorted(labels.items())}
            if len({row.verdict, *(value for value in said.values() if value is not None)}) > 1:
                found.append(Disagreement(row.place, row.verdict, said))
        return found
