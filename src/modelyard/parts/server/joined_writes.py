"""Uvicorn with the writes of a connection joined. It writes the head and the body of an answer one after the other, and
event loops send each at once. The second system call costs as much as everything else that uvicorn does for a request.
"""

import asyncio
from typing import Any

from modelyard.errors import MissingExtra

try:
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol
except ImportError as error:
    raise MissingExtra("uvicorn", "serve") from error

__all__ = ["MOST", "JoinedWrites", "JoiningProtocol", "uvicorn"]

MOST = 2**16
"""Bytes that wait at most. More goes to the transport at once, which so notices a client that does not read."""


class JoinedWrites:
    """Wraps a transport, and sends what was written at the next iteration of the event loop."""

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._call_soon = transport, loop.call_soon
        self._waiting: list[bytes] = []
        self._size = 0
        self.is_closing = transport.is_closing  # asked at each answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._waiting:
            self._call_soon(self.flush)
        self._waiting.append(data)
        self._size += len(data)
        if self._size > MOST:
            self.flush()

    def flush(self) -> None:
        waiting, self._waiting, self._size = self._waiting, [], 0
        if waiting and not self.is_closing():
            self._transport.write(b"".join(waiting))

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        self.flush()
        self._transport.write_eof()

    def close(self) -> None:
        self.flush()
        self._transport.close()


class JoiningProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type] # which it is depends on what is installed
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(JoinedWrites(transport, self.loop))
