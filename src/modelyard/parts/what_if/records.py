"""What is stored of questions to traffic: what was asked, and each stored request as it is answered again."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

import attrs

from modelyard.domain.record import KEPT, Index, Record, frozen_mapping, sequence_field

JOB = "what_if"
STARTED, ENDED, FAILED = "what_if_started", "what_if_ended", "what_if_failed"
"""The kind of the jobs of this part, and the types of their events."""

ANSWERS, LOGPROBS, NOTHING = ASKS = ("answers", "logprobs", "nothing")
"""What a model is asked for: to answer again, how likely it finds the answers that were given, or nothing."""

_NOTHING = Decimal(0)


@attrs.frozen
class AskedTraffic:
    """Stored requests that are asked again, by the job of the same id.

    `content` has what was asked, as JSON: the conditions, the judge and other prices. At most `budget` is spent, in
    USD; `spent` counts what is reserved for requests that run, too.
    """

    id: str
    entity: str
    project: str
    model: str
    asks: str
    content: Mapping[str, Any] = attrs.field(converter=frozen_mapping)
    budget: Decimal
    created_at: datetime
    spent: Decimal = _NOTHING
    seq: int = sequence_field()


@attrs.frozen
class AskedRow:
    """A stored answer, and what came of asking again. `source` is its id, and `completion` that of its usage.

    `answer` is the new one. A `score` is the judge's, and a `logprob` the sum over the `tokens` of the answer that was
    given; `served_` are those of the answer that was given, or of the model that gave it. Costs are of one answer, and
    `spent` is what asking has cost, the judge included. `error` is why something is missing.
    """

    what_if_id: str
    source: str
    entity: str
    project: str
    completion: str
    model: str
    created_at: datetime
    answer: str | None = None
    served_cost: Decimal | None = None
    cost: Decimal | None = None
    served_score: float | None = None
    score: float | None = None
    served_logprob: float | None = None
    logprob: float | None = None
    tokens: int = 0
    spent: Decimal = _NOTHING
    error: str = ""
    done: bool = False
    seq: int = sequence_field()

    @property
    def id(self) -> str:
        """The id of the stored answer, by which a listing continues."""
        return self.source

    @property
    def change(self) -> float | None:
        """By how much the score, or else the log-probability, is greater than that of what was served."""
        for now, before in ((self.score, self.served_score), (self.logprob, self.served_logprob)):
            if now is not None and before is not None:
                return now - before
        return None


_DOMAIN = ("entity", "entity")

RECORDS = (
    Record(
        AskedTraffic,
        "asked_traffic",
        ("id",),
        indexes={
            "all": Index(()),
            "by_entity": Index(("entity",)),
            "by_project": Index(("entity", "project")),
            "by_age": Index((), ("created_at",)),
        },
        sequence="seq",
        domain=_DOMAIN,
        texts="created_at",
    ),
    Record(
        AskedRow,
        "asked_rows",
        ("what_if_id", "source"),
        indexes={
            "by_what_if": Index(("what_if_id",)),
            "by_entity": Index(("entity",)),
        },
        sequence="seq",
        domain=_DOMAIN,
        erased_with={AskedTraffic: "by_what_if"},
        texts=KEPT,
    ),
)
