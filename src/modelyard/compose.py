"""`open_platform`: the one place where concrete adapters are named."""

import os
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal, Never

from modelyard.artifacts import address, folder, memory
from modelyard.backends.echo import EchoBackend
from modelyard.backends.router import Router
from modelyard.clock import SystemClock, system_randomness, uuid7_ids
from modelyard.domain.identity import check_name, host
from modelyard.domain.schema import RECORDS
from modelyard.engines.tabular import backend as tabular
from modelyard.engines.tabular import trainer as tabular_training
from modelyard.engines.tabular.base import tabular_entries
from modelyard.errors import InvalidInput
from modelyard.executors import thread
from modelyard.lazy import deferred
from modelyard.parts import postgres
from modelyard.parts.torch import records as base_model
from modelyard.parts.torch.entries import LocalOffer
from modelyard.parts.torch.serving import backend as local
from modelyard.parts.torch.training import trainer as local_training
from modelyard.platform import job_types
from modelyard.platform.artifacts import artifacts_folder
from modelyard.platform.opened_with import Lifetime
from modelyard.platform.platform import Platform
from modelyard.platform.runtime import Runtime, Settings
from modelyard.platform.usage import booking
from modelyard.protocols import (
    ArtifactStore,
    AsyncBackend,
    Backend,
    Clock,
    Ids,
    Observer,
    Randomness,
    Snapshot,
    Store,
    Trainer,
)
from modelyard.stores import sqlite
from modelyard.stores.memory import MemoryStore

_MOST_BASE_MODELS = 1000
_ADDRESSES = ("postgresql://", "postgres://")


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
) -> Platform:
    """Open a platform: in memory, in the SQLite file `path` with its artifacts in the folder `<path>-artifacts`, or in
    the PostgreSQL database of an address such as "postgresql://host/yard", with the artifacts that you name.

    `entity` owns what the host creates. `project` is the default for models, datasets and evaluations.
    `backend` answers (by default an echo, the tabular base models and base models in local folders), `trainers` train.
    `durability` of the store is "power" or "process" (docs/explanation/durability.md). `clock`, `ids` and `randomness`
    make a run repeatable; the default ids are made of the other two. `observer` receives typed events, such as
    `CompletionBooked`. Your own `store` or `artifacts` replaces the default; you close it yourself. `artifacts` may
    also be a folder or the address of an object store, such as "s3://bucket/prefix", whose credentials come from its
    environment variables. Nothing else is read from the environment and no thread is started.

    Raises `InvalidInput`, `StoreCorrupt`, `StoreTooNew`, `StoreBusy`, `StoreError`, `MissingExtra`.
    """
    check_name(entity, "entity")
    check_name(project, "project")
    clock_in_use, random_bytes = clock or SystemClock(), randomness or system_randomness()
    opened_store = open_store(path, durability, clock_in_use) if store is None else store
    try:
        kept = _open_artifacts(artifacts, path, random_bytes)
    except BaseException:
        if store is None:
            opened_store.close()
        raise
    base_models = [] if backend is not None or (path is None and store is None) else _kept_base_models(opened_store)
    offer = LocalOffer(base_models)
    served_locally, close_networks = _local_backend(offer)
    runtime = Runtime(
        store=opened_store,
        artifacts=kept,
        backend=backend or Router([EchoBackend(), _tabular_backend(), served_locally]),
        trainers=tuple(trainers) if trainers is not None else _trainers(base_models, offer),
        clock=clock_in_use,
        ids=ids or (uuid7_ids(randomness=random_bytes) if clock is None else ids_by(clock, random_bytes)),
        randomness=random_bytes,
        observer=observer,
        settings=settings or Settings(),
        project=project,
        job_types=deferred(lambda: job_types.JOB_TYPES),
        base_models=base_models if backend is None else None,
    )
    close_store: Callable[[], None] = opened_store.close if store is None else opened_store.sync

    def close() -> None:
        if runtime.cache.running or runtime.cache.bookings:
            booking.close_requests(runtime)
        runtime.cache.closed = True
        runtime.cache.close_slots()
        close_networks()
        close_store()

    return Platform(runtime, host(entity), Lifetime(close, lambda threads: thread.ThreadExecutor(threads)))


