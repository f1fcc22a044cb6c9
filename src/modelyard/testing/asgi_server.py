"""An ASGI application on a free port of this machine, in a thread of its own, for clients that need a socket."""

import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from modelyard.errors import MissingExtra

Application = Callable[[Any, Any, Any], Awaitable[None]]

BACKLOG = 2048
LONGEST_END = 10
"""Seconds within which a server must have ended."""


class AsgiServer:
    """Where an application answers (`url`), and its connections, to be cut as by a server that dies."""

    def __init__(self, url: str, server: Any) -> None:
        self.url, self._server = url, server

    def cut(self, client: tuple[str, int] | None = None) -> None:
        """Drop all connections, idle ones too; or end that of one client (an ASGI scope's `client`), who gets what was
        sent. From any thread.
        """
        for connection in list(self._server.server_state.connections):
            if client is None:
                connection.loop.call_soon_threadsafe(connection.transport.abort)
            elif connection.client == client:
                connection.loop.call_soon_threadsafe(connection.transport.close)


@contextmanager
def asgi_server(application: Application) -> Iterator[AsgiServer]:
    """Serve the application while the block runs. Raises `MissingExtra` without uvicorn."""
    try:
        import uvicorn  # noqa: PLC0415 - an extra that only those who need a socket have
    except ImportError as error:
        raise MissingExtra("uvicorn", "serve") from error
    config = uvicorn.Config(
        application,
        lifespan="off",
        log_config=None,
        log_level="critical",
        backlog=BACKLOG,
        timeout_graceful_shutdown=LONGEST_END // 2,
    )
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:
        served = AsgiServer(f"http://127.0.0.1:{listener.getsockname()[1]}", uvicorn.Server(config))
        thread = threading.Thread(target=served._server.run, args=[[listener]], name="modelyard asgi server")
        thread.start()
        try:
            yield served
        finally:
            served._server.should_exit = True
            served.cut()
            thread.join(LONGEST_END)
            if thread.is_alive():
                raise RuntimeError(f"the server did not end within {LONGEST_END} seconds")
