"""The transports of a request, over httpx: by blocking calls or on an event loop."""

import asyncio
import math
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import Any, TypeVar

import attrs

from modelyard.backends.upstream.address import Address, httpx
from modelyard.backends.upstream.concurrency import ConcurrencyLimiter
from modelyard.backends.upstream.connections import BlockingConnections, ConnectionTrace, ReadLimit
from modelyard.backends.upstream.errors import Head, RetryableError
from modelyard.backends.upstream.exchange import Adapters, Upstream
from modelyard.errors import BackendError, Overloaded
from modelyard.protocols import ServedModel

T = TypeVar("T")

KEPT = 3.0
"""Seconds that an idle connection is kept: fewer than servers keep it (uvicorn: 5), so that they rarely close it just
when a request is sent."""


class Clients:
    """The connections of this process to one server: a pool for threads, and one for each event loop.

    An event loop's pool is closed with it: `asyncio.run` closes the asynchronous generators that are left, and one of
    them holds the pool.
    """

    def __init__(self, address: Address, kept: int) -> None:
        self._limits = httpx.Limits(max_connections=None, max_keepalive_connections=kept, keepalive_expiry=KEPT)
        self._options: Mapping[str, Any] = {**address.options, "limits": self._limits}
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._on_loops: dict[asyncio.AbstractEventLoop, tuple[httpx.AsyncClient, AsyncGenerator[None, None]]] = {}
        self.closed: threading.Event = threading.Event()

    def blocking(self) -> httpx.Client:
        """Return the pool for threads. Raises `BackendError` once closed."""
        with self._lock:
            self._check()
            if self._client is None:
                connections = BlockingConnections(self._options["verify"], self._limits)
                self._client = httpx.Client(**self._options, transport=connections)
            return self._client

    async def on_loop(self) -> httpx.AsyncClient:
        """Return the pool of the running event loop. Raises `BackendError` once closed."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._check()
            if loop in self._on_loops:
                return self._on_loops[loop][0]
            client = httpx.AsyncClient(**self._options)
            keeper = self._kept_open(client, loop)
            self._on_loops[loop] = client, keeper
        await anext(keeper)
        return client

    def _check(self) -> None:
        if self.closed.is_set():
            raise BackendError("this upstream backend is closed")

    def close(self) -> None:
        """Close the pool for threads, and refuse further requests. Idempotent."""
        self.closed.set()
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the pool for threads and that of the running event loop, and refuse further requests."""
        self.close()
        with self._lock:
            kept = self._on_loops.get(asyncio.get_running_loop())
        if kept is not None:
            await kept[1].aclose()

    async def _kept_open(
        self, client: httpx.AsyncClient, loop: asyncio.AbstractEventLoop
    ) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            with self._lock:
                del self._on_loops[loop]
            await client.aclose()


@attrs.frozen
class ProcessState:
    """What belongs to this process, and not to one that is forked from it."""

    clients: Clients
    limiter: ConcurrencyLimiter
    pid: int = attrs.field(factory=os.getpid)


