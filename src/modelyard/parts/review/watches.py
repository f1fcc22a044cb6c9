"""What is stored of watches: scorers that judge a sample of stored answers as they come, on a purse of their own."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any

import attrs

from modelyard.domain.evaluation.objects import ObjectRef, RefKind, object_id
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.record import KEPT, Index, Record, frozen_mapping, sequence_field
from modelyard.protocols import Snapshot

RUNNING, STOPPED = "running", "stopped"
ASKED, JUDGED, FAILED = "asked", "judged", "failed"
_NOTHING = Decimal(0)


@attrs.frozen
class Watch:
    """A scorer that judges a `share` of the stored answers of a `model`, by the name that was requested: those of the
    project, or of every project of the entity.

    `scorer` is the reference of its version, and `rule` it as data. What it asks may cost `purse` USD; of that `spent`
    is reserved or paid. `seen` is the last stored answer that was looked at, in the order of appearance. The answers
    of each `day` (UTC) are rows of a run, `run_id`.
    """

    id: str
    entity: str
    project: str
    model: str
    scorer: str
    rule: Mapping[str, Any] = attrs.field(converter=frozen_mapping)
    share: float
    purse: Decimal
    by: str
    created_at: datetime
    everywhere: bool = False
    seen: int = 0
    spent: Decimal = _NOTHING
    state: str = RUNNING
    reason: str = ""
    run_id: str = ""
    day: str = ""
    seq: int = sequence_field()

    @property
    def evaluation(self) -> str:
        """The reference of the evaluation whose runs are its days."""
        return str(
            ObjectRef(self.entity, self.project, RefKind.OBJECT, object_id(f"live.{self.model.replace(':', '.')}"))
        )

    def is_drawn(self, answer_id: str) -> bool:
        """Return whether an answer is in the sample: by a digest of both ids, so that every process draws the same."""
        drawn = sha256(f"{self.id}\0{answer_id}".encode()).hexdigest()[:13]
        return int(drawn, 16) < self.share * 16**13


@attrs.frozen
class WatchedAnswer:
    """A stored answer that was drawn, with the chance that it had. It is `state` "asked" before the scorer answers, and
    stays so if the process dies in between: nothing is asked twice. `cost` is what was paid for it."""

    watch_id: str
    answer_id: str
    entity: str
    project: str
    propensity: float
    created_at: datetime
    state: str = ASKED
    reason: str = ""
    cost: Decimal = _NOTHING


@attrs.frozen
class WatchedDay:
    """The run with the answers of a day that a watch judged; several of one day, if a model came to mean another."""

    watch_id: str
    run_id: str
    entity: str
    project: str
    day: str


def is_any_running(snapshot: Snapshot) -> bool:
    """Return whether a watch of any entity judges."""
    return bool(snapshot.page(Watch, "by_state", RUNNING, limit=1))


_WITH_ITS_WATCH: Mapping[type, str] = {Watch: "by_watch"}
_BY_ENTITY = Index(("entity",))

RECORDS = (
    Record(
        Watch,
        "watches",
        ("id",),
        indexes={
            "all": Index(()),
            "by_state": Index(("state",)),
            "by_entity": _BY_ENTITY,
            "by_project": Index(("entity", "project")),
        },
        sequence="seq",
        settings=("state",),
        domain=("entity", "entity"),
        texts=KEPT,
    ),
    Record(
        WatchedAnswer,
        "watched_answers",
        ("watch_id", "answer_id"),
        indexes={"by_watch": Index(("watch_id",), ("answer_id",)), "by_entity": _BY_ENTITY},
        domain=("entity", "entity"),
        erased_with=_WITH_ITS_WATCH,
    ),
    Record(
        WatchedDay,
        "watched_days",
        ("watch_id", "run_id"),
        indexes={
            "by_watch": Index(("watch_id",), ("run_id",)),
            "by_run": Index(("run_id",)),
            "by_entity": _BY_ENTITY,
        },
        domain=("entity", "entity"),
        erased_with={**_WITH_ITS_WATCH, EvaluationRun: "by_run"},
    ),
)
