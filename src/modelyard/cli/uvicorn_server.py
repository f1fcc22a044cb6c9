"""The server of `modelyard serve`: uvicorn, with the writes of a connection in one turn of the event loop joined.

Uvicorn writes the head and the body of an answer one after the other, and event loops send at once what is written.
Such a system call between two requests costs as much as all that uvicorn does for one.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from modelyard.asgi import Application
from modelyard.errors import MissingExtra

try:
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol
except ImportError as error:
    raise MissingExtra("uvicorn", "serve") from error

GRACE_SECONDS = 10
"""How long streams may continue when the server is stopped: their clients may have stopped reading."""

MOST = 2**16
"""Bytes that wait at most. The transport gets what is more at once, and so notices a client that does not read."""


class JoinedWrites:
    """A transport that sends what was written at the next turn of the event loop; for the rest, the given transport."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._call_soon = transport, loop.call_soon
        self._waiting: list[bytes] = []
        self._size = 0
        self.is_closing = transport.is_closing  # asked at each answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send the data at the next turn, or at once where much is waiting."""
        if not self._waiting:
            self._call_soon(self.flush)
        self._waiting.append(data)
        self._size += len(data)
        if self._size > MOST:
            self.flush()

    def flush(self) -> None:
        """Send what is waiting, unless the connection is closed or aborted."""
        waiting, self._waiting, self._size = self._waiting, [], 0
        if waiting and not self.is_closing():
            self._transport.write(b"".join(waiting))

    def writelines(self, pieces: Any) -> None:
        """Write several pieces."""
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        """Close the sending side after what was written."""
        self.flush()
        self._transport.write_eof()

    def close(self) -> None:
        """Close the connection after what was written."""
        self.flush()
        self._transport.close()


class JoiningProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type] # which it is depends on what is installed
    """The protocol that uvicorn chooses, on connections whose writes are joined."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin a connection."""
        super().connection_made(JoinedWrites(transport, self.loop))


OPTIONS: Mapping[str, Any] = {
    "http": JoiningProtocol,
    "log_config": None,
    "access_log": False,  # each request has a line of our own
    "server_header": False,
    "timeout_graceful_shutdown": GRACE_SECONDS,
}
"""How uvicorn serves the platform."""


def run(app: Application, host: str, port: int) -> None:
    """Serve an application until interrupted."""
    uvicorn.run(app, host=host, port=port, **OPTIONS)
