"""Small backends for tests: asynchronous only, failing in the middle of an answer, or with a fixed answer."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from modelyard.backends.deltas import one_by_one
from modelyard.backends.echo import EchoBackend
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


class Failing(EchoBackend):
    """Echoes `after` words, and then raises `error`. `asked` and `closed` count its answers."""

    def __init__(self, error: Exception, after: int = 0, blocking: bool = False) -> None:
        super().__init__()
        self.error, self.after, self.requested, self.closed, self.blocking = error, after, 0, 0, blocking

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        self.requested += 1
        try:
            for at, delta in enumerate(one_by_one(super().stream(request, model))):
                if at == self.after:
                    raise self.error
                yield delta
        finally:
            self.closed += 1


class FixedAnswer(EchoBackend):
    """Answers with these deltas, synchronously or asynchronously."""

    def __init__(self, deltas: Sequence[Delta]) -> None:
        super().__init__()
        self.deltas = deltas

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        yield from self.deltas

    async def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
        for delta in self.deltas:
            yield delta
