"""`open_platform`: the one place where concrete adapters are named."""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Literal, Never

from modelyard.artifacts import address, folder, memory
from modelyard.backends.echo import EchoBackend
from modelyard.backends.router import Router
from modelyard.clock import SystemClock, system_randomness, uuid7_ids
from modelyard.domain.identity import check_name, host
from modelyard.domain.schema import records_of
from modelyard.engines.tabular import backend as tabular
from modelyard.engines.tabular import trainer as tabular_training
from modelyard.engines.tabular.base import tabular_entries
from modelyard.errors import InvalidInput
from modelyard.executors import thread
from modelyard.lazy import deferred
from modelyard.part import DefaultEngine, Part, StoreAddress, by_scheme, meant_as_address, standard_parts
from modelyard.platform import job_types
from modelyard.platform.artifacts import artifacts_folder
from modelyard.platform.opened_with import Lifetime
from modelyard.platform.platform import Platform
from modelyard.platform.runtime import Runtime, Settings
from modelyard.platform.usage import booking
from modelyard.protocols import ArtifactStore, AsyncBackend, Backend, Clock, Ids, Observer, Randomness, Store, Trainer
from modelyard.stores import schema_changes, sqlite
from modelyard.stores.memory import MemoryStore


def open_platform(
    path: str | os.PathLike[str] | None = None,
    *,
    entity: str = "local",
    project: str = "default",
    backend: Backend | AsyncBackend | None = None,
    trainers: Sequence[Trainer] | None = None,
    store: Store | None = None,
    artifacts: ArtifactStore | str | os.PathLike[str] | None = None,
    durability: Literal["power", "process"] = "power",
    clock: Clock | None = None,
    ids: Ids | None = None,
    randomness: Randomness | None = None,
    observer: Observer | None = None,
    settings: Settings | None = None,
    parts: Sequence[Part] | None = None,
) -> Platform:
    """Open a platform: in memory, in the SQLite file `path` with its artifacts in the folder `<path>-artifacts`, or in
    the PostgreSQL database of an address such as "postgresql://host/yard", with the artifacts that you name.

    `entity` owns what the host creates. `project` is the default for models, datasets and evaluations.
    `backend` answers (by default an echo, the tabular base models and base models in local folders), `trainers` train.
    `durability` of the store is "power" or "process" (docs/explanation/durability.md). `clock`, `ids` and `randomness`
    make a run repeatable; the default ids are made of the other two. `observer` receives typed events, such as
    `CompletionBooked`. Your own `store` or `artifacts` replaces the default; you close it yourself. `artifacts` may
    also be a folder or the address of an object store, such as "s3://bucket/prefix", whose credentials come from its
    environment variables. `parts` are the optional capabilities, by default `modelyard.parts.STANDARD`: a part of
    your own goes into `parts=[*STANDARD, MINE]`. Else only parts read the environment, and no thread is started.

    Raises `InvalidInput`, `StoreCorrupt`, `StoreTooNew`, `StoreBusy`, `StoreError`, `MissingExtra`.
    """
    check_name(entity, "entity")
    check_name(project, "project")
    clock_in_use, random_bytes = clock or SystemClock(), randomness or system_randomness()
    parts = standard_parts() if parts is None else tuple(parts)
    if isinstance(artifacts, str | os.PathLike):  # a wrong address leaves no new store
        artifacts = address.open_artifacts(os.fspath(artifacts), random_bytes, parts)
    opened_store = open_store(path, durability, clock_in_use, parts) if store is None else store
    try:
        kept = artifacts if artifacts is not None else _default_artifacts(path, random_bytes, parts)
    except BaseException:
        if store is None:
            opened_store.close()
        raise
    older = None if path is None and store is None else opened_store
    engines = [] if backend is not None else [part.engine(older) for part in parts if part.engine is not None]
    runtime = Runtime(
        store=opened_store,
        artifacts=kept,
        backend=backend or Router([EchoBackend(), _tabular_backend(), *(engine.backend for engine in engines)]),
        trainers=tuple(trainers) if trainers is not None else _trainers(engines),
        clock=clock_in_use,
        ids=ids or (uuid7_ids(randomness=random_bytes) if clock is None else ids_by(clock, random_bytes)),
        randomness=random_bytes,
        observer=observer,
        settings=settings or Settings(),
        project=project,
        open_copy=lambda path, kept: (open_store(path, parts=parts), folder.FolderArtifacts(kept, random_bytes)),
        parts=parts,
        job_types=deferred(lambda: job_types.job_types_of(parts, runtime.tell if runtime.listeners else None)),
        engines=engines,
    )
    close_store: Callable[[], None] = opened_store.close if store is None else opened_store.sync

    def close() -> None:
        if runtime.cache.running or runtime.cache.bookings:
            booking.close_requests(runtime)
        runtime.cache.closed = True
        runtime.cache.close_slots()
        for engine in engines:
            engine.close()
        close_store()

    return Platform(runtime, host(entity), Lifetime(close, lambda threads: thread.ThreadExecutor(threads)))


