"""One flow, two drivers: code that waits is written once, as a generator of the effects that it needs. A flow yields
effects and receives their answers; it may also yield `Emit(item)` for the caller who reads along. `run` and `iterate`
drive it by blocking calls, `arun` and `aiterate` by awaiting, and neither knows what it is about. When the caller
leaves, `CallerDisconnected` is raised at the effect at which the flow waits, after everything that it opened was
closed. The flow may still yield effects, to record what was produced, and then ends. Work in another thread or in the
store is never abandoned: the flow receives its outcome first."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable
from types import coroutine
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import attrs

from modelyard.lazy import asyncio, log
from modelyard.protocols import Store, Tx
from modelyard.threads import TenantThreads, outlast

T = TypeVar("T")
R = TypeVar("R")


class CallerDisconnected(Exception):
    """The caller reads no further."""


class Effect(Protocol):
    """Something that a flow needs. Its answer, or its exception, is sent to the flow."""

    @property
    def waits(self) -> bool:
        """Whether it might keep an event loop waiting."""

    def perform(self, driver: "Driver[Any]") -> Any:
        """Return the answer, by blocking calls."""

    def aperform(self, driver: "AsyncDriver[Any]") -> Awaitable[Any]:
        """Return an awaitable of the answer."""


Flow = Generator[Effect, Any, T]


@coroutine
def give_way() -> Generator[None, None, None]:
    """Let other tasks of the event loop run: a test may replace `asyncio.sleep`, and count its own."""
    yield


# ---- effects ---------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Emit:
    """An item for the caller who reads along; answered with None. Drivers drop it once the caller left."""

    item: Any
    waits: ClassVar[bool] = False

    def perform(self, driver: "Driver[Any]") -> None:
        pass

    async def aperform(self, driver: "AsyncDriver[Any]") -> None:
        pass


@attrs.define(eq=False)
class OnEmit:
    """From here on, pass what the flow emits to a function, which returns what the caller gets, or None for nothing. It
    is also called with None before the driver waits, to hand over what it has kept back."""

    function: Callable[[Any], Any]
    waits: ClassVar[bool] = False

    def perform(self, driver: "Driver[Any]") -> None:
        driver.on_emit = self.function

    async def aperform(self, driver: "AsyncDriver[Any]") -> None:
        self.perform(driver)


@attrs.define(eq=False)
class Call:
    """Answered with what the function returns; `blocking` tells whether it may wait. On an event loop a function that
    may wait runs in `threads`, or else in those of the driver."""

    function: Callable[[], Any]
    waits: bool = attrs.field(default=True, alias="blocking")
    threads: TenantThreads | None = None

    def perform(self, driver: "Driver[Any]") -> Any:
        return self.function()

    def aperform(self, driver: "AsyncDriver[Any]") -> Awaitable[Any]:
        return driver.in_thread(self.function, self.threads)


@attrs.define(eq=False)
class Await:
    """Answered with the result of the function's awaitable; `otherwise` does the same without an event loop."""

    function: Callable[[], Awaitable[Any]]
    otherwise: Callable[[], Any]
    waits: ClassVar[bool] = True

    def perform(self, driver: "Driver[Any]") -> Any:
        return self.otherwise()

    def aperform(self, driver: "AsyncDriver[Any]") -> Awaitable[Any]:
        return self.function()


@attrs.define(eq=False)
class Transact:
    store: Store
    step: Callable[[Tx], Any]
    durable: bool = True

    @property
    def waits(self) -> bool:
        return self.store.blocking

    def perform(self, driver: "Driver[Any]") -> Any:
        return self.store.transact(self.step, self.durable)

    def aperform(self, driver: "AsyncDriver[Any]") -> Awaitable[Any]:
        return driver.wait(self.store.atransact(self.step, self.durable))


# ---- drivers ---------------------------------------------------------------------------------------------------


def run(flow: Flow[T]) -> T:
    try:
        effect: Effect | None = next(flow)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return] # without an effect, there is nothing to drive
    driver = SyncDriver(flow)
    driver.waits = True
    try:
        while effect is not None:
            effect = driver.perform(effect)
        return driver.result
    finally:
        driver.finish()


def iterate(flow: Flow[Any], opened: Iterable[Any] = ()) -> Generator[Any, None, None]:
    """Drive a flow and yield what it emits, then close what was `opened` for it. To leave, close the iterator."""
    return SyncDriver(flow, opened).items()


async def arun(flow: Flow[T], threads: TenantThreads | None = None) -> T:
    driver = AsyncDriver(flow)
    driver.threads = threads
    async for _ in driver.items():
        pass
    return driver.result


def aiterate(flow: Flow[Any], opened: Iterable[Any] = ()) -> AsyncGenerator[Any, None]:
    return AsyncDriver(flow, opened).items()


