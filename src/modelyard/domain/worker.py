"""Workers that have announced themselves, and their processes, as the other processes see them."""

from datetime import datetime

import attrs

from modelyard.domain.record import Index, Record


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
    (`WorkerProcess`). `declines` are the needs of ready jobs (`str(Needs)`) that it leaves to other workers. `process`
    names its process, as `process_identity` does."""

    id: str
    beat: int
    started_at: datetime
    kind: str = "worker"
    declines: tuple[str, ...] = ()
    process: str = ""
    process_id: str = ""


WORKER = "worker"

RECORDS = (
    Record(WorkerProcess, "worker_processes", ("id",), indexes={"all": Index(())}, domain=(WORKER, "id")),
    Record(
        WorkerRecord,
        "workers",
        ("id",),
        indexes={"all": Index(("kind",)), "by_process": Index(("process_id",))},
        domain=(WORKER, "process_id"),
    ),
)
