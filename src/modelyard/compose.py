"""`open_platform`: the one place where concrete adapters are named."""

import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from modelyard.artifacts.folder import FolderArtifacts
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.backends.echo import EchoBackend
from modelyard.backends.router import Router
from modelyard.backends.tabular import TabularBackend
from modelyard.domain.identity import check_name, host
from modelyard.domain.schema import RECORDS
from modelyard.executors.thread import ThreadExecutor
from modelyard.protocols import ArtifactStore, AsyncBackend, Backend, Clock, Ids, Observer, Randomness, Store, Trainer
from modelyard.service.platform import Life, Platform, beside
from modelyard.service.ports import Ports, Settings
from modelyard.stores.memory import MemoryStore
from modelyard.system import SystemClock, uuid7_ids
from modelyard.trainers.tabular import TabularTrainer


def open_platform(
    path: str | os.PathLike[str] | None = None,
    *,
    entity: str = "local",
    backend: Backend | AsyncBackend | None = None,
    trainers: Sequence[Trainer] | None = None,
    store: Store | None = None,
    artifacts: ArtifactStore | None = None,
    durability: str = "power",
    clock: Clock | None = None,
    ids: Ids | None = None,
    randomness: Randomness = os.urandom,
    observer: Observer | None = None,
    settings: Settings | None = None,
) -> Platform:
    """Open a platform: in memory, or in the SQLite file `path` with its artifacts in the folder `<path>-artifacts`.

    `backend` answers (by default an echo and the tabular base models), `trainers` train. `durability` of the file is
    "power" or "process" (docs/explanation/durability.md). `clock`, `ids` and `randomness` make a history repeatable.
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
        backend=backend or Router([EchoBackend(), TabularBackend()]),
        trainers=tuple(trainers) if trainers is not None else (TabularTrainer(),),
        clock=clock or SystemClock(),
        ids=ids or uuid7_ids(),
        randomness=randomness,
        observer=observer,
        settings=settings or Settings(),
    )
    close: Callable[[], None] = opened_store.close if store is None else opened_store.sync
    return Platform(ports, host(entity), Life(os.getpid(), close, ThreadExecutor))


def _open_store(path: str | os.PathLike[str] | None, durability: str) -> Store:
    if path is None:
        return MemoryStore(RECORDS)
    # Imported here by name: sqlite-utils is slow to load, and a platform in memory needs none of it.
    sqlite: Any = importlib.import_module("modelyard.stores.sqlite")
    opened: Store = sqlite.SqliteStore(os.fspath(path), RECORDS, durability=durability)
    return opened


def _open_artifacts(path: str | os.PathLike[str] | None, randomness: Randomness) -> ArtifactStore:
    if path is None:
        return MemoryArtifacts(randomness)
    return FolderArtifacts(beside(path), randomness)
