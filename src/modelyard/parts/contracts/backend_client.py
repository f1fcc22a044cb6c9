"""A client of a backend, synchronous or asynchronous, without a platform: for its contract, and for your own tests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import attrs

from modelyard.backends.deltas import several
from modelyard.domain.completion import Choice, CompletionRequest, Delta, Message, Role, Sampling
from modelyard.platform.chat.assembly import fold_choice
from modelyard.protocols import AsyncBackend, Backend, Deltas, ServedModel

T = TypeVar("T")
AnyBackend = Backend | AsyncBackend

QUESTION = (
    Message(Role.SYSTEM, "You are brief."),
    Message(Role.USER, "What do the sea, the sky and the night have in common? Größe ≠ 深さ 🌊"),
)
MAX_TOKENS = 24


def request_for(model: str, **fields: Any) -> CompletionRequest:
    asked = CompletionRequest(model, QUESTION, sampling=Sampling(seed=7), max_tokens=MAX_TOKENS)
    return attrs.evolve(asked, **fields)


def served(backend: AnyBackend, model: str) -> ServedModel:
    (entry,) = [entry for entry in backend.entries() if entry.id == model]
    return ServedModel(model, entry)


def deltas_of(backend: AnyBackend, request: CompletionRequest) -> list[Delta]:
    with opened(backend, [request]) as (stream,):
        return list(stream)


def read_all(begin: Callable[[], Iterator[T]], abegin: Callable[[], AsyncIterator[T]], blocking: bool) -> list[T]:
    """Return everything that a backend yields, read by blocking calls or on an event loop."""
    if blocking:
        return list(begin())

    async def read() -> list[T]:
        return [item async for item in abegin()]

    return asyncio.run(read())


@contextmanager
def opened(backend: AnyBackend, requests: Iterable[CompletionRequest]) -> Iterator[list[Iterator[Delta]]]:
    """Yield answers that can be read in turns and closed, from either kind of backend, on one event loop."""
    chosen = [(request, served(backend, request.model)) for request in requests]
    if hasattr(backend, "stream"):
        yield [_OneByOne(iter(backend.stream(request, model))) for request, model in chosen]
        return
    with asyncio.Runner() as runner:
        yield [_OneByOne(_Turns(runner, backend.astream(request, model))) for request, model in chosen]


class _OneByOne:
    def __init__(self, items: Iterator[Deltas]) -> None:
        self._items = items
        self._ready: Iterator[Delta] = iter(())

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        while True:
            for delta in self._ready:
                return delta
            self._ready = iter(several(next(self._items)))

    def close(self) -> None:
        stop = getattr(self._items, "close", None)
        assert stop is not None, "closing the answer stops the work: make `stream` a generator"
        stop()
        self._ready = iter(())


class _Turns:
    def __init__(self, runner: asyncio.Runner, deltas: AsyncIterator[Deltas]) -> None:
        self._runner, self._deltas = runner, deltas

    def __iter__(self) -> Iterator[Deltas]:
        return self

    def __next__(self) -> Deltas:
        try:
            return self._runner.run(self._next())
        except StopAsyncIteration:
            raise StopIteration from None

    async def _next(self) -> Deltas:
        return await anext(self._deltas)

    def close(self) -> None:
        close = getattr(self._deltas, "aclose", None)
        assert close is not None, "closing the answer stops the work: make `astream` a generator"
        self._runner.run(close())


def close(stream: Iterator[Delta]) -> None:
    cast(_OneByOne, stream).close()


def choice_of(deltas: Iterable[Delta]) -> Choice:
    return fold_choice(0, deltas, with_logprobs=True)
