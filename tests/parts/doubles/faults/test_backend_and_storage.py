"""With no fault scheduled, what is wrapped keeps the laws of its port."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backends import OnLoops
from modelyard.artifacts.folder import FolderArtifacts
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.backends.echo import EchoBackend
from modelyard.backends.router import Router
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.engines.tabular.base import BASE_MODELS
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.executors.inline import InlineExecutor
from modelyard.executors.thread import ThreadExecutor
from modelyard.parts.contracts.artifacts import ArtifactStoreContract
from modelyard.parts.contracts.backend import BackendContract
from modelyard.parts.contracts.executor import ExecutorContract
from modelyard.parts.contracts.store import CONTRACT_RECORDS, StoreContract
from modelyard.parts.contracts.trainer import TrainerContract
from modelyard.parts.doubles.faults.faults import Faults
from modelyard.protocols import ArtifactStore, Executor, Store, Trainer
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore


class TestFaultyEcho(BackendContract):
    @pytest.fixture
    def backend(self) -> Any:
        return Faults().backend(EchoBackend(("echo", "parrot")))


class TestFaultyAsyncEcho(BackendContract):
    @pytest.fixture
    def backend(self) -> Any:
        return Faults().backend(OnLoops(EchoBackend()))


class TestFaultyRouter(BackendContract):
    @pytest.fixture
    def backend(self) -> Any:
        return Faults().backend(Router([TabularBackend(), EchoBackend()]))


class TestFaultyMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = Faults().store(MemoryStore(CONTRACT_RECORDS))
        yield store
        store.close()


@pytest.mark.slow
class TestFaultySqliteStore(StoreContract):
    @pytest.fixture
    def store(self, contract_file: Path) -> Iterator[Store]:
        self.path = contract_file
        store = Faults().store(SqliteStore(self.path, CONTRACT_RECORDS))
        yield store
        store.close()

    def reopen(self, store: Store) -> Store:
        store.close()
        return Faults().store(SqliteStore(self.path, CONTRACT_RECORDS))


class TestFaultyMemoryArtifacts(ArtifactStoreContract):
    @pytest.fixture
    def artifacts(self) -> ArtifactStore:
        return Faults().artifacts(MemoryArtifacts())


class TestFaultyFolderArtifacts(ArtifactStoreContract):
    @pytest.fixture
    def artifacts(self, tmp_path: Path) -> ArtifactStore:
        return Faults().artifacts(FolderArtifacts(tmp_path / "files"))


@pytest.mark.slow
class TestFaultyTrainer(TrainerContract):
    @pytest.fixture
    def trainer(self) -> Trainer:
        return Faults().trainer(TabularTrainer(save_every=2))

    @pytest.fixture
    def base_model(self) -> str:
        return BASE_MODELS[0]


class TestFaultyInlineExecutor(ExecutorContract):
    inline = True

    @pytest.fixture
    def executor(self) -> Executor:
        return Faults().executor(InlineExecutor())


class TestFaultyThreadExecutor(ExecutorContract):
    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        executor = Faults().executor(ThreadExecutor())
        yield executor
        executor.close()


def test_what_a_backend_can_do_besides_passes_through() -> None:
    class Publishing(EchoBackend):
        def publish(self, name: str) -> str:
            return f"published {name}"

    backend: Any = Faults().backend(Publishing())
    assert backend.publish("x") == "published x"
    assert not hasattr(backend, "retract")
