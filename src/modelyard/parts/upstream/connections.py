"""Connections to one server: of threads, which block, and of an event loop. Idle ones are kept for a while."""

import asyncio
import math
import select
import socket
import threading
import time
from collections import deque
from typing import Generic, Protocol, TypeVar, cast

from modelyard.parts.upstream.address import Address
from modelyard.parts.upstream.deadlines import Deadlines
from modelyard.parts.upstream.response import ConnectionBroken, UpstreamResponse
from modelyard.protocols import Clock
from modelyard.threads import FairPool, PooledCall

KEPT = 3.0
"""Seconds that an idle connection is kept: fewer than servers keep it (uvicorn: 5), so that they rarely close it just
when a request is sent."""
MOST_BUFFERED = 2**18
"""Bytes of a body that may wait for their reader; then the server has to wait."""
MOST_WHOLE = 2**24
"""Bytes that a body may have that is not read in pieces."""
_HEAD_START = 0.25
"""Seconds that the connection to an address gets before the next address of the host is tried as well (RFC 8305)."""


def check_size(answer: UpstreamResponse) -> None:
    if answer.buffered > MOST_WHOLE:
        raise ConnectionBroken(f"the answer is longer than {MOST_WHOLE:,} bytes")


class Connection(Protocol):
    """The methods that both kinds of connections have."""

    response: UpstreamResponse

    def is_stale(self) -> bool:
        """Return whether the server has closed it, or sent something that was not requested."""

    def close(self) -> None:
        """Close the connection. Closing again does nothing."""


C = TypeVar("C", bound=Connection)


class IdleConnections(Generic[C]):
    """Connections that carry no request now: at most `most`, each for `KEPT` seconds. Thread-safe."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: deque[tuple[C, float]] = deque()
        self._closed = False

    def take(self) -> C | None:
        """Return the connection that was used last, if it is still good."""
        oldest = time.monotonic() - KEPT
        while True:
            with self._lock:
                connection, since = self._kept.pop() if self._kept else (None, 0.0)
            if connection is None or (since > oldest and not connection.is_stale()):
                return connection
            connection.close()

    def give_back(self, connection: C) -> None:
        """Keep it, if its answer allows that, and close it otherwise; close connections that were idle for too long."""
        now, old = time.monotonic(), []
        with self._lock:
            if connection.response.reusable and not self._closed:
                self._kept.append((connection, now))
            else:
                old.append(connection)
            while self._kept and (len(self._kept) > self._most or self._kept[0][1] <= now - KEPT):
                old.append(self._kept.popleft()[0])
        for one in old:
            one.close()

    def close(self) -> None:
        """Close all, and each that is given back from now on."""
        with self._lock:
            self._closed, kept = True, list(self._kept)
            self._kept.clear()
        for connection, _ in kept:
            connection.close()


# ---- of threads --------------------------------------------------------------------------------------------------


class BlockingConnection:
    """A connection with calls that block for so many seconds at most. They raise `OSError` and `ConnectionBroken`."""

    def __init__(self, address: Address, seconds: float) -> None:
        self.response: UpstreamResponse = UpstreamResponse()
        self._socket = socket.create_connection((address.host, address.port), seconds)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.tls is not None:
                self._socket = address.tls.wrap_socket(self._socket, server_hostname=address.host)
        except BaseException:
            self._socket.close()
            raise

    def send(self, request: bytes, seconds: float) -> None:
        self.response = UpstreamResponse()
        self._socket.settimeout(seconds)
        self._socket.sendall(request)

    def receive(self, seconds: float) -> None:
        self._socket.settimeout(seconds)
        self.response.feed(self._socket.recv(2**16))

    def is_stale(self) -> bool:
        """Return whether there is anything to read, though nothing was requested."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self._socket.close()


# ---- of an event loop --------------------------------------------------------------------------------------------


