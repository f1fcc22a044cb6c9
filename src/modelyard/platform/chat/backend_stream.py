"""The stream of deltas from a backend: one class for both kinds of backend, and the effects that use it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, cast

import attrs

from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import Completion, CompletionRequest
from modelyard.domain.frozen_fast import quick_init
from modelyard.errors import BackendError
from modelyard.flow import AsyncDriver, Driver, give_way
from modelyard.lazy import asyncio, log
from modelyard.protocols import AsyncBackend, Backend, Deltas, ServedModel
from modelyard.threads import TenantThreads, run_in


@attrs.define(eq=False)
class BackendStream:
    """An open stream of deltas, of a backend of one kind or the other.

    A synchronous one has `begin`, called at the first pull, so that all of a backend runs where it may block; `deltas`
    is what it returned, and `blocking` is whether getting them may wait: then an event loop does it in `threads`. An
    asynchronous one has `adeltas`; `runner` drives them where no event loop runs.
    """

    blocking: bool
    threads: TenantThreads | None
    begin: Callable[[], Iterator[Deltas]] | None = None
    deltas: Iterable[Deltas] | None = None
    adeltas: AsyncIterator[Deltas] | None = None
    runner: "asyncio.Runner | None" = None
    stopping: bool = False
    closed: bool = False

    @property
    def waits(self) -> bool:
        """Whether it may keep an event loop waiting."""
        return self.blocking or self.adeltas is not None

    @classmethod
    def of(cls, backend: Backend | AsyncBackend, request: CompletionRequest, model: ServedModel) -> "BackendStream":
        """Open a stream for blocking calls: an asynchronous backend gets an event loop of its own.

        Raises RuntimeError for such a backend where an event loop runs already.
        """
        if hasattr(backend, "stream"):
            return cls._synchronous(cast(Backend, backend), request, model)
        if _on_event_loop():
            raise RuntimeError("this backend is asynchronous only: on an event loop use acomplete or astream")
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        return cls(True, None, adeltas=backend.astream(request, model), runner=runner)

    @classmethod
    def on_loop(
        cls, backend: Backend | AsyncBackend, request: CompletionRequest, model: ServedModel
    ) -> "BackendStream":
        """Open a stream for an event loop: asynchronous where the backend can be."""
        if hasattr(backend, "astream"):
            return cls(False, None, adeltas=backend.astream(request, model))
        return cls._synchronous(backend, request, model)

    @classmethod
    def _synchronous(cls, backend: Backend, request: CompletionRequest, model: ServedModel) -> "BackendStream":
        return cls(backend.blocking, model.threads, partial(backend.stream, request, model))

    def pull(self, take: Callable[[Deltas], bool]) -> bool:
        """Hand deltas to `take` until it returns True or the stream is to stop. Returns False at the end."""
        if self.runner is not None:
            return self.runner.run(self.apull(take))
        if self.deltas is None:
            assert self.begin is not None
            self.deltas = iter(self.begin())
        for delta in self.deltas:  # noqa: SIM110 - a generator would be resumed for every delta
            if take(delta) or self.stopping:
                return True
        return False

    async def apull(self, take: Callable[[Deltas], bool]) -> bool:
        """Hand deltas to `take`, on an event loop, until it returns True. Returns False at the end."""
        assert self.adeltas is not None
        async for delta in self.adeltas:
            if take(delta):
                return True
        return False

    def stop(self) -> None:
        """Have a pull that is under way in another thread end with the delta that is being made."""
        self.stopping = True

    def close(self) -> None:
        """Stop the backend's work. Idempotent; a fault of the backend while it stops is logged and changes nothing."""
        if self.closed:
            return
        self.closed = True
        try:
            if self.runner is None:
                close_deltas(self.deltas)
            else:
                self.runner.run(self._aclose())
        except Exception:  # noqa: BLE001 - the answer is complete, or given up
            log.exception(_STOPPING)
        finally:
            if self.runner is not None:
                self.runner.close()

    async def aclose(self) -> None:
        """Stop the backend's work on an event loop, in a thread where the backend may block. Idempotent."""
        if self.closed:
            return
        if self.adeltas is None:
            closes = self.threads and self.threads.to_close
            await run_in(closes if self.blocking and self.deltas is not None else None, self.close)
            return
        self.closed = True
        try:
            await self._aclose()
        except Exception:  # noqa: BLE001 - the answer is complete, or given up
            log.exception(_STOPPING)

    async def _aclose(self) -> None:
        aclose = getattr(self.adeltas, "aclose", None)
        if aclose is not None:
            await aclose()


