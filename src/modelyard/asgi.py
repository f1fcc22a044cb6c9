"""The platform as an ASGI application: it carries bytes between a server and `modelyard.http`, and nothing more."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Self, cast

from modelyard.domain.identity import Principal
from modelyard.errors import BodyTooLarge
from modelyard.flow import give_way
from modelyard.http.endpoint import Endpoint
from modelyard.http.error_responses import log
from modelyard.http.errors import ClientDisconnected
from modelyard.http.interface import Interface
from modelyard.http.interfaces import STANDARD
from modelyard.http.late_look_fast import BegunRequests
from modelyard.http.lifespan import served
from modelyard.http.message import EVENT_STREAM, Request, Response, seconds_for, too_slow
from modelyard.http.router import mounted_path
from modelyard.http.sse_keep_alive import KeepAlive
from modelyard.platform.platform import Platform
from modelyard.protocols import Authenticator, Executor

__all__ = ["STANDARD", "Endpoint", "Interface", "Request", "Response", "asgi_app", "dashboard_app"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Answering = Callable[[Request], Awaitable[Response]]

STALLED = 60.0
"""Seconds after which a client that does not read its stream is given up."""

_LEFT = "the client disconnected while it was reading"


def asgi_app(
    platform: Platform,
    interfaces: Iterable[Interface] = STANDARD,
    worker: bool = False,
    authenticator: Authenticator | None = None,
    executor: Executor | None = None,
    cors_origins: Iterable[str] = (),
    dashboard: bool = False,
    anonymous: Principal | None = None,
) -> Application:
    """Make an ASGI application of the host's platform; `worker` also runs training jobs while it is served, in
    `executor` or else in a thread.

    `authenticator` identifies callers; without one, the platform's API keys do. `cors_origins` are those whose pages
    browsers let use it, such as `https://app.example.com`; `*` allows all. `dashboard` adds its pages, below
    `/dashboard`. `anonymous` is who calls without a key, for a server that listens on a loopback address only.

    Its lifespan syncs the store each second; mounted below another application it gets no lifespan. The platform stays
    the host's to close.
    """
    endpoint = Endpoint(platform, interfaces, authenticator, cors_origins, anonymous)
    answering = platform.site(authenticator, api=endpoint) if dashboard else endpoint
    return _application(answering.ahandle, lambda: served(platform, worker, executor, endpoint.table.load))


def dashboard_app(
    platform: Platform, authenticator: Authenticator | None = None, reader: Principal | None = None
) -> Application:
    """Make an ASGI application of the dashboard alone. The options are those of `Dashboard`."""
    return _application(platform.site(authenticator, reader).ahandle, lambda: served(platform, False, None))


def _application(answer: Answering, living: Callable[[], AbstractAsyncContextManager[None]]) -> Application:
    latest: BegunRequests | None = None

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal latest
        if scope["type"] != "http":
            await _without_request(living, scope, receive, send)
            return
        loop, begun = asyncio.get_running_loop(), latest  # asking for the loop is a system call
        if begun is None or begun.loop() is not loop:
            begun = latest = BegunRequests(loop)
        incoming = RequestReceiver(receive, begun, asyncio.current_task(loop))
        try:
            response = await answer(_request(scope, incoming))
            headers = [(name.encode(), value.encode("latin-1")) for name, value in response.headers]
            start = {"type": "http.response.start", "status": response.status, "headers": headers}
            if type(response.body) is bytes:
                try:
                    await send(start)
                    await send({"type": "http.response.body", "body": response.body})
                except OSError:
                    log.debug(_LEFT)
            else:
                await _stream(response, start, incoming, send)
        except ClientDisconnected as gone:
            log.debug("%s", gone)
        except ClientStalled:
            log.info("a client has read nothing for %.0f seconds; its connection is closed", STALLED)
            incoming.stop()
            await _close_connection(receive, send)
        except asyncio.CancelledError:
            if not incoming.gone or (incoming.task is not None and incoming.task.uncancel()):
                raise
        finally:
            incoming.stop()

    return application


async def _without_request(
    living: Callable[[], AbstractAsyncContextManager[None]], scope: Scope, receive: Receive, send: Send
) -> None:
    if scope["type"] == "lifespan":
        await _lifespan(living, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1000})


def _request(scope: Scope, incoming: "RequestReceiver") -> Request:
    raw, path, root = scope.get("raw_path"), scope["path"], scope.get("root_path", "").rstrip("/")
    sent = raw and raw.decode("latin-1")
    if root or sent != path:
        path = mounted_path(sent, path, root)
    query = scope["query_string"].decode("latin-1")
    return Request(scope["method"], path, query, [*scope["headers"]], incoming, scope.get("scheme", "http"), root)


async def _stream(response: Response, start: Message, incoming: "RequestReceiver", send: Send) -> None:
    incoming.watch()
    pieces = cast(AsyncGenerator[bytes, None], response.body)

    async def send_piece(piece: bytes) -> None:
        await _send(send, {"type": "http.response.body", "body": piece, "more_body": True})

    keep_alive = KeepAlive(send_piece)
    if EVENT_STREAM not in response.headers:
        keep_alive.stop()  # a comment would be data there
    try:
        await _send(send, start)
        async for piece in pieces:
            try:
                async with asyncio.timeout(STALLED), keep_alive:
                    await send_piece(piece)
            except TimeoutError:
                raise ClientStalled from None
            await give_way()  # pieces that are ready all at once must not keep others waiting
    finally:
        keep_alive.stop()
        await pieces.aclose()
    await _send(send, {"type": "http.response.body", "body": b""})


async def _send(send: Send, message: Message) -> None:
    """Send a message. Raises `ClientDisconnected`."""
    try:
        await send(message)
    except OSError as error:
        raise ClientDisconnected(_LEFT) from error


class ClientStalled(Exception):
    """The client does not read its response."""


async def _close_connection(receive: Receive, send: Send) -> None:
    """Close the connection in the middle of a response.

    ASGI has no message for it. Uvicorn's `send` belongs to an object that has the connection; where there is none, the
    server closes the connection of a response that was not completed.
    """
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
        while (await receive())["type"] != "http.disconnect":
            pass


class RequestReceiver:
    """The only reader of a request's `receive`: of its body, and then of the client's disconnect.

    At that, the request's own task is cancelled and `gone` is True. All this is set up when the request first
    waits for anything, so one that never waits pays for none of it.
    """

    __slots__ = ("_began", "_begun", "_reading", "_receive", "_size", "_timer", "_watcher", "complete", "gone", "task")

    def __init__(self, receive: Receive, begun: BegunRequests, task: asyncio.Task[Any] | None) -> None:
        self._receive = receive
        self._begun = begun
        self.task: asyncio.Task[Any] | None = task
        self.gone: bool = False
        self.complete: bool = False
        self._reading = False
        self._size = 0
        self._began: float | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._timer: asyncio.Handle | None = None
        begun.add(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the next chunk. Raises `BodyTimeout`, `ClientDisconnected`."""
        if self.complete:
            raise StopAsyncIteration
        return await self.read_whole(sys.maxsize, chunks=1)

    async def read_whole(self, limit: int, chunks: int = sys.maxsize) -> bytes:
        """Return what has not been read, or so many chunks.

        Raises `BodyTooLarge`, `BodyTimeout`, `ClientDisconnected`.
        """
        read: list[bytes] = []
        while not self.complete and len(read) < chunks:
            self._reading = True
            try:
                message = await self._receive()
            except asyncio.CancelledError:
                if self._late and self.task is not None and not self.task.uncancel():
                    raise too_slow() from None
                raise
            finally:
                self._reading = False
            if message["type"] != "http.request":
                self.gone = True
                raise ClientDisconnected("the client disconnected while it was sending")
            read.append(message.get("body", b""))
            self._size += len(read[-1])
            if not message.get("more_body", False):
                self.watch()
            if self._size > limit:
                raise BodyTooLarge(limit)
        return b"".join(read)

    def watch(self) -> None:
        """Read no more of the body, and watch for the disconnect: some turns of the event loop later."""
        read_before, self.complete = self.complete, True
        if not read_before and self._timer is not None:
            self._timer.cancel()
            self._begun.add(self)

    def stop(self) -> None:
        """Watch the client no longer; idempotent."""
        self._begun.receivers.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    def look(self) -> None:
        """Start the timer of the body, or watch for the disconnect: the request waits for one or the other."""
        loop = asyncio.get_running_loop()
        if self.complete:
            self._watcher = loop.create_task(self._until_gone())
            return
        if self._began is None:
            self._began = loop.time()
        self._timer = loop.call_at(self._began + seconds_for(self._size), self._check_pace)

    @property
    def _late(self) -> bool:
        now = asyncio.get_running_loop().time()
        return self._began is not None and now >= self._began + seconds_for(self._size)

    def _check_pace(self) -> None:
        if not self._late:
            self.look()
        elif self._reading and self.task is not None:
            self.task.cancel()

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if self.task is not None:
            self.task.cancel()


async def _lifespan(living: Callable[[], AbstractAsyncContextManager[None]], receive: Receive, send: Send) -> None:
    """Speak the lifespan protocol until the server shuts down."""
    async with AsyncExitStack() as stack:
        await receive()
        try:
            await stack.enter_async_context(living())
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})