def open_by_addresses(path: str, artifacts: str | None = None) -> Platform:
    """Open a platform as the commands name it: by strings only, so that a process of its own can open the same one."""
    return open_platform(path, artifacts=artifacts)


def ids_by(clock: Clock, randomness: Randomness = os.urandom) -> Ids:
    """Make a source of ids that take their time from a clock, and the rest from `randomness`."""
    return uuid7_ids(lambda: int(clock.now().timestamp() * 1000), randomness)


def is_address(path: str | os.PathLike[str] | None, parts: Iterable[Part] | None = None) -> bool:
    """Return whether this is the address of a database, and not the path of a file.

    Raises `InvalidInput` for an address of another kind, which would be taken for a file.
    """
    return isinstance(path, str) and store_address(path, standard_parts() if parts is None else parts) is not None


def store_address(path: str, parts: Iterable[Part]) -> StoreAddress | None:
    """Return how to open the store at an address; None for the path of a file. Raises `InvalidInput`."""
    known = by_scheme(parts, "stores")
    for scheme in known:
        if path.startswith(f"{scheme}://"):
            found: StoreAddress = known[scheme]
            return found
    begins = meant_as_address(path) or next((f"{scheme}:" for scheme in known if path.startswith(f"{scheme}:")), None)
    if begins is None:
        return None
    examples = ", ".join(dict.fromkeys(address.example for address in known.values()))
    raise InvalidInput.at(
        "store",
        msg=f"no store has addresses that begin with {begins}; name a file{', or ' if examples else ''}{examples}",
    )


def open_store(
    path: str | os.PathLike[str] | None,
    durability: Literal["power", "process"] = "power",
    clock: Clock | None = None,
    parts: Sequence[Part] | None = None,
) -> Store:
    """Open the records of a platform: in memory, in a file, or in the database of an address."""
    parts = standard_parts() if parts is None else parts
    records = records_of(parts)
    if path is None:
        return MemoryStore(records, clock)
    address = store_address(path, parts) if isinstance(path, str) else None
    if address is not None:
        return address.open(str(path), records, schema_changes.changes_of(parts), durability)
    changes = schema_changes.changes_of(parts)
    return sqlite.SqliteStore(os.fspath(path), records, durability=durability, clock=clock, changes=changes)


def _default_artifacts(
    path: str | os.PathLike[str] | None, randomness: Randomness, parts: Sequence[Part]
) -> ArtifactStore:
    if path is None:
        return deferred(lambda: memory.MemoryArtifacts(randomness))
    if is_address(path, parts):
        return deferred(_refuse_artifacts)
    return folder.FolderArtifacts(artifacts_folder(path), randomness)


def _refuse_artifacts() -> Never:
    raise InvalidInput.at(
        "artifacts",
        msg="a platform in a database needs a place for files that all its machines share: open it with artifacts=, "
        "or --artifacts on the command line",
    )


def _tabular_backend() -> Backend:
    """Make the tabular backend, with its entries cached: every request compares them with those of the last one."""
    return deferred(lambda: tabular.TabularBackend(), entries=cache(tabular_entries))


def _trainers(engines: Iterable[DefaultEngine]) -> tuple[Trainer, ...]:
    """Make the trainer of the tabular models, and take those of engines."""
    tabular_trainer: Trainer = deferred(lambda: tabular_training.TabularTrainer())
    return (tabular_trainer, *(trainer for engine in engines for trainer in engine.trainers))