class BegunDeltas:
    """Deltas that are read on, of an iterator that was begun elsewhere; closing them closes it."""

    def __init__(self, deltas: Iterator[Deltas], begun: object) -> None:
        self._deltas, self._begun = deltas, begun

    def __iter__(self) -> Iterator[Deltas]:
        return self._deltas

    def close(self) -> None:
        close_deltas(self._begun)


def backend_of(backend: Backend | AsyncBackend, model: str) -> Backend | AsyncBackend:
    """Return the backend that answers for a model: of a router the model's own, which may be of the other kind."""
    unwrap = getattr(backend, "backend_of", None)
    return backend if unwrap is None else unwrap(model)


_STOPPING = "a backend failed while it was stopped"


def close_deltas(deltas: object) -> None:
    """Close the iterator of a backend, if it can be closed. What it raises is logged and changes nothing."""
    close = getattr(deltas, "close", None)
    if close is None:
        return
    try:
        close()
    except Exception:  # noqa: BLE001 - the answer is complete, or given up
        log.exception(_STOPPING)


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def backend_failed(error: Exception) -> BackendError:
    """Return the error of a request whose backend raised something of its own."""
    return BackendError(f"the backend failed with {type(error).__name__}")


# ---- what comes of it ----------------------------------------------------------------------------------------------


@attrs.frozen
class StreamStarted:
    """The first item of a stream: nothing can be refused any more. `created` is in Unix seconds."""

    id: str
    created: int
    model: str
    entry: CatalogueEntry


@quick_init
@attrs.frozen(weakref_slot=False)
class CompletionResult:
    """What a `CompletionPipeline` returns: the completion, and the catalogue entry that priced it."""

    completion: Completion
    entry: CatalogueEntry


# ---- effects -------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Open:
    """Answered with a `BackendStream` of the backend's deltas, which the driver closes when the flow has ended.

    That is `begun` where the backend never waits and was asked already.
    """

    backend: Backend | AsyncBackend
    request: CompletionRequest
    model: ServedModel
    begun: BackendStream | None = None

    @property
    def waits(self) -> bool:
        """Whether it opens otherwise on an event loop; nothing is requested of the backend yet in either way."""
        return hasattr(self.backend, "astream")

    def perform(self, driver: "Driver[Any]") -> BackendStream:
        """Open it. Raises RuntimeError for an asynchronous backend where an event loop runs already."""
        return _opened(driver, self.begun or BackendStream.of(self.backend, self.request, self.model))

    async def aperform(self, driver: "AsyncDriver[Any]") -> BackendStream:
        """Open it asynchronously, where the backend can."""
        return _opened(driver, BackendStream.on_loop(self.backend, self.request, self.model))


def _opened(driver: Driver[Any], stream: BackendStream) -> BackendStream:
    driver.opened.append(stream)
    return stream


@attrs.define(eq=False)
class Pull:
    """Hands deltas to `take` until that returns True. Answered with whether it did; False is the end of the stream."""

    stream: BackendStream
    take: Callable[[Deltas], bool]

    @property
    def waits(self) -> bool:
        return self.stream.waits

    def perform(self, driver: "Driver[Any]") -> bool:
        return self.stream.pull(self.take)

    async def aperform(self, driver: "AsyncDriver[Any]") -> bool:
        """Pull on the loop, or in a thread for a backend that blocks."""
        if self.stream.adeltas is not None:
            return await self.stream.apull(self.take)
        return await driver.in_thread(lambda: self.stream.pull(self.take), self.stream.threads, self.stream.stop)


@attrs.define(eq=False)
class Close:
    """Stops the stream's work now; answered with None."""

    stream: BackendStream

    @property
    def waits(self) -> bool:
        return self.stream.waits

    def perform(self, driver: "Driver[Any]") -> None:
        """Close it in this thread."""
        self.stream.close()

    async def aperform(self, driver: "AsyncDriver[Any]") -> None:
        """Close it on the loop, or in a thread."""
        await driver.close(self.stream)


@attrs.define(eq=False)
class GiveWay:
    """Lets other tasks of the event loop run; answered with None. For work that never waits and may take long."""

    waits: ClassVar[bool] = True

    def perform(self, driver: "Driver[Any]") -> None:
        """Do nothing: no loop waits."""

    def aperform(self, driver: "AsyncDriver[Any]") -> Awaitable[Any]:
        """Return to the loop once."""
        return give_way()
