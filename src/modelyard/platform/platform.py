"""The platform: its resources as one principal sees them, and its lifetime."""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

from modelyard import process_identity
from modelyard.domain import worker
from modelyard.domain.identity import Principal, check_name, require_host
from modelyard.errors import InvalidInput
from modelyard.part import Notes, Site
from modelyard.platform import extended
from modelyard.platform.artifacts import Spool
from modelyard.platform.catalogue.service import Catalogue
from modelyard.platform.chat.booked_request import Tracing
from modelyard.platform.chat.service import Chat
from modelyard.platform.evaluations import service as evaluation
from modelyard.platform.jobs import process_workers
from modelyard.platform.jobs import service as jobs
from modelyard.platform.jobs import worker as worker_service
from modelyard.platform.keys import service as identity
from modelyard.platform.meters import Meters
from modelyard.platform.models import service as model
from modelyard.platform.opened_with import Lifetime, OpenedWith
from modelyard.platform.operations import erasure, files
from modelyard.platform.operations import health as health_service
from modelyard.platform.operations import orphans as sweep_service
from modelyard.platform.periodic import UPKEEP_SECONDS, Periodic, upkeep_threads
from modelyard.platform.runtime import Runtime
from modelyard.platform.training import service as training_service
from modelyard.platform.usage import service as usage_service
from modelyard.protocols import Authenticator, Executor
from modelyard.threads import in_new_thread

if TYPE_CHECKING:
    from modelyard.parts.resources import StandardResources
else:
    StandardResources = object

R = TypeVar("R")
_FOR_PARTS = {
    *("blocking", "clock", "count_requests", "job_types", "notes", "observe", "observer", "on_worker_failure", "part"),
    *("parts", "prepare", "randomness", "site", "spool", "sync", "threads", "trace_with", "tracing", "each_second"),
}
"""What parts, servers and tests use of a platform: completion does not offer it."""


