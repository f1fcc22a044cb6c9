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


def number(value: float | None) -> str:
    """Return a loss as people read it."""
    return "" if value is None else f"{value:.4g}"
