"""Comments that keep an event stream open while it is silent, so that no proxy closes it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

QUIET = 15.0
"""Seconds without a piece after which a comment is sent: proxies commonly give up after 30 to 60."""

COMMENT = b": keep-alive\n\n"
"""Every reader of server-sent events ignores it (WHATWG HTML, 9.2.6)."""


class KeepAlive:
    """Sends a comment whenever nothing was sent for `QUIET` seconds. Enter it around each piece that is sent, so that
    never two are sent at once."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._comment: asyncio.Task[None] | None = None
        self._sending, self._last = False, self._loop.time()
        self._timer = self._loop.call_later(QUIET, self._due)

    async def __aenter__(self) -> None:
        self._sending = True
        if self._comment is not None:
            await self._comment

    async def __aexit__(self, *_: object) -> None:
        self._sending, self._last = False, self._loop.time()

    def stop(self) -> None:
        self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()

    def _due(self) -> None:
        left = self._last + QUIET - self._loop.time()
        if left <= 0:
            left = QUIET
            if not self._sending and self._comment is None:
                self._comment = self._loop.create_task(self._send_comment())
        self._timer = self._loop.call_later(left, self._due)

    async def _send_comment(self) -> None:
        with suppress(Exception):  # the next piece fails too, and raises it
            await self._send(COMMENT)
        self._comment = None
