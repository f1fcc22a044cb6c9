"""What a client sends under ASGI: its body, in bounded time, and its disconnect."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Self

from modelyard.http.message import seconds_for, too_slow

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class ClientGone(Exception):
    """The connection closed before the request had come in."""


class RequestReceiver:
    """The only reader of a request's `receive`: of its body, and then of the client's disconnect.

    At that, the request's own task is cancelled and `gone` is True. All this is set up when the request first
    waits for anything, so one that never waits pays for none of it.
    """

    def __init__(self, receive: Receive) -> None:
        self.gone = False
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._began: float | None = None
        self._size, self._complete = 0, False
        self._reader: asyncio.Task[Any] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._timer: asyncio.Handle = self._loop.call_soon(self._look)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the next chunk. Raises `BodyTimeout`, `ClientGone`."""
        if self._complete:
            raise StopAsyncIteration
        self._reader = asyncio.current_task()
        try:
            message = await self._receive()
        except asyncio.CancelledError:
            if self._late and self._reader is not None and not self._reader.uncancel():
                raise too_slow() from None
            raise
        finally:
            self._reader = None
        return self._taken(message)

    def _taken(self, message: Message) -> bytes:
        if message["type"] != "http.request":
            self.gone = True
            raise ClientGone("the client disconnected while it was sending")
        chunk: bytes = message.get("body", b"")
        self._size += len(chunk)
        if not message.get("more_body", False):
            self.watch()
        return chunk

    def watch(self) -> None:
        """Read no more of the body, and watch for the disconnect: now, or at the first look if that is yet to come."""
        if not self._complete and self._began is not None:
            self._timer.cancel()
            self._timer = self._loop.call_soon(self._look)
        self._complete = True

    def stop(self) -> None:
        """Watch no longer."""
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    def _look(self) -> None:
        """Start the timer of the body, or watch for the disconnect: the request waits for one or the other."""
        if self._complete:
            self._watcher = self._loop.create_task(self._until_gone())
            return
        if self._began is None:
            self._began = self._loop.time()
        self._timer = self._loop.call_at(self._began + seconds_for(self._size), self._check_pace)

    @property
    def _late(self) -> bool:
        return self._began is not None and self._loop.time() >= self._began + seconds_for(self._size)

    def _check_pace(self) -> None:
        if not self._late:
            self._look()
        elif self._reader is not None:
            self._reader.cancel()

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        if self._task is not None:
            self._task.cancel()
