"""An ASGI application on a free loopback port, in another thread, for clients that need a socket."""

import asyncio
import itertools
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from modelyard.asgi import asgi_app
from modelyard.errors import MissingExtra
from modelyard.parts.doubles.clients.served_retries import retried_on_clock
from modelyard.platform.platform import Platform

Application = Callable[[Any, Any, Any], Awaitable[None]]

PATIENCE = 1
"""Seconds that a response may still be streamed after the server was asked to stop."""
LONGEST_END = 30
TICK = 0.1
"""Seconds between two ticks of the server, which keep the date that it sends."""


class AsgiServer:
    """The `url` of a served application, and its connections, which can be cut as by a server that crashes."""

    def __init__(self, url: str, server: Any) -> None:
        self.url: str = url
        self._server = server

    def cut(self, client: tuple[str, int] | None = None) -> None:
        """Drop all connections, idle ones too, or only that of one client (an ASGI scope's `client`). That one still
        receives what was sent. May be called from any thread."""
        for connection in list(self._server.server_state.connections):
            if client is None:
                connection.loop.call_soon_threadsafe(connection.transport.abort)
            elif connection.client == client:
                connection.loop.call_soon_threadsafe(connection.transport.close)


@contextmanager
def asgi_server(application: Application, **options: Any) -> Iterator[AsgiServer]:
    """Serve the application while the block runs; `options` are those of a `uvicorn.Config`. Logs go to the loggers of
    `uvicorn`, which are not configured unless the options name a level. Raises `MissingExtra` without uvicorn, and
    RuntimeError for a server that does not stop."""
    try:
        import uvicorn  # noqa: PLC0415 - an extra that is needed for sockets only
    except ImportError as error:
        raise MissingExtra("uvicorn", "serve") from error
    server: Any = uvicorn.Server(
        uvicorn.Config(application, log_config=None, timeout_graceful_shutdown=PATIENCE, **options)
    )
    runner, end = asyncio.Runner(loop_factory=asyncio.new_event_loop), asyncio.Event()
    loop = runner.get_loop()
    server.main_loop, server.shutdown = partial(_tick, server, end), partial(_shut_down, server, server.shutdown)
    with _listener() as listener:
        thread = threading.Thread(target=_run, args=(runner, server, listener), name="modelyard served")
        thread.start()
        try:
            yield AsgiServer(f"http://127.0.0.1:{listener.getsockname()[1]}", server)
        finally:
            server.should_exit = True
            with suppress(RuntimeError):  # a server that did not start has closed its loop
                loop.call_soon_threadsafe(end.set)
            thread.join(LONGEST_END)
            if thread.is_alive():
                raise RuntimeError(f"the server did not end within {LONGEST_END} seconds")


def _listener() -> socket.socket:
    """Listen on a free port. An event loop sends without delay only if the protocol is named."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def _run(runner: asyncio.Runner, server: Any, listener: socket.socket) -> None:
    with runner:
        runner.run(_serve(server, listener))


async def _serve(server: Any, listener: socket.socket) -> None:
    await server.serve(sockets=[listener])
    for connection in list(server.server_state.connections):
        connection.transport.abort()  # it would wait for a client that has stopped reading


async def _tick(server: Any, end: asyncio.Event) -> None:
    """Do what uvicorn's main loop does, and end as soon as `end` is set instead of at the next tick."""
    for tick in itertools.count():
        if await server.on_tick(tick):
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(end.wait(), TICK)


async def _shut_down(server: Any, patiently: Callable[..., Awaitable[None]], sockets: Any = None) -> None:
    """Shut down at once if no request is being answered; otherwise `patiently`, as uvicorn does."""
    state = server.server_state
    for connection in list(state.connections):
        connection.shutdown()
    await asyncio.sleep(0)  # the turn in which idle connections are gone
    if state.connections or state.tasks:
        await patiently(sockets=sockets)
        return
    for listening in server.servers:
        listening.close()
    await server.lifespan.shutdown()


@contextmanager
def served(platform: Platform) -> Iterator[str]:
    """Serve `platform` from a thread until the block ends. Yields its root URL, such as "http://127.0.0.1:43210".

    The port is a free one. Logs go to the loggers of `uvicorn`, which are not configured. Raises `MissingExtra`.

        with served(platform) as url:
            OpenAI(base_url=f"{url}/inference/v1", api_key=platform.keys.create().secret)
    """
    with asgi_server(retried_on_clock(asgi_app(platform), platform.clock), ws="none") as server:
        yield server.url
