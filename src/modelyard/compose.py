"""`open_platform`: the one place where concrete adapters are named."""

import os
from collections.abc import Callable, Sequence
from typing import Literal

from modelyard.artifacts import folder, memory
from modelyard.backends import tabular
from modelyard.backends.echo import EchoBackend
from modelyard.backends.router import Router
from modelyard.backends.tabular_offer import tabular_entries
from modelyard.deferred import deferred
from modelyard.domain.identity import check_name, host
from modelyard.domain.schema import RECORDS
from modelyard.executors import thread
from modelyard.protocols import ArtifactStore, AsyncBackend, Backend, Clock, Ids, Observer, Randomness, Store, Trainer
from modelyard.service.platform import Life, Platform, beside
from modelyard.service.ports import Ports, Settings
from modelyard.stores import sqlite
from modelyard.stores.memory import MemoryStore
from modelyard.system import SystemClock, uuid7_ids
from modelyard.trainers import tabular as tabular_training


def open_platform(
    path: str | os.PathLike[str] | None = None,
    *,
    entity: str = "local",
    backend: Backend | AsyncBackend | None = None,
    trainers: Sequence[Trainer] | None = None,
    store: Store | None = None,
    artifacts: ArtifactStore | None = None,
    durability: Literal["power", "process"] = "power",
    clock: Clock | None = None,
    ids: Ids | None = None,
    randomness: Randomness = os.urandom,
    observer: Observer | None = None,
    settings: Settings | None = None,
) -> Platform:
    """Open a platform: in memory, or in the SQLite file `path` with its artifacts in the folder `<path>-artifacts`.

    `backend` answers (by default an echo and the tabular base models), `trainers` train. `durability` of the file is
    "power" or "process" (docs/explanation/durability.md). `clock`, `ids` and `randomness` make a history repeatable;
    ids of its own take their time from the clock.
    `observer` receives the typed events of `modelyard.domain.observed`. A `store` or `artifacts` of your own takes the
    place of the default; you close it yourself. Nothing is read from the environment and no thread is started.

    Raises `InvalidInput`, `StoreCorrupt`, `StoreTooNew`, `StoreBusy`.
    """
    check_name(entity, "entity")
    opened_store = _open_store(path, durability) if store is None else store
    try:
        kept = artifacts or _open_artifacts(path, randomness)
    except BaseException:
        if store is None:
            opened_store.close()
        raise
    ports = Ports(
        store=opened_store,
        artifacts=kept,
        backend=backend or Router([EchoBackend(), _tabular_backend()]),
        trainers=tuple(trainers) if trainers is not None else (deferred(lambda: tabular_training.TabularTrainer()),),
        clock=clock or SystemClock(),
        ids=ids or (uuid7_ids() if clock is None else uuid7_ids(lambda: _milliseconds(clock))),
        randomness=randomness,
        observer=observer,
        settings=settings or Settings(),
    )
    close: Callable[[], None] = opened_store.close if store is None else opened_store.sync
    return Platform(ports, host(entity), Life(os.getpid(), close, lambda threads: thread.ThreadExecutor(threads)))


def _milliseconds(clock: Clock) -> int:
    return int(clock.now().timestamp() * 1000)


def _open_store(path: str | os.PathLike[str] | None, durability: Literal["power", "process"]) -> Store:
    if path is None:
        return MemoryStore(RECORDS)
    return sqlite.SqliteStore(os.fspath(path), RECORDS, durability=durability)


def _open_artifacts(path: str | os.PathLike[str] | None, randomness: Randomness) -> ArtifactStore:
    if path is None:
        return deferred(lambda: memory.MemoryArtifacts(randomness))
    return folder.FolderArtifacts(beside(path), randomness)


def _tabular_backend() -> Backend:
    """With its entries at hand: the router lists them when it is made."""
    entries = tabular_entries()
    return deferred(lambda: tabular.TabularBackend(), entries=lambda: entries)
