"""Backends with their asynchronous face alone, as one of which the platform can be asked on event loops only."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.protocols import ServedModel


class OnLoops:
    """A synchronous backend, made asynchronous only. `closed` counts the answers that have ended."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.closed = inner, 0
        self.entries, self.capabilities, self.prompt_tokens = inner.entries, inner.capabilities, inner.prompt_tokens

    async def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
        try:
            for delta in self.inner.stream(request, model):
                await asyncio.sleep(0)
                yield delta
        finally:
            self.closed += 1


class AsynchronousFace(OnLoops):
    """The asynchronous face of a backend that has both."""

    def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
        return self.inner.astream(request, model)