class AsyncConnection(asyncio.Protocol):
    """A connection of an event loop. Waiting calls raise `ConnectionBroken`, and `TimeoutError` once it is `due`."""

    def __init__(self) -> None:
        self.response: UpstreamResponse = UpstreamResponse()
        self._transport: asyncio.Transport | None = None
        self._broken: Exception | None = None
        self._ended = self._paused = False
        self.due: float = math.inf
        self._waiter: asyncio.Future[None] | None = None

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self.response = UpstreamResponse()
        self._transport.write(request)

    @property
    def has_news(self) -> bool:
        """Whether the answer has a head, and a piece of its body or its end, so that nothing has to be waited for."""
        return self._broken is not None or bool(self.response.buffered) or self.response.complete

    async def head(self) -> None:
        while self.response.head is None:
            await self._more()

    async def news(self) -> None:
        while not self.has_news:
            await self._more()

    async def end(self) -> None:
        while not self.response.complete:
            check_size(self.response)
            self._resume()
            await self._more()

    def take(self) -> bytes:
        """Return what has come of the body; none at its end. Raises `ConnectionBroken` once that is read."""
        found = self.response.take()
        if not found and not self.response.complete and self._broken is not None:
            raise self._broken
        self._resume()
        return found

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    async def _more(self) -> None:
        if self._broken is not None:
            raise self._broken
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def expire(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(TimeoutError())

    def is_stale(self) -> bool:
        """Return whether the connection has ended, or something came that was not requested."""
        return self._ended or not self.response.reusable

    def close(self) -> None:
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    # ---- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop has the methods, not the class

    def data_received(self, data: bytes) -> None:
        self._feed(data)
        if self.response.buffered > MOST_BUFFERED and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> None:
        self.connection_lost(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._ended:
            self._ended = True
            if error is not None:
                self._break(error)
            elif not self.response.complete:
                self._feed(b"")

    def _feed(self, data: bytes) -> None:
        try:
            self.response.feed(data)
        except ConnectionBroken as broken:
            self._break(broken)
        self._wake()

    def _break(self, error: Exception) -> None:
        if self._broken is None:
            kind = type(error) if isinstance(error, ConnectionBroken) else ConnectionBroken
            self._broken = kind(str(error))
            self._broken.__cause__ = error
        self.response.reusable = False
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class LoopConnections:
    """Opens the connections of an event loop.

    The host's name is looked up in a separate thread, one look-up at a time: a resolver that hangs blocks neither the
    event loop's threads nor the look-ups of other servers.
    """

    def __init__(self, address: Address, kept: int, clock: Clock) -> None:
        self.idle: IdleConnections[AsyncConnection] = IdleConnections(kept)
        self.deadlines: Deadlines = Deadlines(clock)
        self._address = address
        self._threads = FairPool("modelyard-resolver", 1)
        self._look_up: PooledCall[list[str]] | None = None

    async def open(self, seconds: float) -> AsyncConnection:
        """Return a new connection. Raises `OSError`, also when it takes more than `seconds`."""
        async with asyncio.timeout(seconds):
            if self._address.is_ip:
                return await self._connect(self._address.host)
            return await self._connect_to_any(await self._found())

    def close(self) -> None:
        """Close what is idle, and end the thread."""
        self.idle.close()
        self.deadlines.close()
        self._threads.close()

    async def _found(self) -> list[str]:
        """Return the IP addresses of the host, by the look-up that is under way or a new one."""
        if self._look_up is None or self._look_up.future.done():
            self._look_up = self._threads.of("").begin(self._address.look_up)
        return await asyncio.shield(self._look_up.future)

    async def _connect_to_any(self, places: list[str]) -> AsyncConnection:
        """Return the first connection that is made; each address is tried when the one before it fails or is slow."""
        trying: set[asyncio.Task[AsyncConnection]] = set()
        made: list[AsyncConnection] = []
        failed: OSError | None = None
        left = deque(places)
        try:
            while (left or trying) and not made:
                if left:
                    trying.add(asyncio.create_task(self._connect(left.popleft())))
                done, trying = await asyncio.wait(
                    trying, timeout=_HEAD_START if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    if isinstance(error := task.exception(), OSError):
                        failed = error
                    else:
                        made.append(task.result())
        finally:
            for task in trying:
                task.cancel()
        for further in made[1:]:
            further.close()
        if not made:
            raise failed or OSError(f"{self._address.host} has no address")
        return made[0]

    async def _connect(self, place: str) -> AsyncConnection:
        tls = self._address.tls
        named = None if tls is None else self._address.host
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            AsyncConnection, place, self._address.port, ssl=tls, server_hostname=named
        )
        return connection
