"""The platform as an ASGI application: it carries bytes between a server and `modelyard.http`, and nothing more."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import cast

from modelyard.http.asgi_receive import Receive, RequestReceiver, Scope, Send
from modelyard.http.endpoint import Endpoint
from modelyard.http.lifespan import lifespan
from modelyard.http.message import EVENT_STREAM, Request, Response
from modelyard.http.route import STANDARD, Interface
from modelyard.http.router import mounted_path
from modelyard.http.sse_keep_alive import KeepAlive
from modelyard.platform.platform import Platform
from modelyard.protocols import Authenticator, Executor

__all__ = [
    "STANDARD",
    "Endpoint",
    "Interface",
    "Request",
    "Response",
    "asgi_app",
]

STALLED = 60.0
"""Seconds after which a client that does not read its stream is given up."""


def asgi_app(
    platform: Platform,
    interfaces: Iterable[Interface] = STANDARD,
    worker: bool = False,
    authenticator: Authenticator | None = None,
    executor: Executor | None = None,
) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Make an ASGI application of the host's platform; `worker` also runs training jobs while it is served, in
    `executor` or else in a thread.

    `authenticator` identifies callers; without one, the platform's API keys do.

    Its lifespan syncs the store each second; mounted below another application it gets no lifespan. The platform stays
    the host's to close.
    """
    endpoint = Endpoint(platform, interfaces, authenticator)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _exchange(endpoint, scope, receive, send)
        elif scope["type"] == "lifespan":
            await lifespan(platform, worker, executor, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    return application


async def _exchange(endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
    incoming = RequestReceiver(receive)
    try:
        response = await endpoint.ahandle(_request(scope, incoming))
        await _answer(response, incoming, send)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not incoming.gone or (task is not None and task.uncancel()):
            raise
    finally:
        incoming.stop()


def _request(scope: Scope, incoming: RequestReceiver) -> Request:
    raw = scope.get("raw_path")
    root = scope.get("root_path", "")
    path = mounted_path(raw and raw.decode("latin-1"), scope["path"], root)
    headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
    query = scope["query_string"].decode("latin-1")
    return Request(scope["method"], path, query, headers, incoming, scope.get("scheme", "http"), root)


async def _answer(response: Response, incoming: RequestReceiver, send: Send) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    start = {"type": "http.response.start", "status": response.status, "headers": headers}
    if isinstance(response.body, bytes):
        await send(start)
        await send({"type": "http.response.body", "body": response.body})
        return
    incoming.watch()
    pieces = cast(AsyncGenerator[bytes, None], response.body)

    async def send_piece(piece: bytes) -> None:
        await send({"type": "http.response.body", "body": piece, "more_body": True})

    keep_alive = KeepAlive(send_piece)
    if EVENT_STREAM not in response.headers:
        keep_alive.stop()  # a comment would be data there
    try:
        await send(start)
        async for piece in pieces:
            async with asyncio.timeout(STALLED), keep_alive:
                await send_piece(piece)
            await asyncio.sleep(0)  # pieces that are ready all at once must not keep others waiting
    finally:
        keep_alive.stop()
        await pieces.aclose()
    await send({"type": "http.response.body", "body": b""})