class BlockingTransport:
    """Carries one request by blocking calls: an `exchange.Transport`."""

    def __init__(self, state: ProcessState, upstream: Upstream) -> None:
        self._state, self._upstream = state, upstream
        self._stack = ExitStack()
        self._response: httpx.Response | None = None
        self._pieces: Iterator[bytes] = iter(())
        self._limit = ReadLimit(0.0)

    def enter(self, seconds: float) -> None:
        """Wait for a place among the concurrent requests."""
        woken = threading.Event()
        place = self._state.limiter.acquire(woken.set)
        self._stack.callback(self._state.limiter.release, place)
        if not place.inside and not self._upstream.clock.wait(woken, seconds):
            raise _no_turn(seconds)

    def borrow(self, adapters: Adapters, model: ServedModel) -> str:
        """Have an adapter loaded until the transport is closed."""
        return self._stack.enter_context(adapters.serving(model))

    def send(self, method: str, path: str, body: bytes, seconds: float) -> Head:
        """Send the request and return the head of the answer; the connection keeps the time."""
        self._hang_up()
        self._limit = ReadLimit(seconds)
        response: httpx.Response | None = None
        while response is None:
            response = self._send(method, path, body)
        self._response, self._pieces = response, response.iter_raw()
        return _head(response)

    def _send(self, method: str, path: str, body: bytes) -> httpx.Response | None:
        """Send the request once. Return None where the server had closed a kept connection: it is not counted."""
        client, trace = self._state.clients.blocking(), ConnectionTrace()
        seconds = self._limit.seconds
        timeout = {"connect": self._upstream.timeouts.connect, "read": self._limit, "write": seconds, "pool": None}
        request = client.build_request(method, path, content=body, extensions={"timeout": timeout, "trace": trace.note})
        try:
            return client.send(request, stream=True)
        except httpx.HTTPError as error:
            if _was_stale(error, trace):
                return None
            raise _meaning(error) from error

    def read(self, seconds: float) -> bytes:
        """Return the next bytes of the answer."""
        self._limit.seconds = seconds
        try:
            return next(self._pieces, b"")
        except httpx.HTTPError as error:
            raise _meaning(error) from error

    def pause(self, seconds: float) -> None:
        """Wait before the next attempt, or until the backend is closed."""
        self._upstream.clock.wait(self._state.clients.closed, seconds)

    def close(self) -> None:
        """Break off, and give everything back. Idempotent."""
        with self._stack:
            self._hang_up()

    def _hang_up(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.close()


class AsyncTransport:
    """Carries one request on an event loop: an `exchange.Transport`.

    The time is kept by the clock: a task ends a wait that takes too long.
    """

    def __init__(self, state: ProcessState, upstream: Upstream) -> None:
        self._state, self._upstream = state, upstream
        self._stack = AsyncExitStack()
        self._response: httpx.Response | None = None
        self._pieces: AsyncIterator[bytes] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._wait: asyncio.Timeout | None = None
        self._due, self._looks = 0.0, math.inf

    async def enter(self, seconds: float) -> None:
        """Wait for a place among the concurrent requests."""
        woken, loop = asyncio.Event(), asyncio.get_running_loop()
        place = self._state.limiter.acquire(lambda: loop.call_soon_threadsafe(woken.set))
        self._stack.callback(self._state.limiter.release, place)
        if not place.inside:
            try:
                await self._within(seconds, woken.wait())
            except TimeoutError:
                raise _no_turn(seconds) from None

    async def borrow(self, adapters: Adapters, model: ServedModel) -> str:
        """Have an adapter loaded until the transport is closed."""
        return await self._stack.enter_async_context(adapters.aserving(model))

    async def send(self, method: str, path: str, body: bytes, seconds: float) -> Head:
        """Send the request and return the head of the answer."""
        await self._hang_up()
        response: httpx.Response | None = None
        while response is None:
            response = await self._send(method, path, body, seconds)
        self._response, self._pieces = response, response.aiter_raw()
        return _head(response)

    async def _send(self, method: str, path: str, body: bytes, seconds: float) -> httpx.Response | None:
        """Send the request once. Return None where the server had closed a kept connection: it is not counted."""
        client, trace = await self._state.clients.on_loop(), ConnectionTrace()
        timeout = httpx.Timeout(None, connect=self._upstream.timeouts.connect)
        request = client.build_request(method, path, content=body, timeout=timeout, extensions={"trace": trace.anote})
        try:
            return await self._within(seconds, client.send(request, stream=True))
        except httpx.HTTPError as error:
            if _was_stale(error, trace):
                return None
            raise _meaning(error) from error

    async def read(self, seconds: float) -> bytes:
        """Return the next bytes of the answer."""
        assert self._pieces is not None
        try:
            return await self._within(seconds, anext(self._pieces, b""))
        except httpx.HTTPError as error:
            raise _meaning(error) from error

    async def pause(self, seconds: float) -> None:
        """Wait before the next attempt."""
        await self._upstream.clock.asleep(seconds)

    async def aclose(self) -> None:
        """Break off, and give everything back. Idempotent."""
        self._stop_watching()
        async with self._stack:
            await self._hang_up()

    async def _hang_up(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            await response.aclose()

    # ---- time

    async def _within(self, seconds: float, work: Awaitable[T]) -> T:
        """Return the result of the work. Raises `TimeoutError` when the clock has moved on so far before."""
        self._due = self._upstream.clock.monotonic() + seconds
        if self._due < self._looks:
            self._looks = self._due
            self._stop_watching()
            self._watching = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(None) as self._wait:
                return await work
        finally:
            self._wait = None

    async def _watch(self) -> None:
        """End the wait that is overdue. Sleeps through those that are not, so that a token costs nothing here."""
        clock = self._upstream.clock
        while (left := self._due - clock.monotonic()) > 0:
            self._looks = self._due
            await clock.asleep(left)
        self._looks = math.inf
        if self._wait is not None:
            self._wait.reschedule(asyncio.get_running_loop().time())

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()


# ---- requests and answers of httpx -------------------------------------------------------------------------------


def _was_stale(error: httpx.HTTPError, trace: ConnectionTrace) -> bool:
    """Return whether a kept connection broke before the head of an answer: the server had closed it, or is gone."""
    return not trace.opened and isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError)


def _head(response: httpx.Response) -> Head:
    headers = response.headers
    return Head(
        response.status_code,
        headers.get("content-type", ""),
        headers.get("content-encoding", ""),
        headers.get("retry-after", ""),
    )


def _meaning(error: httpx.HTTPError) -> Exception:
    """Return the error that a fault of the connection means. httpx's message may name hosts: it stays in the log."""
    if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
        return TimeoutError()
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return RetryableError(BackendError("the upstream server cannot be reached"), again=True)
    if isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
        return RetryableError(BackendError("the upstream server broke the connection off"), again=True)
    return RetryableError(BackendError(f"the upstream server cannot be reached ({type(error).__name__})"))


def _no_turn(seconds: float) -> Overloaded:
    return Overloaded(f"the upstream server had no room within {seconds:g} s; try again")
