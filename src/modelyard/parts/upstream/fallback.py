"""Several backends for the same models: if one fails before its first delta, the next one is tried."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, closing
from functools import partial
from typing import Any, TypeVar, cast

import attrs

from modelyard.backends.deltas import aone_by_one, one_by_one
from modelyard.backends.router import retries_of
from modelyard.domain import embedding
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import CompletionRequest, Delta, Usage
from modelyard.errors import BackendError, InvalidInput, ModelNotFound
from modelyard.protocols import AsyncBackend, Backend, Capabilities, Deltas, ServedModel
from modelyard.threads import run_blocking

log: logging.Logger = logging.getLogger("modelyard.backends.fallback")
log.addHandler(logging.NullHandler())

T = TypeVar("T")
AnyBackend = Backend | AsyncBackend


class Fallback:
    """Tries the backends that offer a model in order, until one does not fail before its first delta.

    The next backend is tried after `BackendError` and its subclasses, such as `Overloaded`. Errors of the caller are
    raised at once.

        Fallback([UpstreamBackend(local, ...), UpstreamBackend(hosted, ...)])

    For each model the entry is the entry of the first backend that offers it, as read when the fallback is created. A
    model has the capabilities that all its backends share. Raises `InvalidInput` without backends.
    """

    def __init__(self, backends: Sequence[AnyBackend]) -> None:
        if not backends:
            raise InvalidInput.at("backends", msg="must name at least one backend")
        self._entries: dict[str, CatalogueEntry] = {}
        self._by_model: dict[str, list[AnyBackend]] = {}
        for backend in backends:
            for entry in backend.entries():
                self._entries.setdefault(entry.id, entry)
                self._by_model.setdefault(entry.id, []).append(backend)
        self._offered = tuple(self._entries.values())
        self._backends = tuple(backends)

    @property
    def blocking(self) -> bool:
        """Whether any of them may wait."""
        return any(getattr(backend, "blocking", True) for backend in self._backends)

    @property
    def retries(self) -> int:
        """How many attempts its backends have made again, if they count them."""
        return retries_of(self._backends)

    def entries(self) -> Sequence[CatalogueEntry]:
        """Return the offered entries, each model once."""
        return self._offered

    def capabilities(self, model: str) -> Capabilities:
        """Return what every backend of the model can do."""
        first, *others = (backend.capabilities(model) for backend in self._for(model))
        for other in others:
            first = _both(first, other)
        return first

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int | None:
        """Return the highest count of its backends, or None if one of them cannot count."""
        counts = [backend.prompt_tokens(request, model) for backend in self._for(model.base_model)]
        known = [count for count in counts if count is not None]
        return max(known) if len(known) == len(counts) else None

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        """Stream the answer of the first backend that does not fail. Raises what the last one raises."""
        return self._first(model, lambda backend: _stream(backend, request, model))

    def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
        """Stream as `stream` does, without blocking the event loop."""
        return self._afirst(model, lambda backend: _astream(backend, request, model))

    def embed(self, request: "embedding.EmbeddingRequest", model: ServedModel) -> "Iterator[embedding.EmbeddedBatch]":
        """Embed with the first backend that does not fail. Raises what the last one raises."""
        return self._first(model, lambda backend: _embed(backend, request, model))

    def aembed(
        self, request: "embedding.EmbeddingRequest", model: ServedModel
    ) -> "AsyncIterator[embedding.EmbeddedBatch]":
        """Embed as `embed` does, without blocking the event loop."""
        return self._afirst(model, lambda backend: _aembed(backend, request, model))

    def _first(self, model: ServedModel, begin: Callable[[AnyBackend], Generator[T, None, None]]) -> Iterator[T]:
        *others, last = self._for(model.base_model)
        for backend in others:
            with closing(begin(backend)) as items:
                leading: list[T] = []
                try:
                    for item in items:
                        leading.append(item)
                        if not _is_empty(item):
                            break
                except BackendError as error:
                    _log_failure(model, error)
                    continue
                except Exception:
                    yield from leading
                    raise
                yield from leading
                yield from items
                return
        yield from begin(last)

    async def _afirst(
        self, model: ServedModel, begin: Callable[[AnyBackend], AsyncGenerator[T, None]]
    ) -> AsyncIterator[T]:
        *others, last = self._for(model.base_model)
        for backend in others:
            async with aclosing(begin(backend)) as items:
                leading: list[T] = []
                try:
                    async for item in items:
                        leading.append(item)
                        if not _is_empty(item):
                            break
                except BackendError as error:
                    _log_failure(model, error)
                    continue
                except Exception:
                    for item in leading:
                        yield item
                    raise
                for item in leading:
                    yield item
                async for item in items:
                    yield item
                return
        async with aclosing(begin(last)) as items:
            async for item in items:
                yield item

    def _for(self, model: str) -> list[AnyBackend]:
        try:
            return self._by_model[model]
        except KeyError:
            raise ModelNotFound("model", model) from None


def _both(one: Capabilities, other: Capabilities) -> Capabilities:
    one, other = _with_real_structure(one, other), _with_real_structure(other, one)
    shared = {
        field.name: _less(getattr(one, field.name), getattr(other, field.name)) for field in attrs.fields(Capabilities)
    }
    if one.embedding_size != other.embedding_size:  # vectors of different models cannot be compared
        shared["embedding_size"] = 0
    return Capabilities(**shared)


def _less(one: Any, other: Any) -> Any:
    """Return what both have: of sets the intersection, which may equal neither."""
    return one & other if isinstance(one, frozenset) else min(one, other)


def _with_real_structure(one: Capabilities, other: Capabilities) -> Capabilities:
    """Lift a double's capabilities to the capabilities of a backend that really constrains its output: it answers the
    same requests.
    """
    if not one.synthesises_structure or other.synthesises_structure:
        return one
    return attrs.evolve(
        one, forced_tools=one.tools, json_mode=True, structured_outputs=True, synthesises_structure=False
    )


def _is_empty(item: Any) -> bool:
    """Return whether an item is not yet the beginning of an answer: at most it tells what an answer has cost."""
    return isinstance(item, Delta) and item == Delta(index=item.index, usage=item.usage)


def _log_failure(model: ServedModel, error: BackendError) -> None:
    log.warning("a backend of %r failed before its first token; trying the next one: %s", model.base_model, error)


# ---- one stream, of either kind of backend -----------------------------------------------------------------------


class _Reported:
    """Adds the usage to the last delta if its backend only counts tokens beforehand: see `prompt_tokens`."""

    def __init__(self, prompt_tokens: int | None) -> None:
        self._prompt, self._produced = prompt_tokens, 0

    def with_usage(self, delta: Delta) -> Delta:
        self._produced += delta.tokens
        if delta.usage is not None:
            self._prompt = None
        if self._prompt is None or delta.finish_reason is None:
            return delta
        return attrs.evolve(delta, usage=Usage(self._prompt, self._produced))


def _stream(backend: AnyBackend, request: CompletionRequest, model: ServedModel) -> Generator[Delta, None, None]:
    if not hasattr(backend, "stream"):
        raise BackendError(f"{model.base_model!r} can be answered asynchronously only; use it on an event loop")
    with_usage = _Reported(backend.prompt_tokens(request, model)).with_usage
    with closing(one_by_one(cast(Backend, backend).stream(request, model))) as deltas:
        yield from map(with_usage, deltas)


async def _astream(backend: AnyBackend, request: CompletionRequest, model: ServedModel) -> AsyncGenerator[Delta, None]:
    with_usage = _Reported(backend.prompt_tokens(request, model)).with_usage
    async with aclosing(aone_by_one(_on_loop(backend, request, model))) as deltas:
        async for delta in deltas:
            yield with_usage(delta)


def _on_loop(backend: AnyBackend, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Deltas]:
    if hasattr(backend, "astream"):
        return backend.astream(request, model)
    return _driven(backend, lambda: backend.stream(request, model), model)


async def _driven(backend: Backend, begin: Callable[[], Iterator[T]], model: ServedModel) -> AsyncGenerator[T, None]:
    """Yield what a synchronous backend yields, each item fetched in a thread if that may block."""
    call = partial(run_blocking, model.threads) if backend.blocking else _in_place
    items = await call(lambda: iter(begin()))
    try:
        while (found := await call(partial(next, items, None))) is not None:
            yield found
    finally:
        close = getattr(items, "close", _nothing)
        await (run_blocking(model.threads and model.threads.to_close, close) if backend.blocking else _in_place(close))


def _embed(
    backend: Any, request: "embedding.EmbeddingRequest", model: ServedModel
) -> "Generator[embedding.EmbeddedBatch, None, None]":
    if not hasattr(backend, "embed"):
        raise BackendError(f"{model.base_model!r} can embed asynchronously only; use it on an event loop")
    yield from backend.embed(request, model)


async def _aembed(
    backend: Any, request: "embedding.EmbeddingRequest", model: ServedModel
) -> "AsyncGenerator[embedding.EmbeddedBatch, None]":
    in_place = hasattr(backend, "aembed")
    found = (
        backend.aembed(request, model) if in_place else _driven(backend, lambda: backend.embed(request, model), model)
    )
    async with aclosing(found) as batches:
        async for batch in batches:
            yield batch


def _nothing() -> None:
    """Do nothing: what has no `close` needs none."""


async def _in_place(function: Callable[[], T]) -> T:
    return function()
