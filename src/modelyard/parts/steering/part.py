"""Evaluations that run are steered: `platform.evaluations.steering`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from modelyard.domain.job import Job, JobKind
from modelyard.part import Part

if TYPE_CHECKING:
    from modelyard.domain.record import Record
    from modelyard.parts.steering.service import Steering
    from modelyard.platform.jobs.job_type import JobType
    from modelyard.platform.runtime import Runtime
    from modelyard.protocols import Tx
    from modelyard.stores.table_changes import SchemaChange


def _records() -> "Sequence[Record]":
    from modelyard.parts.steering.records import RECORDS

    return RECORDS


def _changes() -> "Sequence[SchemaChange]":
    from modelyard.parts.steering.changes import CHANGES

    return CHANGES


def _steering() -> "type[Steering]":
    from modelyard.parts.steering.service import Steering as resource

    return resource


def _evaluation() -> "JobType":
    from modelyard.lazy import calls
    from modelyard.parts.steering import work
    from modelyard.platform.job_types import CORE

    return attrs.evolve(CORE[JobKind.EVALUATE](), run=calls(work, "evaluate"))


def _on_event(runtime: "Runtime", tx: "Tx", event: Any) -> None:
    if isinstance(event, Job) and event.kind == JobKind.EVALUATE:
        from modelyard.parts.steering.work import on_end

        on_end(runtime, tx, event)


PART = Part(
    "steering",
    records=_records,
    changes=_changes,
    resources={"evaluations.steering": _steering},
    job_types={JobKind.EVALUATE: _evaluation},
    on_event=_on_event,
)
