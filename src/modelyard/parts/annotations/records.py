"""Tags and notes that people give to jobs, evaluation runs, models and checkpoints."""

import re
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum

import attrs

from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.job import Job
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.record import KEPT, KEY, Index, Record
from modelyard.errors import InvalidInput, Problem

MAX_TAGS = 50
MAX_NOTE = 10_000

TAG_PATTERN = r"[^\s,\x00-\x1f\x7f](?:[^,\x00-\x1f\x7f\ud800-\udfff]{0,62}[^\s,\x00-\x1f\x7f])?"
"""What a tag is: 1 to 64 characters without a comma or a control character, and no space at its ends."""

_TAG = re.compile(TAG_PATTERN)


class AnnotatedKind(StrEnum):
    """The kinds of subjects that can be annotated. The job of an evaluation stands for its run."""

    JOB = "job"
    RUN = "run"
    MODEL = "model"
    CHECKPOINT = "checkpoint"


@attrs.frozen
class Annotation:
    """The tags, sorted, and the note of a job, a run, a model or a checkpoint; `subject` is its id.

    A subject that never was annotated has neither, and no `updated_at`.
    """

    subject: str
    kind: AnnotatedKind
    entity: str
    project: str
    tags: tuple[str, ...] = ()
    note: str = ""
    updated_at: datetime | None = None

    @property
    def id(self) -> str:
        """The id of the subject, by which a listing continues."""
        return self.subject

    def has(self, text: str) -> bool:
        """Return whether a tag or the note contains the text, in any case."""
        wanted = text.casefold()
        return any(wanted in one.casefold() for one in (*self.tags, self.note))


def checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return each tag once, sorted. Raises `InvalidInput` naming every string that cannot be a tag."""
    if isinstance(tags, str):
        raise InvalidInput.at("tags", msg="must be several strings, not one: write [tag]")
    given = list(tags)
    msg = "must be 1 to 64 characters without commas and control characters, and no space at its ends"
    wrong = [
        Problem(("tags", at), msg)
        for at, one in enumerate(given)
        if not isinstance(one, str) or not _TAG.fullmatch(one) or _is_lone(one)
    ]
    if wrong:
        raise InvalidInput(wrong)
    if len(found := sorted({str.__str__(one) for one in given})) > MAX_TAGS:
        raise InvalidInput.at("tags", msg=f"may be {MAX_TAGS} at most")
    return tuple(found)


def checked_note(note: str) -> str:
    """Return the note. Raises `InvalidInput` if it is too long, or if no store can keep it."""
    if not isinstance(note, str) or len(note) > MAX_NOTE or "\0" in note or _is_lone(note):
        raise InvalidInput.at("note", msg=f"must be a text of at most {MAX_NOTE} characters, without NUL")
    return str.__str__(note)  # of a subclass, such as an enum, the text itself


def _is_lone(text: str) -> bool:
    """Return whether a text has half a character, which is not UTF-8."""
    return any("\ud800" <= character <= "\udfff" for character in text)


RECORDS = (
    Record(
        Annotation,
        "annotations",
        ("subject",),
        indexes={
            "all": Index(("kind",)),
            "by_entity": Index(("entity",)),
            "by_kind": Index(("entity", "kind")),
        },
        erased_with={Job: KEY, EvaluationRun: KEY, Model: KEY, Checkpoint: KEY},
        texts=KEPT,
    ),
)
