"""What was asked of a run that works, and the answers that were asked for again."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import attrs

from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.record import EMPTY, KEPT, Index, Record, frozen_mapping


class SteeringAction(StrEnum):
    """What can be asked of a run."""

    PAUSE = "pause"
    RESUME = "resume"
    LIMITS = "limits"
    REQUEUE = "requeue"
    ROWS = "rows"


@attrs.frozen
class SteeringEntry:
    """What a principal asked of a run. `changed` maps what it changes to [from, to]. `rows` says which rows are asked
    again ("failed", or their indices), and `added` names the file of rows that are to be added, until they are.
    `left` are the lanes of the jobs that have not done it yet; `applied_at` is when the last one did."""

    id: str
    entity: str
    project: str
    run_id: str
    action: SteeringAction
    by: str
    key_id: str | None
    created_at: datetime
    changed: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    rows: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    added: str = ""
    left: tuple[str, ...] = ()
    pending: bool = False
    applied_at: datetime | None = None

    def done_by(self, lane: str, at: datetime) -> "SteeringEntry":
        """Return this entry once the job of a lane has done it."""
        left = tuple(one for one in self.left if one != lane)
        if left:
            return attrs.evolve(self, left=left)
        return attrs.evolve(self, left=(), added="", pending=False, applied_at=at)


@attrs.frozen
class EarlierAnswer:
    """An answer of a run that was asked for again: with its scores, as it was stored. `entry_id` says who asked."""

    id: str
    entity: str
    project: str
    run_id: str
    entry_id: str
    index: int
    trial: int
    answer: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)


def _files(entry: SteeringEntry) -> tuple[str, ...]:
    return (entry.added,) if entry.added else ()


RECORDS = (
    Record(
        SteeringEntry,
        "steering_entries",
        ("id",),
        indexes={
            "all": Index(()),
            "by_entity": Index(("entity",)),
            "by_run": Index(("run_id",)),
            "waiting": Index(("run_id", "pending")),
        },
        artifacts=_files,
        erased_with={EvaluationRun: "by_run"},
        texts=KEPT,
    ),
    Record(
        EarlierAnswer,
        "earlier_answers",
        ("id",),
        indexes={
            "by_entity": Index(("entity",)),
            "by_run": Index(("run_id",), ("index", "trial", "id")),
        },
        erased_with={EvaluationRun: "by_run"},
        texts=KEPT,
    ),
)
