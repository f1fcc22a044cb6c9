"""What is stored of a sweep: what was requested, and which trials go on. Results are those of its jobs."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

from modelyard.domain.record import Index, Record, frozen_mapping

SWEEP_ID, TRIAL, RUNG = "sweep_id", "trial", "rung"
"""The members of a job's spec that say for which trial of a sweep, and at which rung, it trains."""


@attrs.frozen
class Sweep:
    """A sweep. `plan` is the request, resolved: the method, the axes, the trials with their models, the data. `request`
    is its digest. `state` has the present `rung`, the trials that are `going`, and whether it was `cancelled`.
    """

    id: str
    entity: str
    project: str
    name: str
    model_id: str
    created_at: datetime
    request: str
    plan: Mapping[str, Any] = attrs.field(converter=frozen_mapping)
    state: Mapping[str, Any] = attrs.field(converter=frozen_mapping)
    idempotency_key: str | None = None

    @property
    def axes(self) -> Mapping[str, list[Any]]:
        """The options that differ, with their values."""
        axes: Mapping[str, list[Any]] = self.plan["axes"]
        return axes

    @property
    def rungs(self) -> list[int]:
        """How many epochs are trained at each rung; one rung if none is stopped early."""
        rungs: list[int] = self.plan["rungs"]
        return rungs


RECORDS = (
    Record(
        Sweep,
        "sweeps",
        ("id",),
        unique={
            "name": ("entity", "project", "name"),
            "idempotency": ("entity", "project", "idempotency_key"),
        },
        indexes={
            "all": Index((), ("created_at",)),
            "by_entity": Index(("entity",), ("created_at",)),
            "by_project": Index(("entity", "project"), ("created_at",)),
        },
    ),
)


def facts_of(record: Sweep) -> Mapping[str, object]:
    """Return what was requested, in words."""
    options = ", ".join(f"{name}={value}" for name, value in record.plan["options"].items()) or "the defaults"
    early = f"one of {record.plan['halving']} goes on" if record.plan["halving"] else "no trial is stopped early"
    return {
        "trained from": f"{record.plan['start']}, step {record.plan['start_step']}, by {record.plan['method'].upper()}",
        "data": f"{record.plan['data']} ({_rows(record.plan['rows'])})",
        "held out": f"{record.plan['held_out']} ({_rows(record.plan['held_out_rows'])})",
        "the same for all": options,
        "epochs": f"{' + '.join(map(str, record.rungs))}: {early}" if record.plan["halving"] else early,
        "seed": record.plan["seed"],
    }


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def number(value: float | None) -> str:
    """Return a loss as people read it."""
    return "" if value is None else f"{value:.4g}"
