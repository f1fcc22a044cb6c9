"""The local backend and trainer keep the contracts of all backends and trainers."""

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from local_models import SHAPE, base_model

from modelyard.backends.local.backend import LocalBackend
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.domain.training import Example, TrajectoryGroup
from modelyard.protocols import AsyncBackend, Backend, Capabilities, ServedModel, Trainer
from modelyard.testing.backend import BackendContract
from modelyard.testing.trainer import WORDS, TrainerContract, conversation_about, rewarded
from modelyard.trainers.local.trainer import LocalTrainer


class TestLocalBackend(BackendContract):
    @pytest.fixture
    def backend(self, shared_backend: LocalBackend) -> Backend:
        return shared_backend


class OnALoop:
    """The asynchronous face alone."""

    def __init__(self, inner: LocalBackend) -> None:
        self.inner = inner

    def entries(self) -> Any:
        return self.inner.entries()

    def capabilities(self, model: str) -> Capabilities:
        return self.inner.capabilities(model)

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int | None:
        return self.inner.prompt_tokens(request, model)

    def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
        return self.inner.astream(request, model)


class TestLocalBackendOnALoop(BackendContract):
    @pytest.fixture
    def backend(self, shared_backend: LocalBackend) -> AsyncBackend:
        return OnALoop(shared_backend)


class TestLocalTrainer(TrainerContract):
    """Runs are kept short: each of the contract's laws takes many of them."""

    @pytest.fixture
    def trainer(self, folders: Callable[..., Path]) -> Trainer:
        return LocalTrainer([base_model(folders("nano"), "tiny")], shape=SHAPE, save_every=3)

    @pytest.fixture
    def base_model(self) -> str:
        return "tiny"

    @pytest.fixture
    def examples(self) -> Sequence[Example]:
        return [conversation_about(word, "It is blue.") for word in WORDS[:7]]

    @pytest.fixture
    def groups(self) -> Sequence[TrajectoryGroup]:
        return [rewarded(word, [place % 2, 0.5]) for place, word in enumerate(WORDS[:6])]