class Platform(OpenedWith, StandardResources):
    """A model platform in one object, made by `open_platform`.

    Its resources are `catalogue`, `chat`, `models`, `training`, `evaluations`, `jobs`, `keys`, `usage` and `health`,
    and those of its parts. It is a context manager, synchronous and asynchronous; leaving it closes what
    `open_platform` opened.
    """

    def __init__(self, runtime: Runtime, principal: Principal, life: Lifetime) -> None:
        self._runtime, self._principal, self._life = runtime, principal, life
        self._chat = Chat(runtime, principal)

    def __repr__(self) -> str:
        return f"<Platform of {self._principal.name}, {type(self._runtime.store).__name__}>"

    # ---- resources

    @property
    def principal(self) -> Principal:
        """The principal as whom this platform acts."""
        return self._principal

    @property
    def catalogue(self) -> Catalogue:
        """The models that requests can name."""
        return self._resource(Catalogue)

    @property
    def chat(self) -> Chat:
        """Completions of conversations, whole and streamed."""
        self._life.check()
        return self._chat

    @property
    def models(self) -> "model.Models":
        """Trainable models and their checkpoints."""
        return self._resource(model.Models)

    @property
    def training(self) -> "training_service.Training":
        """Training jobs: request them, follow them."""
        return self._resource(training_service.Training)

    @property
    def evaluations(self) -> "evaluation.Evaluations":
        """Evaluation runs: make them, compare them."""
        return self._resource(evaluation.Evaluations)

    @property
    def jobs(self) -> "jobs.Jobs":
        """The queue of training jobs and evaluation runs."""
        return self._resource(jobs.Jobs)

    @property
    def keys(self) -> "identity.Keys":
        """API keys: create, list, revoke them."""
        return self._resource(identity.Keys)

    @property
    def usage(self) -> "usage_service.Ledger":
        """Usage, its cost, and budgets."""
        return self._resource(usage_service.Ledger)

    @property
    def health(self) -> "health_service.Health":
        """The checks of whether everything works."""
        return self._resource(health_service.Health)

    @property
    def compat(self) -> "extended.Compat":
        """What other services have, in their words."""
        return self._resource(extended.Compat)

    if not TYPE_CHECKING:  # what parts add, which `StandardResources` declares for type checkers

        def __getattr__(self, name: str) -> Any:
            if made := extended.member_of_part(() if name.startswith("_") else self._runtime.parts, name):
                return self._resource(made)
            place, moved = (name, None) if name.startswith("_") else extended.moved_member(self.parts, self, name)
            if moved is None:
                meant = extended.nearest_member(self, name)
                raise AttributeError(f"a platform has no {name!r}, and none of its parts brings one{meant}")
            warnings.warn(f"platform.{name} is platform.{place} now", DeprecationWarning, stacklevel=2)
            return moved

    def part(self, resource: "Callable[[Runtime, Principal], R]") -> R:
        """Return what a part adds, by its class: `platform.part(Notes)`."""
        return self._resource(resource)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *extended.members_of_parts(self._runtime.parts)} - _FOR_PARTS)

    def _resource(self, kind: Callable[[Runtime, Principal], R]) -> R:
        self._life.check()
        return kind(self._runtime, self._principal)

    # ---- what it reports

    def count_requests(self) -> Meters:
        """Count requests, tokens, cost and times in this process, from now on. Only the host may call this."""
        self._require_host()
        return self._runtime.cache.count()

    def trace_with(self, tracing: Tracing | None) -> None:
        """Trace requests and completions, or no longer. Only the host may call this."""
        self._require_host()
        self._runtime.cache.tracing = tracing

    def observe(self, event: object) -> None:
        """Notify the observer. What it raises is logged and changes nothing. Only the host may use it."""
        self._require_host()
        self._runtime.observe(event)

    @property
    def spool(self) -> Spool:
        """The data of calls in progress. Only the host may use it."""
        self._require_host()
        return Spool(self._runtime.artifacts, self._runtime.require_room)

    def notes(self) -> list[Notes]:
        """Return what people have noted on jobs, runs, models and checkpoints, of each part that keeps notes."""
        self._life.check()
        return [part.notes(self) for part in self._runtime.parts if part.notes is not None]

    # ---- views, workers, upkeep

    def site(
        self, authenticator: Authenticator | None = None, reader: Principal | None = None, *, api: Site | None = None
    ) -> Site:
        """Make the pages for people, next to an API (`modelyard.asgi.asgi_app(dashboard=True)`).

        Raises `InvalidInput` if no part of the platform has any.
        """
        self._require_host()
        for part in self._runtime.parts:
            if part.site is not None:
                return part.site(self)(self, authenticator, reader, api)
        raise InvalidInput.at("dashboard", msg="this platform was opened without a part that has pages")

    def acting_as(self, principal: Principal) -> "Platform":
        """Return the platform as another principal sees it. Only the host may call this. Raises `InvalidInput`."""
        self._require_host()
        if not isinstance(principal, Principal):
            raise InvalidInput.at("principal", msg="must be a Principal: Principal(name, entity, Scope(entity))")
        return Platform(self._runtime, principal, self._life)

    def worker(
        self,
        concurrency: int = 1,
        executor: Executor | None = None,
        *,
        accelerators: int | None = 0,
        memory: int | None = None,
    ) -> "worker_service.Worker":
        """Make a worker for the queue: a context manager that runs up to `concurrency` jobs at a time.

        It gives its jobs so many `accelerators`, and so many GiB of `memory`, at a time, and leaves those that need
        more to other workers; None means any number.
        """
        self._require_host()
        capacity = worker.Capacity(accelerators, memory)
        executor = executor or self._life.executor(concurrency)
        return worker_service.Worker(self._runtime, executor, concurrency, capacity)

    @contextmanager
    def upkeep(self) -> Iterator[None]:
        """Do what servers and workers do besides, for a process that is neither: while the block runs, bring records to
        the disk, post webhooks, tell who has alerts, and keep the slowest answers, each second in threads."""
        self._require_host()
        self.count_requests()
        syncing = Periodic(self.clock, UPKEEP_SECONDS, self.sync, "modelyard-upkeep-store")
        threads = (syncing, *upkeep_threads(self._runtime))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for wait in (0, 1.0):
                for thread in threads:
                    thread.stop(wait)

    def on_worker_failure(self, act: Callable[[str], None]) -> None:
        """Have `act` called with the id of a worker that ends by itself, in a thread of it. Only the host may use
        it."""
        self._require_host()
        process_workers.process_workers(self._runtime).on_failure = act

    def backup(self, path: str | os.PathLike[str]) -> "Sequence[files.FileFault]":
        """Write a consistent copy, the store to `path` and artifacts next to it, while others continue to work.

        Returns the records that have lost their files in the store itself; each other one has its files in the copy.
        Raises `FileExistsError` if `path` exists, `InvalidInput`, `StorageFull`, `StoreError`.
        """
        self._require_host()
        return files.back_up(self._runtime, os.fspath(path))

    def delete_entity(self, entity: str, *, keep_ledger: bool = False) -> int:
        """Delete all data of one entity for ever, its keys, models, jobs, runs and ledger with them.

        `keep_ledger` keeps the rows of its ledger and their totals, which have no texts, for its invoices. Returns how
        many records were deleted. Running jobs are cancelled first. Safe to call again after a crash.
        """
        self._require_host()
        return erasure.erase_entity(self._runtime, check_name(entity, "entity"), keep_ledger)

    def remove_orphans(self, grace: float = 15 * 60.0) -> "sweep_service.OrphanReport":
        """Remove artifacts that no record names, which a crash may leave, and find the records whose artifacts are
        missing, as in a copy that was made without them.

        If there are any, it waits `grace` seconds to distinguish them from artifacts whose record is not yet written.
        A running job that has shown no sign of life in that time is taken from its worker first.
        """
        self._require_host()
        return sweep_service.collect_orphans(self._runtime, grace)

    def prepare(self) -> tuple[str, ...]:
        """Set up libraries that are not loaded yet for serving and training; return the modules that load slowly."""
        self._require_host()
        return tuple(module for engine in self._runtime.engines for module in engine.prepare())

    def sync(self) -> None:
        """Make everything that was acknowledged as durable as the store promises."""
        self._life.check()
        self._runtime.store.sync()

    def close(self) -> None:
        """Sync, and close what was opened with the platform. Idempotent. Raises `StoreError` when it cannot sync."""
        if self._life.closed or process_identity.forks != self._life.forks:
            return
        self._life.closed = True
        self._runtime.threads.close()
        self._life.close()

    def _require_host(self) -> None:
        self._life.check()
        require_host(self._principal)

    def __enter__(self) -> Self:
        self._life.check()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        self._life.check()
        return self

    async def __aexit__(self, *_: object) -> None:
        await in_new_thread(self.close)
