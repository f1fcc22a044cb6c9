"""Processes and workers, as other processes see them, and the resources that jobs request of them."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Self, TypedDict

import attrs

from modelyard.domain import job
from modelyard.domain.record import Index, Record
from modelyard.errors import InvalidInput, Problem, nearest


@attrs.frozen
class WorkerProcess:
    """A process with workers; `beat` grows while it lives, for all of them. `process` names it, as `process_identity`
    does."""

    id: str
    beat: int
    process: str = ""


@attrs.frozen
class WorkerRecord:
    """A worker that has announced itself. `beat` grows each time it does; in between it lives as long as its process
    (`WorkerProcess`). `declines` are the kinds and models of ready jobs (`str(Needs)`) that it leaves to others, and
    `process` names its process, as `process_identity` does. Its jobs get so many `accelerators` and GiB of `memory`."""

    id: str
    beat: int
    started_at: datetime
    kind: str = "worker"
    declines: tuple[str, ...] = ()
    process: str = ""
    process_id: str = ""
    accelerators: int | None = None
    memory: int | None = None

    def can_run(self, needs: "job.Needs") -> bool:
        able = str(job.Needs(needs.kind, needs.base_model)) not in self.declines and str(needs) not in self.declines
        return able and Capacity(self.accelerators, self.memory).gives(needs)


WORKER = "worker"


@attrs.frozen
class ProcessRecord:
    """A platform that holds admissions, as the other processes see it. `beat` grows while it lives, `beat_at` is when
    it last grew. `machine` and `process` name where it runs. `silent_at` is when another process first saw it silent
    for a lease, and None after each beat. Times are in seconds since the epoch, of the store's clock."""

    id: str
    machine: str
    process: str
    beat: int
    beat_at: float
    silent_at: float | None = None

    def beaten(self, time: float) -> "ProcessRecord":
        return attrs.evolve(self, beat=self.beat + 1, beat_at=time, silent_at=None)

    def observed(self, time: float, lease: float) -> "ProcessRecord":
        """Return the record as observed at `time`. A time stored by a clock that was ahead counts as now."""
        beat_at, silent_at = min(self.beat_at, time), self.silent_at
        if silent_at is not None:
            silent_at = min(silent_at, time)
        elif time - beat_at >= lease:
            silent_at = time
        return attrs.evolve(self, beat_at=beat_at, silent_at=silent_at)

    def is_dead(self, time: float, lease: float) -> bool:
        """Return whether it was silent for a lease before it was first observed silent, and for another lease since."""
        return self.silent_at is not None and time - self.silent_at >= lease


PROCESS = "process"

RECORDS = (
    Record(WorkerProcess, "worker_processes", ("id",), indexes={"all": Index(())}, domain=(WORKER, "id")),
    Record(
        WorkerRecord,
        "workers",
        ("id",),
        indexes={"all": Index(("kind",)), "by_process": Index(("process_id",))},
        domain=(WORKER, "process_id"),
    ),
    Record(ProcessRecord, "processes", ("id",), indexes={"all": Index(())}, domain=(PROCESS, "id")),
)


MOST = 100_000


class Resources(TypedDict, total=False):
    accelerators: int
    memory: int
    priority: int


_BOUNDS = {"accelerators": (0, MOST), "memory": (0, MOST), "priority": (-1000, 1000)}


def check_resources(needs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a job with these needs. The higher its `priority`, the earlier it runs of its entity's."""
    if not isinstance(needs, Mapping):
        raise InvalidInput.at("needs", msg=f"must be a mapping with {' and '.join(_BOUNDS)}")
    problems = [
        Problem(
            ("needs", name),
            "must be a whole number from {} to {}".format(*bounds)
            if bounds
            else f"is not known{nearest(str(name), _BOUNDS)}",
        )
        for name, amount in needs.items()
        if not (bounds := _BOUNDS.get(name)) or type(amount) is not int or not bounds[0] <= amount <= bounds[1]
    ]
    if problems:
        raise InvalidInput(problems)
    accelerators, memory, priority = (needs.get(name, 0) for name in _BOUNDS)
    return {"accelerators": accelerators, "memory": memory, "rank": -priority}


@attrs.frozen
class Capacity:
    """What a worker gives to its jobs: so many accelerators, and so many GiB of memory; None means any number."""

    accelerators: int | None = 0
    memory: int | None = None

    def gives(self, needs: "job.Needs") -> bool:
        return _enough(self.accelerators, needs.accelerators) and _enough(self.memory, needs.memory)

    def without(self, jobs: Iterable["job.Needs"]) -> Self:
        running = list(jobs)
        return type(self)(
            _less(self.accelerators, sum(needs.accelerators for needs in running)),
            _less(self.memory, sum(needs.memory for needs in running)),
        )


def _enough(there: int | None, needed: int) -> bool:
    return there is None or needed <= max(there, 0)


def _less(there: int | None, taken: int) -> int | None:
    return None if there is None else there - taken
