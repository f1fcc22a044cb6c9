"""An ASGI application on a free loopback port, in a thread of its own, for clients that need a socket."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from modelyard.asgi import asgi_app
from modelyard.errors import MissingExtra
from modelyard.platform.platform import Platform

Application = Callable[[Any, Any, Any], Awaitable[None]]

PATIENCE = 1
"""Seconds that a response may still be streamed after the server is told to stop."""
LONGEST_END = 30
"""Seconds within which a server must have stopped."""


class AsgiServer:
    """The `url` of a served application, and its connections, which can be cut as by a server that crashes."""

    def __init__(self, url: str, server: Any) -> None:
        self.url, self._server = url, server

    def cut(self, client: tuple[str, int] | None = None) -> None:
        """Drop all connections, idle ones too, or only that of one client (an ASGI scope's `client`).

        That one still receives what was sent. May be called from any thread.
        """
        for connection in list(self._server.server_state.connections):
            if client is None:
                connection.loop.call_soon_threadsafe(connection.transport.abort)
            elif connection.client == client:
                connection.loop.call_soon_threadsafe(connection.transport.close)


@contextmanager
def asgi_server(application: Application, **options: Any) -> Iterator[AsgiServer]:
    """Serve the application while the block runs; `options` are those of a `uvicorn.Config`.

    Logs go to the loggers of `uvicorn`, which are not configured unless the options name a level. Raises `MissingExtra`
    without uvicorn, and RuntimeError for a server that does not stop.
    """
    try:
        import uvicorn  # noqa: PLC0415 - an extra that is needed for sockets only
    except ImportError as error:
        raise MissingExtra("uvicorn", "serve") from error
    config = uvicorn.Config(application, log_config=None, timeout_graceful_shutdown=PATIENCE, **options)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(_serve(server, listener)), name="modelyard served")
        thread.start()
        try:
            yield AsgiServer(f"http://127.0.0.1:{listener.getsockname()[1]}", server)
        finally:
            server.should_exit = True
            thread.join(LONGEST_END)
            if thread.is_alive():
                raise RuntimeError(f"the server did not end within {LONGEST_END} seconds")


async def _serve(server: Any, listener: socket.socket) -> None:
    await server.serve(sockets=[listener])
    for connection in list(server.server_state.connections):
        connection.transport.abort()  # it would wait for a client that has stopped reading


@contextmanager
def served(platform: Platform) -> Iterator[str]:
    """Serve `platform` from a thread until the block ends. Yields its root URL, such as "http://127.0.0.1:43210".

    The port is a free one. Logs go to the loggers of `uvicorn`, which are not configured. Raises `MissingExtra`.

        with served(platform) as url:
            OpenAI(base_url=f"{url}/inference/v1", api_key=platform.keys.create().secret)
    """
    with asgi_server(asgi_app(platform), ws="none") as server:
        yield server.url
