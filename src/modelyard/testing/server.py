"""A platform on a port of loopback, for clients that need a socket."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from modelyard.asgi import asgi_app
from modelyard.errors import MissingExtra
from modelyard.service.platform import Platform

_PATIENCE = 1
"""Seconds that an answer which is still being streamed may go on when the server is told to end."""


@contextmanager
def served(platform: Platform) -> Iterator[str]:
    """Serve `platform` from a thread until the block ends. Gives its root, such as "http://127.0.0.1:43210".

    The port is one that was free. What is logged goes to the loggers of `uvicorn`, which are left as they are. Raises
    `MissingExtra`.

        with served(platform) as url:
            OpenAI(base_url=f"{url}/inference/v1", api_key=platform.keys.create().secret)
    """
    uvicorn = _uvicorn()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(asgi_app(platform), log_config=None, ws="none", timeout_graceful_shutdown=_PATIENCE)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(_serve(server, listener)), name="modelyard served")
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


async def _serve(server: Any, listener: socket.socket) -> None:
    await server.serve(sockets=[listener])
    for connection in list(server.server_state.connections):
        connection.transport.abort()  # it would wait for a client that reads no further


def _uvicorn() -> ModuleType:
    try:
        import uvicorn  # noqa: PLC0415 - an extra that only this needs
    except ImportError as error:
        raise MissingExtra("uvicorn", "serve") from error
    return uvicorn
