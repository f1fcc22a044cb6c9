"""One flow, two drivers: a use case that waits is written once, as a generator of what it needs.

A flow yields effects and receives their answers; it may also yield `Emit(item)` for the caller who reads along. `run`
and `iterate` drive it by blocking calls, `arun` and `aiterate` by awaiting, and neither knows what it is about.

When the caller goes away, `CallerDisconnected` is raised at the effect where the flow waits, after the backends have
stopped. The flow may still ask for effects, to book what was produced, and then ends. What is under way on another
thread or in the store is never left behind: the flow hears of its outcome first.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import attrs

from modelyard import event_loop
from modelyard.off_loop import outlast
from modelyard.platform.backend_stream import BackendStream
from modelyard.platform.runtime import log
from modelyard.protocols import Store, Tx

T = TypeVar("T")
R = TypeVar("R")


class CallerDisconnected(Exception):
    """The caller reads no further."""


class Effect(Protocol):
    """Something that a flow needs. It knows both ways to get it; its answer goes back to the flow, and so does what it
    raises. One that does not wait is performed in place by both drivers."""

    @property
    def waits(self) -> bool:
        """Whether it might keep an event loop waiting."""
        ...

    def perform(self, driver: "Driver[Any]") -> Any:
        """By blocking calls."""
        ...

    async def aperform(self, driver: "AsyncDriver[Any]") -> Any:
        """Without blocking the event loop."""
        ...


Flow = Generator[Effect, Any, T]


# ---- what a flow may ask for -----------------------------------------------------------------------------------


@attrs.define(eq=False)
class Emit:
    """An item for the caller who reads along; answered with None. The drivers hand it over themselves."""

    item: Any
    waits: ClassVar[bool] = False

    def perform(self, driver: "Driver[Any]") -> None:
        """Nobody reads along any more."""

    async def aperform(self, driver: "AsyncDriver[Any]") -> None:
        """Nobody reads along any more."""


@attrs.define(eq=False)
class Transact:
    """Answered with what the step returns."""

    store: Store
    step: Callable[[Tx], Any]
    durable: bool = True

    @property
    def waits(self) -> bool:
        """As the store says."""
        return self.store.blocking

    def perform(self, driver: "Driver[Any]") -> Any:
        """In this thread."""
        return self.store.transact(self.step, self.durable)

    async def aperform(self, driver: "AsyncDriver[Any]") -> Any:
        """In the store's own way."""
        return await driver.wait(self.store.atransact(self.step, self.durable))


@attrs.define(eq=False)
class RecordUsage:
    """A step that books what was produced, and may run again; answered with None. `told` is called when it is stored.

    A driver whose caller keeps something of its own may leave it to them, for the transaction in which they do.
    """

    store: Store
    step: Callable[[Tx], None]
    told: Callable[[], None]

    @property
    def waits(self) -> bool:
        """As the store says."""
        return self.store.blocking

    def perform(self, driver: "Driver[Any]") -> None:
        """In this thread."""
        self.store.transact(self.step, durable=False)
        self.told()

    async def aperform(self, driver: "AsyncDriver[Any]") -> None:
        """In the store's own way."""
        await driver.wait(self.store.atransact(self.step, durable=False))
        self.told()


@attrs.define(eq=False)
class Call:
    """Answered with what the function returns; `blocking` says that it may wait."""

    function: Callable[[], Any]
    blocking: bool = True

    @property
    def waits(self) -> bool:
        """As declared."""
        return self.blocking

    def perform(self, driver: "Driver[Any]") -> Any:
        """In this thread."""
        return self.function()

    async def aperform(self, driver: "AsyncDriver[Any]") -> Any:
        """In the executor."""
        return await driver.in_thread(self.function)


@attrs.define(eq=False)
class Await:
    """Answered with what the function's awaitable gives; `otherwise` is the same thing without an event loop."""

    function: Callable[[], Awaitable[Any]]
    otherwise: Callable[[], Any]
    waits: ClassVar[bool] = True

    def perform(self, driver: "Driver[Any]") -> Any:
        """In this thread."""
        return self.otherwise()

    async def aperform(self, driver: "AsyncDriver[Any]") -> Any:
        """In the task that drives the flow, and cancelled with it."""
        return await self.function()


# ---- the drivers -----------------------------------------------------------------------------------------------


def run(flow: Flow[T]) -> T:
    """Drive a flow to its end; what it emits is dropped."""
    driver = SyncDriver(flow)
    for _ in driver.items():
        pass
    return driver.result


def iterate(flow: Flow[Any]) -> Generator[Any, None, None]:
    """Drive a flow and yield what it emits. Closing the iterator abandons the flow."""
    return SyncDriver(flow).items()


