"""One flow, two drivers: a use case that waits is written once, as a generator of what it needs.

A flow yields effects and receives their answers; it may also yield `Emit(item)` for the caller who reads along. `run`
and `iterate` drive it by blocking calls, `arun` and `aiterate` by awaiting, and neither knows what it is about.

A caller who goes away is told to the flow as `Abandoned`, raised at the effect where it waits. The flow may still ask
for effects, to book what was produced, and then ends.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, TypeVar

import attrs

from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.protocols import AsyncBackend, Backend, ServedModel, Store, Tx

T = TypeVar("T")


class Abandoned(Exception):  # noqa: N818 - it is news, not an error
    """The caller reads no further."""


@attrs.frozen
class Transact:
    """Answered with what the step returns."""

    store: Store
    step: Callable[[Tx], Any]
    durable: bool = True


@attrs.frozen
class Call:
    """Answered with what the function returns; `blocking` says that it may wait."""

    function: Callable[[], Any]
    blocking: bool


@attrs.frozen
class Await:
    """Answered with what the function's awaitable gives; `otherwise` is the same thing without an event loop."""

    function: Callable[[], Any]
    otherwise: Callable[[], Any]


@attrs.frozen
class Open:
    """Answered with a `Source` of the backend's deltas, which the driver closes when the flow ends."""

    backend: Backend | AsyncBackend
    request: CompletionRequest
    model: ServedModel


@attrs.define(eq=False)
class Source:
    """An open stream of deltas, of one kind or the other."""

    blocking: bool
    iterator: Iterator[Delta] | None = None
    aiterator: AsyncIterator[Delta] | None = None
    loop: asyncio.AbstractEventLoop | None = None
    closed: bool = False

    def take_all(self) -> list[Delta]:
        """What is left, as long as nobody closes the source meanwhile."""
        assert self.iterator is not None
        deltas = []
        for delta in self.iterator:
            deltas.append(delta)
            if self.closed:
                break
        return deltas


@attrs.frozen
class Pull:
    """Answered with the next delta, or None at the end."""

    source: Source


@attrs.frozen
class PullAll:
    """Answered with a list of all remaining deltas: one hand-over in the place of many."""

    source: Source


@attrs.frozen
class Emit:
    """An item for the caller who reads along; answered with None."""

    item: Any


Effect = Transact | Call | Await | Open | Pull | PullAll | Emit
Flow = Generator[Effect, Any, T]


# ---- the synchronous driver ------------------------------------------------------------------------------------


def run(flow: Flow[T]) -> T:
    """Drive a flow to its end; what it emits is dropped."""
    items = _Items(flow)
    for _ in items:
        pass
    return items.result  # type: ignore[no-any-return]


def iterate(flow: Flow[T]) -> Iterator[Any]:
    """Drive a flow and yield what it emits. Closing the iterator abandons the flow."""
    return iter(_Items(flow))


class _Items:
    """Iterates over what a flow emits and keeps what it returns."""

    def __init__(self, flow: Flow[Any]) -> None:
        self.flow, self.result = flow, None

    def __iter__(self) -> Iterator[Any]:
        sources: list[Source] = []
        flow, answer, error = self.flow, None, None
        try:
            while True:
                try:
                    effect = flow.send(answer) if error is None else flow.throw(error)
                except StopIteration as end:
                    self.result = end.value
                    return
                answer = error = None
                if type(effect) is Emit:
                    try:
                        yield effect.item
                    except GeneratorExit:
                        self._abandon(sources)
                        raise
                    continue
                try:
                    answer = perform(effect, sources)
                except Exception as failure:  # noqa: BLE001 - the flow decides
                    error = failure
        finally:
            for source in sources:
                close_source(source)

    def _abandon(self, sources: list[Source]) -> None:
        for source in sources:
            close_source(source)
        try:
            effect = self.flow.throw(Abandoned())
            while True:
                effect = self.flow.send(None if type(effect) is Emit else perform(effect, sources))
        except (StopIteration, Abandoned):
            return


def perform(effect: Effect, sources: list[Source]) -> Any:
    """Answer one effect by blocking calls."""
    kind = type(effect)
    if kind is Pull:
        return _next(effect.source)  # type: ignore[union-attr]
    if kind is Transact:
        return effect.store.transact(effect.step, effect.durable)  # type: ignore[union-attr]
    if kind is Open:
        source = _open(effect)  # type: ignore[arg-type]
        sources.append(source)
        return source
    if kind is PullAll:
        return _all(effect.source)  # type: ignore[union-attr]
    if kind is Await:
        return effect.otherwise()  # type: ignore[union-attr]
    assert isinstance(effect, Call)
    return effect.function()


def _open(effect: Open) -> Source:
    if hasattr(effect.backend, "stream"):
        return Source(effect.backend.blocking, iter(effect.backend.stream(effect.request, effect.model)))
    if _running_loop() is not None:
        raise RuntimeError("this backend is asynchronous only: on an event loop use acomplete or astream")
    loop = asyncio.new_event_loop()
    return Source(True, aiterator=aiter(effect.backend.astream(effect.request, effect.model)), loop=loop)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _next(source: Source) -> Delta | None:
    if source.iterator is not None:
        return next(source.iterator, None)
    assert source.loop is not None
    assert source.aiterator is not None
    return source.loop.run_until_complete(_anext(source.aiterator))


