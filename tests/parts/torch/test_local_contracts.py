"""The local backend keeps the contract of all backends; that of trainers is kept in `test_train`."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.parts.contracts.backend import BackendContract
from modelyard.parts.torch.serving.backend import LocalBackend
from modelyard.protocols import AsyncBackend, Backend, Capabilities, ServedModel


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
