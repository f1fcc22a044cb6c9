"""The transports of a request: by blocking calls or on an event loop."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import TypeVar

import attrs

from modelyard import process_identity
from modelyard.domain.record import EMPTY
from modelyard.errors import BackendError, Overloaded
from modelyard.parts.upstream.address import Address
from modelyard.parts.upstream.concurrency import ConcurrencyLimiter, Place
from modelyard.parts.upstream.connections import (
    AsyncConnection,
    BlockingConnection,
    IdleConnections,
    LoopConnections,
)
from modelyard.parts.upstream.errors import Head, RetryableError
from modelyard.parts.upstream.exchange import Adapters, Upstream
from modelyard.parts.upstream.response import ConnectionBroken, NotHttp
from modelyard.protocols import Clock, ServedModel

T = TypeVar("T")


class Clients:
    """The connections of this process to one server: a pool for threads, and one for each event loop.

    An event loop's pool is closed with it: `asyncio.run` closes the asynchronous generators that are left, and one of
    them holds the pool.
    """

    def __init__(self, address: Address, kept: int, clock: Clock) -> None:
        self.address: Address = address
        self._kept, self._clock = kept, clock
        self._lock = threading.Lock()
        self.idle: IdleConnections[BlockingConnection] = IdleConnections(kept)
        self._on_loops: dict[asyncio.AbstractEventLoop, tuple[LoopConnections, AsyncGenerator[None, None]]] = {}
        self.closed: threading.Event = threading.Event()

    def blocking(self) -> IdleConnections[BlockingConnection]:
        self._check()
        return self.idle

    async def on_loop(self) -> LoopConnections:
        """Return the pool of the running event loop. Raises `BackendError` once closed."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._check()
            if loop in self._on_loops:
                return self._on_loops[loop][0]
            pool = LoopConnections(self.address, self._kept, self._clock)
            keeper = self._kept_open(pool, loop)
            self._on_loops[loop] = pool, keeper
        await anext(keeper)
        return pool

    def _check(self) -> None:
        if self.closed.is_set():
            raise BackendError("this upstream backend is closed")

    def close(self) -> None:
        """Close the pool for threads, and refuse further requests. Idempotent."""
        self.closed.set()
        self.idle.close()

    async def aclose(self) -> None:
        """Close the pool for threads and that of the running event loop, and refuse further requests."""
        self.close()
        with self._lock:
            kept = self._on_loops.get(asyncio.get_running_loop())
        if kept is not None:
            await kept[1].aclose()

    async def _kept_open(self, pool: LoopConnections, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            with self._lock:
                del self._on_loops[loop]
            pool.close()


@attrs.frozen
class ProcessState:
    """The state of this process, which a forked process does not share."""

    clients: Clients
    limiter: ConcurrencyLimiter
    forks: int = attrs.field(factory=lambda: process_identity.forks)


class BlockingTransport:
    """Carries one request by blocking calls: an `exchange.Transport`."""

    def __init__(self, state: ProcessState, upstream: Upstream, model: ServedModel | None = None) -> None:
        self._state, self._upstream = state, upstream
        self._headers: Mapping[str, str] = EMPTY if model is None else model.headers
        self._on_sent: Callable[[bool], object] = bool if model is None else model.on_sent
        self._stack = ExitStack()
        self._connection: BlockingConnection | None = None

    def enter(self, seconds: float) -> None:
        woken = threading.Event()
        place = self._state.limiter.acquire(woken.set)
        self._stack.callback(self._state.limiter.release, place)
        if not place.inside and not self._upstream.clock.wait(woken, seconds):
            raise _no_turn(seconds)

    def borrow(self, adapters: Adapters, model: ServedModel) -> str:
        return self._stack.enter_context(adapters.serving(model))

    def send(self, method: str, path: str, body: bytes, target: str | None, seconds: float) -> Head:
        """Send the request and return the head of the answer; the connection keeps the time."""
        self._hang_up()
        request = self._state.clients.address.request(method, path, body, self._headers, target)
        head: Head | None = None
        while head is None:
            head = self._send(request, seconds)
        return head

    def _send(self, request: bytes, seconds: float) -> Head | None:
        """Send the request once. Return None if the server had closed a kept connection: it is not counted."""
        kept = self._state.clients.blocking().take()
        connection = self._connection = kept or self._connect()
        try:
            self._on_sent(True)
            connection.send(request, seconds)
            while connection.response.head is None:
                connection.receive(seconds)
        except TimeoutError:
            raise
        except (ConnectionBroken, OSError) as error:
            if kept is None:
                raise _broken_off(error) from error
            self._on_sent(False)
            self._hang_up()
        return connection.response.head

    def _connect(self) -> BlockingConnection:
        try:
            return BlockingConnection(self._state.clients.address, self._upstream.timeouts.connect)
        except OSError as error:
            raise _unreachable() from error

    def read(self, seconds: float) -> bytes:
        connection = self._connection
        assert connection is not None
        try:
            while not connection.response.buffered and not connection.response.complete:
                connection.receive(seconds)
        except TimeoutError:
            raise
        except (ConnectionBroken, OSError) as error:
            raise _broken_off(error) from error
        return connection.response.take()

    def redirected(self, path: str, location: str) -> str | None:
        return self._state.clients.address.redirected(path, location)

    def pause(self, seconds: float) -> None:
        """Wait before the next attempt, or until the backend is closed."""
        self._upstream.clock.wait(self._state.clients.closed, seconds)

    def close(self) -> None:
        """Break off, and give everything back. Idempotent."""
        with self._stack:
            self._hang_up()

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._state.clients.idle.give_back(connection)


class AsyncTransport:
    """Carries one request on an event loop: an `exchange.Transport`. The time is kept by the clock."""

    def __init__(self, state: ProcessState, upstream: Upstream, model: ServedModel | None = None) -> None:
        self._state, self._upstream = state, upstream
        self._headers: Mapping[str, str] = EMPTY if model is None else model.headers
        self._on_sent: Callable[[bool], object] = bool if model is None else model.on_sent
        self._place: Place | None = None
        self._borrowed: AsyncExitStack | None = None
        self._pool: LoopConnections | None = None
        self._connection: AsyncConnection | None = None

    async def enter(self, seconds: float) -> None:
        woken, loop = asyncio.Event(), asyncio.get_running_loop()
        place = self._place = self._state.limiter.acquire(lambda: loop.call_soon_threadsafe(woken.set))
        if not place.inside:
            try:
                await self._within(seconds, woken.wait())
            except TimeoutError:
                raise _no_turn(seconds) from None

    async def borrow(self, adapters: Adapters, model: ServedModel) -> str:
        if self._borrowed is None:
            self._borrowed = AsyncExitStack()
        return await self._borrowed.enter_async_context(adapters.aserving(model))

    async def send(self, method: str, path: str, body: bytes, target: str | None, seconds: float) -> Head:
        self._hang_up()
        self._pool = await self._state.clients.on_loop()
        request = self._state.clients.address.request(method, path, body, self._headers, target)
        head: Head | None = None
        while head is None:
            head = await self._send(self._pool, request, self._upstream.clock.monotonic() + seconds)
        return head

    async def _send(self, pool: LoopConnections, request: bytes, due: float) -> Head | None:
        """Send the request once. Return None if the server had closed a kept connection: it is not counted."""
        kept = pool.idle.take()
        connection = self._connection = kept or await self._connect(pool, due)
        connection.send(request)
        self._on_sent(True)
        pool.deadlines.begin(connection, due)
        try:
            await connection.head()
        except ConnectionBroken as error:
            if kept is None:
                raise _broken_off(error) from error
            self._on_sent(False)
            self._hang_up()
        finally:
            pool.deadlines.end(connection)
        return connection.response.head

    async def _connect(self, pool: LoopConnections, due: float) -> AsyncConnection:
        return await self._within(due - self._upstream.clock.monotonic(), self._opened(pool))

    async def _opened(self, pool: LoopConnections) -> AsyncConnection:
        try:
            return await pool.open(self._upstream.timeouts.connect)
        except OSError as error:
            raise _unreachable() from error

    async def read(self, seconds: float) -> bytes:
        connection, pool = self._connection, self._pool
        assert connection is not None
        assert pool is not None
        if not connection.has_news:
            pool.deadlines.begin(connection, self._upstream.clock.monotonic() + seconds)
            try:
                await connection.news()
            finally:
                pool.deadlines.end(connection)
        try:
            return connection.take()
        except ConnectionBroken as error:
            raise _broken_off(error) from error

    def redirected(self, path: str, location: str) -> str | None:
        return self._state.clients.address.redirected(path, location)

    async def pause(self, seconds: float) -> None:
        await self._upstream.clock.asleep(seconds)

    async def aclose(self) -> None:
        """Break off, and give everything back. Idempotent."""
        self._hang_up()
        place, borrowed = self._place, self._borrowed
        self._place = self._borrowed = None
        try:
            if borrowed is not None:
                await borrowed.aclose()
        finally:
            if place is not None:
                self._state.limiter.release(place)

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._pool is not None:
            self._pool.idle.give_back(connection)

    async def _within(self, seconds: float, work: Awaitable[T]) -> T:
        """Return the result of work that rarely has to wait. Raises `TimeoutError` if the clock moves on so far."""
        async with asyncio.timeout(None) as wait:
            ending = asyncio.create_task(self._end(wait, seconds))
            try:
                return await work
            finally:
                ending.cancel()

    async def _end(self, wait: asyncio.Timeout, seconds: float) -> None:
        await self._upstream.clock.asleep(seconds)
        wait.reschedule(asyncio.get_running_loop().time())


# ---- errors: what a fault of the connection says may name hosts, and stays in the log -----------------------------


def _unreachable() -> RetryableError:
    return RetryableError(BackendError("the upstream server cannot be reached"), again=True)


def _broken_off(error: Exception) -> RetryableError:
    if isinstance(error, NotHttp):
        wrong = "the upstream server's answer is not HTTP; the url must be where its chat completions are served"
        return RetryableError(BackendError(wrong), again=True)
    return RetryableError(BackendError("the upstream server broke the connection off"), again=True)


def _no_turn(seconds: float) -> Overloaded:
    return Overloaded(f"the upstream server had no room within {seconds:g} s; try again")
