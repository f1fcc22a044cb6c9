"""Health: a quick check, and a check of every part (specification 4.3)."""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import TypeVar

import attrs

from modelyard.domain.identity import Principal, require_host
from modelyard.domain.job import Job, JobProgress, QueueState
from modelyard.domain.record import MAX_LIMIT
from modelyard.errors import ModelyardError, NoWorker
from modelyard.platform.jobs.announced import live_workers
from modelyard.platform.operations import files
from modelyard.platform.operations.readiness import Looks, Readiness, readiness, require_artifacts
from modelyard.platform.runtime import Runtime
from modelyard.process_identity import died_here
from modelyard.protocols import Snapshot, VerifiableStore
from modelyard.version import __version__

T = TypeVar("T")


@attrs.frozen
class CheckResult:
    """The state of one part. `error` describes the fault, and what to do about it if that is known."""

    success: bool
    duration_s: float
    error: str | None = None

    def __bool__(self) -> bool:
        return self.success


@attrs.frozen
class SystemCheck:
    """The state of every part, the versions, and how long the queue's oldest job has waited (None if none waits).

    `workers` is how many workers are alive, in all processes. `durability` is that of the store (`Store.durability`).
    `store_version` is that of its engine; `warning` is set if that version has a known fault.
    """

    api: CheckResult
    store: CheckResult
    artifacts: CheckResult
    worker: CheckResult
    queue: CheckResult
    version: str
    store_engine: str | None
    store_version: str | None
    durability: str
    warning: str | None
    oldest_queued_s: float | None
    workers: int

    @property
    def success(self) -> bool:
        """Whether every part of the check works."""
        return all(part.success for part in (self.api, self.store, self.artifacts, self.worker, self.queue))

    def __bool__(self) -> bool:
        return self.success

    @property
    def idle(self) -> bool:
        """Whether no worker is alive, and no job waits for one: nothing is wrong."""
        return not self.worker.success and self.queue.success and self.oldest_queued_s is None


class Health:
    """The health checks of a platform."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def check(self) -> str:
        """Return "ok": the platform answers."""
        return "ok"

    def ready(self) -> Readiness:
        """Return whether the store can be written, within a second, and whether the artifacts can.

        A fault is logged in one line."""
        return readiness(self._runtime)

    def leave(self) -> None:
        """Have `ready` tell from now on that this process is about to end."""
        self._runtime.cache.slot(Looks).leaving = True

    def check_artifacts(self) -> None:
        """Raise `StoreError` unless artifacts can be stored and read, `StorageFull` where new work has no room."""
        require_artifacts(self._runtime)
        self._runtime.require_room()

    def system_check(self, deep: bool = False) -> SystemCheck:
        """Check every part. A failure is reported, not raised; the worker's check fails if none is alive.

        A `deep` check reads all of the store, where it is a file, for damage.
        """
        api, _ = self._tried("api", self.check)
        store, facts = self._tried("store", partial(self._check_store, deep))
        artifacts, _ = self._tried("artifacts", self.check_artifacts)
        queue, oldest = self._tried("queue", lambda: self._runtime.store.read(_oldest_queued))
        worker, workers = self._tried("worker", self._count_workers, idle=oldest is None)
        known = facts or {}
        return SystemCheck(
            api=api,
            store=store,
            artifacts=artifacts,
            worker=worker,
            queue=queue,
            version=__version__,
            store_engine=_text(known.get("engine")),
            store_version=_text(known.get("version")),
            durability=self._runtime.store.durability,
            warning=_text(known.get("warning")),
            oldest_queued_s=self._age(oldest),
            workers=workers or 0,
        )

    def check_files(self) -> "list[files.FileFault]":
        """Read every file that a record names; return the records that have lost theirs, or have others."""
        require_host(self._principal)
        return files.file_faults(self._runtime)

    def _check_store(self, deep: bool) -> Mapping[str, object]:
        if deep and isinstance(self._runtime.store, VerifiableStore):
            self._runtime.store.verify()
        return self._runtime.store.check()

    def _tried(self, name: str, part: Callable[[], T], idle: bool = False) -> tuple[CheckResult, T | None]:
        clock, logged, what = self._runtime.clock, self._runtime.cache.slot(Looks).logged, f"the {name} cannot be used"
        began = clock.monotonic()
        try:
            value = part()
            logged.well(what)
        except Exception as failure:  # noqa: BLE001 - any failure here is a finding
            if not (idle and isinstance(failure, NoWorker)):  # where no job waits, no worker is missing
                logged.found(what, failure)
            return CheckResult(False, clock.monotonic() - began, _words(failure)), None
        return CheckResult(True, clock.monotonic() - began), value

    def _count_workers(self) -> int:
        workers = self._runtime.store.read(partial(live_workers, self._runtime))
        if not workers:
            raise NoWorker("no worker is alive, so training jobs wait; start one: modelyard work --store FILE")
        return len(workers)

    def _age(self, since: datetime | None) -> float | None:
        if since is None:
            return None
        return max(0.0, (self._runtime.clock.now() - since).total_seconds())


def _words(failure: Exception) -> str:
    """Return the message of one of modelyard's own errors; that of any other error goes only to the log."""
    return str(failure) if isinstance(failure, ModelyardError) else f"{type(failure).__name__}; see the log"


def _oldest_queued(snapshot: Snapshot) -> datetime | None:
    """Return since when the oldest job waits for a worker: in the queue, or for another than one that died here."""
    places = (QueueState.READY, QueueState.HELD_BACK, QueueState.WAITING)
    jobs = [job for place in places for job in snapshot.page(Job, "by_place", place, limit=1)]
    held = snapshot.page(JobProgress, "by_held", True, limit=MAX_LIMIT)
    jobs += [snapshot.get(Job, one.job_id) for one in held if died_here(one.process)]
    return min((job.created_at for job in jobs), default=None)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