async def arun(flow: Flow[T]) -> T:
    """Drive a flow to its end on the running event loop, which it never blocks; what it emits is dropped."""
    driver = AsyncDriver(flow)
    async for _ in driver.items():
        pass
    return driver.result


def aiterate(flow: Flow[Any]) -> AsyncGenerator[Any, None]:
    """Drive a flow on the running event loop and yield what it emits. Closing the iterator abandons the flow."""
    return AsyncDriver(flow).items()


class Driver(Generic[T]):
    """A flow under way: whether it `waits` for an answer, what it opened and, at its end, what it returned."""

    result: T

    def __init__(self, flow: Flow[T]) -> None:
        self._flow = flow
        self.waits = False
        self.sources: list[BackendStream] = []

    def opened(self, source: BackendStream) -> BackendStream:
        """Remember what must be closed."""
        self.sources.append(source)
        return source

    def resume(self, answer: Any = None, error: Exception | None = None) -> Effect | None:
        """Tell the flow what came of its effect. Returns its next one, or None when it has ended."""
        self.waits = False
        try:
            effect = self._flow.send(answer) if error is None else self._flow.throw(error)
        except StopIteration as end:
            self.result = end.value
            return None
        self.waits = True
        return effect

    def perform(self, effect: Effect) -> Effect | None:
        """Answer an effect in this thread. Returns the flow's next one, or None when it has ended."""
        try:
            answer = effect.perform(self)
        except Exception as error:  # noqa: BLE001 - the flow decides
            return self.resume(error=error)
        return self.resume(answer)


class SyncDriver(Driver[T]):
    """Answers effects by blocking calls."""

    def items(self) -> Generator[Any, None, None]:
        """What the flow emits."""
        try:
            effect = self.resume()
            while effect is not None:
                if type(effect) is Emit:
                    yield effect.item
                    effect = self.resume()
                else:
                    effect = self.perform(effect)
        finally:
            self._finish()

    def _finish(self) -> None:
        try:
            if self.waits:
                self._close_all()
                effect = self.resume(error=CallerDisconnected())
                while effect is not None:
                    effect = self.perform(effect)
        except CallerDisconnected:
            pass
        except Exception:  # noqa: BLE001 - nobody is left to tell
            log.exception("what was abandoned could not be brought to its end")
        finally:
            self._close_all()

    def _close_all(self) -> None:
        for source in self.sources:
            source.close()


class AsyncDriver(Driver[T]):
    """Answers effects on an event loop. `cancelled` is a cancellation that had to wait for something."""

    def __init__(self, flow: Flow[T]) -> None:
        super().__init__(flow)
        self.cancelled: event_loop.CancelledError | None = None

    async def items(self) -> AsyncGenerator[Any, None]:
        """What the flow emits."""
        try:
            effect = self.resume()
            while effect is not None and self.cancelled is None:
                if type(effect) is Emit:
                    yield effect.item
                    effect = self.resume()
                elif effect.waits:
                    effect = await self.aperform(effect)
                else:
                    effect = self.perform(effect)
        finally:
            await self._finish()
            if self.cancelled is not None:
                raise self.cancelled

    async def in_thread(self, function: Callable[[], R]) -> R:
        """What a function that may wait returns."""
        return await self.wait(event_loop.get_running_loop().run_in_executor(None, function))

    async def wait(self, work: Awaitable[R]) -> R:
        """The outcome of work that a cancelled task must not leave behind: it is cancelled when the work is over."""
        future = event_loop.ensure_future(work)
        await outlast(future, self._stop)
        return future.result()

    def _stop(self, cancelled: "event_loop.CancelledError") -> None:
        self.cancelled = cancelled
        for source in self.sources:
            source.stopping = True

    async def close(self, source: BackendStream) -> None:
        """Stop a source's work."""
        if source.adeltas is not None:
            try:
                await source.aclose()
            except event_loop.CancelledError as error:
                self.cancelled = error
        elif source.blocking:
            await self.in_thread(source.close)
        else:
            source.close()

    async def aperform(self, effect: Effect) -> Effect | None:
        """Answer an effect without blocking the event loop. Returns the flow's next one."""
        try:
            answer = await effect.aperform(self)
        except Exception as error:  # noqa: BLE001 - the flow decides
            return self.resume(error=error)
        return self.resume(answer)

    async def _finish(self) -> None:
        try:
            if self.waits:
                await self._close_all()
                effect = self.resume(error=CallerDisconnected())
                while effect is not None:
                    effect = await self.aperform(effect) if effect.waits else self.perform(effect)
        except CallerDisconnected:
            pass
        except Exception:  # noqa: BLE001 - nobody is left to tell
            log.exception("what was abandoned could not be brought to its end")
        finally:
            await self._close_all()

    async def _close_all(self) -> None:
        for source in self.sources:
            if not source.closed:
                await self.close(source)
