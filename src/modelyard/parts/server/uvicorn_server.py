"""The server of `modelyard serve`: uvicorn, for an open port."""

import errno
import gc
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic
from types import FrameType
from typing import Any

import click

from modelyard.asgi import Application
from modelyard.parts.server.bounded_heads import BoundedProtocol, raise_descriptors
from modelyard.parts.server.bounds import Bounds
from modelyard.parts.server.joined_writes import uvicorn

STREAM_SECONDS = 10
"""How long streams may continue when the server is stopped: their clients may have stopped reading."""

COLLECT_AFTER = 50_000
"""Objects after which Python looks for cycles, in the place of 700. Each look goes through all that the requests under
way hold, which is far more than that where they wait for a commit together."""

STARTUP_FAILURE = 3
"""The exit status if there is an error before the first request, as that of uvicorn."""

OPTIONS: Mapping[str, Any] = {
    "http": BoundedProtocol,
    "log_config": None,
    "access_log": False,  # each request has a line of our own
    "server_header": False,
    "proxy_headers": False,  # `behind_proxy` reads them
    "timeout_graceful_shutdown": STREAM_SECONDS,
}


class GracefulServer(uvicorn.Server):
    """A server that goes on for some seconds after SIGTERM, in which `leave` has told others to ask no more."""

    def __init__(self, config: uvicorn.Config, grace: float, leave: Callable[[], object]) -> None:
        super().__init__(config)
        self._grace, self._leave = grace, leave
        self._until: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM and self._grace and self._until is None:
            self._until = monotonic() + self._grace
            self._leave()
        else:
            super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Try the address first, so that nothing has begun, such as a worker, if another process has it."""
        require_address(self.config.host, self.config.port)
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        if self._until is not None and monotonic() >= self._until:
            super().handle_exit(signal.SIGTERM, None)
        return await super().on_tick(counter)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Have Python look for cycles rarely, and not among the objects that are there now. A `BoundedProtocol` has it look
    when bodies were received that cycles may hold."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def require_address(host: str, port: int) -> None:
    """Raise `click.ClickException` if this process cannot listen there."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise click.ClickException(f"there is no host {host} ({error}); name one of this machine") from None
    faults = [fault for family, _, _, _, address in found if (fault := _bind_fault(family, address)) is not None]
    taken = [fault for fault in faults if fault.errno in (errno.EADDRINUSE, errno.EACCES)]
    if taken or len(faults) == len(found):
        reason = (taken or faults)[0].strerror
        raise click.ClickException(f"{host}:{port} cannot be listened at ({reason}); name another --host or --port")


def _bind_fault(family: int, address: Any) -> OSError | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            tried.bind(address)
    except OSError as fault:
        return fault
    return None


def run(
    app: Application,
    host: str,
    port: int,
    grace: float = 0,
    leave: Callable[[], object] = lambda: None,
    head_seconds: float = Bounds().head_seconds,
) -> None:
    bounds = Bounds(head_seconds=head_seconds, connections=raise_descriptors())
    protocol = type("Protocol", (BoundedProtocol,), {"bounds": bounds})
    config = uvicorn.Config(app, host=host, port=port, **{**OPTIONS, "http": protocol})
    server = GracefulServer(config, grace, leave)
    with suppress(KeyboardInterrupt), collecting_rarely():
        server.run()
    if not server.started:
        raise SystemExit(STARTUP_FAILURE)
