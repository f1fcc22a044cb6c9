"""What is stored of reviews: which rows people label, and what each of them says."""

import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeGuard

import attrs

from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.record import EMPTY, KEPT, Index, Record, frozen_mapping, sequence_field
from modelyard.errors import InvalidInput

MOST_ROWS = 2000
MAX_NOTE = 10_000
YES_OR_NO = (0.0, 1.0)

_PERSON = re.compile(
    r"[^\s/\x00-\x1f\x7f\ud800-\udfff](?:[^/\x00-\x1f\x7f\ud800-\udfff]{0,62}[^\s/\x00-\x1f\x7f\ud800-\udfff])?"
)


@attrs.frozen
class Review:
    """A random sample of the rows of a run, which people label to check a scorer of it.

    `scorer` is the reference of the scorer's version, and `models` are those that it asks, by their names there, each
    with the reference of the version that this meant. `size` of the `population` of rows with a score were drawn by
    `seed`; if `by_score`, about as many of each score. Labels are one of `choices`, or any number if there are none.
    """

    id: str
    entity: str
    project: str
    run_id: str
    scorer: str
    population: int
    size: int
    seed: int
    by: str
    created_at: datetime
    choices: tuple[float, ...] = ()
    models: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    by_score: bool = False
    seq: int = sequence_field()

    @property
    def yes_no(self) -> bool:
        """Whether labels are yes or no."""
        return self.choices == YES_OR_NO

    @property
    def propensity(self) -> float:
        """The chance of each row of the population to be drawn; the mean chance, if they are drawn by score."""
        return self.size / self.population

    def checked(self, value: object) -> float | None:
        """Return a label as a number, None for somebody who cannot say. Raises `InvalidInput`."""
        if value is None:
            return None
        if not is_number(value):
            raise InvalidInput.at("value", msg="must be yes or no, a number, or nothing if you cannot say")
        if self.choices and value not in self.choices:
            words = (
                "true or false"
                if self.yes_no
                else f"one of {', '.join(repr(one).removesuffix('.0') for one in self.choices)}"
            )
            raise InvalidInput.at("value", msg=f"must be {words}, or nothing if you cannot say")
        return float(value)


@attrs.frozen
class ReviewRow:
    """A row to label. `place` is where it comes in the review's random order, from 0. `verdict` is the judge's value,
    and `propensity` the chance that the row had to be drawn."""

    review_id: str
    place: int
    entity: str
    project: str
    prediction_id: str
    row_digest: str
    verdict: float
    propensity: float


@attrs.frozen
class ReviewLabel:
    """What a person says of a row; `value` is None if they cannot say."""

    review_id: str
    place: int
    person: str
    entity: str
    project: str
    value: float | None
    note: str
    created_at: datetime


def is_number(value: object) -> TypeGuard[bool | int | float]:
    """Return whether this is a number, or yes or no, that a float can be."""
    try:
        return isinstance(value, bool | int | float) and math.isfinite(value)
    except OverflowError:
        return False


def checked_person(name: str) -> str:
    """Return the name of a person. Raises `InvalidInput`."""
    if not isinstance(name, str) or not _PERSON.fullmatch(name):
        raise InvalidInput.at(
            "person", msg="must be a name of 1 to 64 characters, without a slash or spaces at its ends"
        )
    return name


def checked_note(note: str) -> str:
    """Return the note. Raises `InvalidInput` if no store can keep it."""
    lone = isinstance(note, str) and any("\ud800" <= letter <= "\udfff" for letter in note)
    if not isinstance(note, str) or len(note) > MAX_NOTE or "\0" in note or lone:
        raise InvalidInput.at("note", msg=f"must be a text of at most {MAX_NOTE} characters, without NUL")
    return note


_WITH_ITS_REVIEW: Mapping[type, str] = {Review: "by_review"}

RECORDS = (
    Record(
        Review,
        "reviews",
        ("id",),
        indexes={
            "all": Index(()),
            "by_entity": Index(("entity",)),
            "by_project": Index(("entity", "project")),
            "by_run": Index(("run_id",)),
        },
        sequence="seq",
        domain=("entity", "entity"),
        erased_with={EvaluationRun: "by_run"},
        texts=KEPT,
    ),
    Record(
        ReviewRow,
        "review_rows",
        ("review_id", "place"),
        indexes={"by_review": Index(("review_id",), ("place",)), "by_entity": Index(("entity",))},
        domain=("entity", "entity"),
        erased_with=_WITH_ITS_REVIEW,
    ),
    Record(
        ReviewLabel,
        "review_labels",
        ("review_id", "place", "person"),
        indexes={"by_review": Index(("review_id",), ("place", "person")), "by_entity": Index(("entity",))},
        domain=("entity", "entity"),
        erased_with=_WITH_ITS_REVIEW,
        texts=KEPT,
    ),
)