def _all(source: Source) -> list[Delta]:
    if source.iterator is not None:
        return source.take_all()
    deltas = []
    while (delta := _next(source)) is not None:
        deltas.append(delta)
    return deltas


def close_source(source: Source) -> None:
    """Stop the backend's work. Idempotent."""
    if source.closed:
        return
    source.closed = True
    if source.iterator is not None and hasattr(source.iterator, "close"):
        source.iterator.close()
    if source.loop is not None:
        if inspect.isasyncgen(source.aiterator):
            source.loop.run_until_complete(source.aiterator.aclose())
        source.loop.close()


# ---- the asynchronous driver --------------------------------------------------------------------------------------


async def arun(flow: Flow[T]) -> T:
    """Drive a flow to its end on the running event loop, which it never blocks; what it emits is dropped."""
    driver = _AsyncItems(flow)
    async for _ in driver.items():
        pass
    return driver.result  # type: ignore[no-any-return]


def aiterate(flow: Flow[T]) -> AsyncIterator[Any]:
    """Drive a flow on the running event loop and yield what it emits. Closing the iterator abandons the flow."""
    return _AsyncItems(flow).items()


class _AsyncItems:
    """The asynchronous twin of `_Items`."""

    def __init__(self, flow: Flow[Any]) -> None:
        self.flow, self.result = flow, None

    async def items(self) -> AsyncIterator[Any]:
        sources: list[Source] = []
        flow, answer, error = self.flow, None, None
        try:
            while True:
                try:
                    effect = flow.send(answer) if error is None else flow.throw(error)
                except StopIteration as end:
                    self.result = end.value
                    return
                answer = error = None
                try:
                    if type(effect) is Emit:
                        yield effect.item
                        continue
                    answer = await aperform(effect, sources)
                except (GeneratorExit, asyncio.CancelledError):
                    await asyncio.shield(self._abandon(sources))
                    raise
                except Exception as failure:  # noqa: BLE001 - the flow decides
                    error = failure
        finally:
            for source in sources:
                await aclose_source(source)

    async def _abandon(self, sources: list[Source]) -> None:
        for source in sources:
            await aclose_source(source)
        try:
            effect = self.flow.throw(Abandoned())
            while True:
                effect = self.flow.send(None if type(effect) is Emit else await aperform(effect, sources))
        except (StopIteration, Abandoned):
            return


async def aperform(effect: Effect, sources: list[Source]) -> Any:
    """Answer one effect without blocking the event loop."""
    kind = type(effect)
    if kind is Pull:
        return await _apull(effect.source)  # type: ignore[union-attr]
    if kind is Transact:
        if effect.store.blocking:  # type: ignore[union-attr]
            return await effect.store.atransact(effect.step, effect.durable)  # type: ignore[union-attr]
        return effect.store.transact(effect.step, effect.durable)  # type: ignore[union-attr]
    if kind is Open:
        source = _aopen(effect)  # type: ignore[arg-type]
        sources.append(source)
        return source
    if kind is PullAll:
        return await _apull_all(effect.source)  # type: ignore[union-attr]
    if kind is Await:
        return await effect.function()  # type: ignore[union-attr]
    assert isinstance(effect, Call)
    return await in_executor(effect.function) if effect.blocking else effect.function()


async def in_executor(function: Callable[[], T]) -> T:
    """Run a function that may wait in the loop's default executor."""
    return await asyncio.get_running_loop().run_in_executor(None, function)


def _aopen(effect: Open) -> Source:
    if hasattr(effect.backend, "astream"):
        return Source(False, aiterator=aiter(effect.backend.astream(effect.request, effect.model)))
    return Source(effect.backend.blocking, iter(effect.backend.stream(effect.request, effect.model)))


async def _anext(aiterator: AsyncIterator[Delta]) -> Delta | None:
    return await anext(aiterator, None)


async def _apull(source: Source) -> Delta | None:
    if source.aiterator is not None:
        return await _anext(source.aiterator)
    iterator = source.iterator
    assert iterator is not None
    return await in_executor(lambda: next(iterator, None)) if source.blocking else next(iterator, None)


async def _apull_all(source: Source) -> list[Delta]:
    if source.aiterator is not None:
        return [delta async for delta in source.aiterator]
    return await in_executor(source.take_all) if source.blocking else source.take_all()


async def aclose_source(source: Source) -> None:
    """Stop the backend's work. Idempotent."""
    if source.closed:
        return
    source.closed = True
    if inspect.isasyncgen(source.aiterator):
        await source.aiterator.aclose()
    elif source.iterator is not None and hasattr(source.iterator, "close"):
        close = source.iterator.close
        await in_executor(close) if source.blocking else close()
