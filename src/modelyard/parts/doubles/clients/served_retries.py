"""The pauses of clients in other processes, on the clock of a test: a client that is told to come again later comes at
once, and the platform's `ManualClock` moves on by the pause when it does."""

import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from modelyard.flow import give_way
from modelyard.lazy import hashlib
from modelyard.protocols import Clock
from modelyard.testing.clock import ManualClock

AT_ONCE = (b"retry-after-ms", b"1")
"""What clients of vendors read before `Retry-After`, in milliseconds. One is the least that all of them take."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]


def retried_on_clock(app: App, clock: Clock) -> App:
    """Return an ASGI application whose clients do not wait before they repeat a request, but let `clock` pass.

    A repetition is the same request with the same body. On a real clock nothing is changed.
    """
    if not isinstance(clock, ManualClock):
        return app
    owed, lock = dict[bytes, float](), threading.Lock()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        first = await _whole_body(receive)
        key = _key(scope, first)
        with lock:
            seconds = owed.pop(key, 0.0)
        if seconds:
            await clock.askip(seconds)

        def put_off(pause: float) -> None:
            with lock:
                owed[key] = pause

        await app(scope, _replayed(first, receive), _sending(send, put_off))

    return application


async def _whole_body(receive: Receive) -> Message:
    """Return a message with the whole body, or that the client has left."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return message
        body += message.get("body", b"")
        if not message.get("more_body"):
            return {"type": "http.request", "body": body, "more_body": False}


def _replayed(first: Message, receive: Receive) -> Receive:
    came = [first]

    async def again() -> Message:
        await give_way()
        return came.pop(0) if came else await receive()

    return again


def _key(scope: Any, message: Message) -> bytes:
    head = f"{scope['path']}?{scope['query_string'].decode('latin-1')}\n".encode()
    return bytes(hashlib.sha256(head + message.get("body", b"")).digest())


def _sending(send: Send, put_off: Callable[[float], None]) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400:
            pauses = [value for name, value in message["headers"] if name == b"retry-after"]
            if pauses:
                put_off(float(pauses[0]))
                message = {**message, "headers": [*message["headers"], AT_ONCE]}
        await send(message)

    return sending