class Driver(Generic[T]):
    """A flow under way: whether it `waits` for an answer, and at its end its `result`. `opened` is closed when the flow
    ends or its caller leaves: with `close` by a driver that blocks, with `aclose` by one that awaits. A second call
    must do nothing."""

    result: T
    waits: bool = False
    on_emit: Callable[[Any], Any] | None = None

    def __init__(self, flow: Flow[T], opened: Iterable[Any] = ()) -> None:
        self._flow = flow
        self.opened: list[Any] = list(opened)

    def resume(self, answer: Any = None, error: Exception | None = None) -> Effect | None:
        try:
            effect = self._flow.send(answer) if error is None else self._flow.throw(error)
            if self.on_emit is not None and type(effect) is Emit:
                effect = self._converted(effect, self.on_emit)
        except BaseException as ended:
            self.waits = False
            if not isinstance(ended, StopIteration):
                raise
            self.result = ended.value
            return None
        self.waits = True
        return effect

    def _converted(self, effect: Effect, on_emit: Callable[[Any], Any]) -> Effect:
        """Pass what the flow emits to `on_emit`, until there is something for the caller or another effect."""
        while type(effect) is Emit:
            try:
                item = on_emit(effect.item)
            except Exception as error:  # noqa: BLE001 - the flow decides
                effect = self._flow.throw(error)
            else:
                if item is not None:
                    return Emit(item)
                effect = self._flow.send(None)
        return effect

    def perform(self, effect: Effect) -> Effect | None:
        try:
            answer = effect.perform(self)
        except Exception as error:  # noqa: BLE001 - the flow decides
            return self.resume(error=error)
        return self.resume(answer)


class SyncDriver(Driver[T]):
    def items(self) -> Generator[Any, None, None]:
        try:
            effect = self.resume()
            while effect is not None:
                if type(effect) is Emit:
                    yield effect.item
                    effect = self.resume()
                    continue
                if self.on_emit is not None and effect.waits and (kept := self.on_emit(None)) is not None:
                    yield kept
                effect = self.perform(effect)
        finally:
            self.finish()

    def finish(self) -> None:
        """Close what was opened, after a flow that has not ended was told that its caller has left."""
        try:
            if self.waits:
                self._close_all()
                effect = self.resume(error=CallerDisconnected())
                while effect is not None:
                    effect = self.perform(effect)
        except CallerDisconnected:
            pass
        except Exception:  # noqa: BLE001 - no caller is left to raise it to
            log.exception("what was abandoned could not be brought to its end")
        finally:
            self._close_all()

    def _close_all(self) -> None:
        for opened in self.opened:
            opened.close()


class AsyncDriver(Driver[T]):
    """Answers effects on an event loop. `cancelled` is a cancellation that had to wait for something."""

    cancelled: "asyncio.CancelledError | None" = None
    threads: TenantThreads | None = None

    async def items(self) -> AsyncGenerator[Any, None]:
        """Yield what the flow emits."""
        try:
            effect = self.resume()
            while effect is not None and self.cancelled is None:
                if type(effect) is Emit:
                    yield effect.item
                    effect = self.resume()
                elif effect.waits:
                    if self.on_emit is not None and (kept := self.on_emit(None)) is not None:
                        yield kept
                    effect = await self.aperform(effect)
                else:
                    effect = self.perform(effect)
        finally:
            if self.waits or self.opened:
                await self.finish()
            if self.cancelled is not None:
                raise self.cancelled

    async def aperform(self, effect: Effect) -> Effect | None:
        try:
            answer = await effect.aperform(self)
        except Exception as error:  # noqa: BLE001 - the flow decides
            return self.resume(error=error)
        return self.resume(answer)

    async def in_thread(
        self, function: Callable[[], R], threads: TenantThreads | None, stop: Callable[[], None] = lambda: None
    ) -> R:
        """Run a function that may wait in a thread; `stop` ends it early when the task is cancelled."""
        threads = threads or self.threads
        if threads is None:
            raise RuntimeError("a call that may wait needs threads on an event loop: give them to it or to the driver")
        call = threads.begin(function)
        self.cancelled = await threads.outlast(call, stop) or self.cancelled
        return call.future.result()

    async def wait(self, work: Coroutine[Any, Any, R], done: Callable[[], object] = lambda: None) -> R:
        """Await work that must not be abandoned: a task that is cancelled meanwhile ends when the work is `done`."""
        try:
            while True:
                if (awaited := work.send(None)) is not None:
                    self.cancelled = await outlast(awaited) or self.cancelled
                    continue
                try:
                    await give_way()
                except asyncio.CancelledError as error:
                    self.cancelled = error
        except StopIteration as end:
            result: R = end.value
        done()
        return result

    async def close(self, opened: Any) -> None:
        """Close what the flow has opened. A cancellation meanwhile is raised at the end of the flow."""
        try:
            await opened.aclose()
        except asyncio.CancelledError as error:
            self.cancelled = error

    async def finish(self) -> None:
        try:
            if self.waits:
                await self._close_all()
                effect = self.resume(error=CallerDisconnected())
                while effect is not None:
                    effect = await self.aperform(effect) if effect.waits else self.perform(effect)
        except CallerDisconnected:
            pass
        except Exception:  # noqa: BLE001 - no caller is left to raise it to
            log.exception("what was abandoned could not be brought to its end")
        finally:
            await self._close_all()

    async def _close_all(self) -> None:
        for opened in self.opened:
            await self.close(opened)