def open_by_addresses(path: str, artifacts: str | None = None) -> Platform:
    """Open a platform as the commands name it: by strings only, so that a process of its own can open the same one."""
    return open_platform(path, artifacts=artifacts)


def ids_by(clock: Clock, randomness: Randomness = os.urandom) -> Ids:
    """Make a source of ids that take their time from a clock, and the rest from `randomness`."""
    return uuid7_ids(lambda: int(clock.now().timestamp() * 1000), randomness)


def is_address(path: str | os.PathLike[str] | None) -> bool:
    """Return whether this is the address of a database, and not the path of a file.

    Raises `InvalidInput` for an address of another kind, which would be taken for a file.
    """
    scheme = re.match(r"[a-z][a-z0-9+.-]*://|postgres(?:ql)?:", path) if isinstance(path, str) else None
    if scheme is None or scheme[0] in _ADDRESSES:
        return scheme is not None
    raise InvalidInput.at(
        "store", msg=f"no store has addresses that begin with {scheme[0]}; name a file, or postgresql://host/database"
    )


def open_store(
    path: str | os.PathLike[str] | None,
    durability: Literal["power", "process"] = "power",
    clock: Clock | None = None,
) -> Store:
    """Open the records of a platform: in memory, in a file, or in the database of an address."""
    if path is None:
        return MemoryStore(RECORDS, clock)
    if is_address(path):
        return postgres.PostgresStore(str(path), RECORDS, durability=durability)
    return sqlite.SqliteStore(os.fspath(path), RECORDS, durability=durability, clock=clock)


def _open_artifacts(
    artifacts: ArtifactStore | str | os.PathLike[str] | None,
    path: str | os.PathLike[str] | None,
    randomness: Randomness,
) -> ArtifactStore:
    if isinstance(artifacts, str | os.PathLike):
        return address.open_artifacts(os.fspath(artifacts), randomness)
    if artifacts is not None:
        return artifacts
    if path is None:
        return deferred(lambda: memory.MemoryArtifacts(randomness))
    if is_address(path):
        return deferred(_refuse_artifacts)
    return folder.FolderArtifacts(artifacts_folder(path), randomness)


def _refuse_artifacts() -> Never:
    raise InvalidInput.at(
        "artifacts",
        msg="a platform in PostgreSQL needs a place for files that all its machines share: open it with artifacts=, "
        "or --artifacts on the command line",
    )


def _tabular_backend() -> Backend:
    """Make the tabular backend, with its entries cached: every request compares them with those of the last one."""
    return deferred(lambda: tabular.TabularBackend(), entries=cache(tabular_entries))


def _kept_base_models(store: Store) -> "list[base_model.BaseModel]":
    """Return the base models that the store holds."""

    def query(snapshot: Snapshot) -> "list[base_model.BaseModel]":
        return snapshot.page(base_model.BaseModel, "listed", base_model.OFFER, limit=_MOST_BASE_MODELS)

    return store.read(query)


def _local_backend(offer: LocalOffer) -> tuple[Backend, Callable[[], None]]:
    """Make the backend of base models in local folders, and the function that closes it; torch loads on first use."""
    made: list[local.LocalBackend] = []

    def make() -> Backend:
        made.append(local.LocalBackend(offer))
        return made[0]

    def close() -> None:
        for backend in made:
            backend.close()

    return deferred(make, entries=offer.entries), close


def _trainers(base_models: "list[base_model.BaseModel]", offer: LocalOffer) -> tuple[Trainer, ...]:
    """Make the trainers of the tabular models and of base models in local folders."""
    return (
        deferred(lambda: tabular_training.TabularTrainer()),
        deferred(lambda: local_training.LocalTrainer(base_models), methods=offer.methods),
    )
