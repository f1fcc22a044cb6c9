"""HTTP without a socket: a client's request goes to the platform as a value, and the answer comes back as one.

`modelyard.testing.clients.httpx` and `modelyard.testing.clients.httpx2` are this for one client library each.
"""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Protocol

from modelyard.http.endpoint import Endpoint
from modelyard.http.exchange import close
from modelyard.http.message import Request, Response
from modelyard.http.route import STANDARD, Interface
from modelyard.platform.platform import Platform

BrokenOff = Callable[[str], Exception]
"""Makes the exception by which a client library says that a server broke off."""


class Address(Protocol):
    """A URL of a client library."""

    @property
    def scheme(self) -> str:
        """Such as "http"."""
        ...

    @property
    def raw_path(self) -> bytes:
        """Path and query, percent-encoded."""
        ...


class Lines(Protocol):
    """Headers of a client library."""

    @property
    def raw(self) -> list[tuple[bytes, bytes]]:
        """Names and values."""
        ...


class Asked(Protocol):
    """A request of a client library. `stream` is its body, for one kind of client or for both."""

    method: str
    stream: Any

    @property
    def url(self) -> Address:
        """Where it goes; the host does not matter."""
        ...

    @property
    def headers(self) -> Lines:
        """What it says of itself."""
        ...


class _ClientFailed(BaseException):
    """The client's own code failed while its body was read. To the platform this is a client that went away."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class InProcess:
    """Carries requests to a platform and answers back. Thread-safe; holds nothing that must be closed.

    What the client's body raises is raised to the client. What breaks an answer off is raised as `broken_off` makes it.
    """

    def __init__(self, platform: Platform, broken_off: BrokenOff, interfaces: Iterable[Interface] = STANDARD) -> None:
        self._endpoint = Endpoint(platform, interfaces)
        self._broken_off = broken_off

    def handle(self, asked: Asked) -> Response:
        """Answer. A body that is no bytes is an iterator for `Pieces`."""
        try:
            return self._endpoint.handle(_request(asked, _sent(asked.stream)))
        except _ClientFailed as failure:
            raise failure.error from failure.error.__cause__
        except Exception as error:
            raise self._broken_off("the platform went away without an answer") from error

    async def ahandle(self, asked: Asked) -> Response:
        """The same on an event loop. Other tasks have their turn, as when a socket is waited for."""
        await asyncio.sleep(0)
        try:
            return await self._endpoint.ahandle(_request(asked, _asent(asked.stream)))
        except _ClientFailed as failure:
            raise failure.error from failure.error.__cause__
        except Exception as error:
            raise self._broken_off("the platform went away without an answer") from error


def _request(asked: Asked, body: Iterator[bytes] | AsyncIterator[bytes]) -> Request:
    path, _, query = asked.url.raw_path.partition(b"?")
    headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in asked.headers.raw]
    return Request(asked.method, path.decode("ascii"), query.decode("ascii"), headers, body, asked.url.scheme)


def _sent(stream: Iterable[bytes]) -> Iterator[bytes]:
    try:
        yield from stream
    except Exception as error:
        raise _ClientFailed(error) from error


async def _asent(stream: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    try:
        async for chunk in stream:
            yield chunk
    except Exception as error:
        raise _ClientFailed(error) from error


class Pieces:
    """The body of an answer piece by piece. Closed early, the client has gone away."""

    def __init__(self, pieces: Any, broken_off: BrokenOff) -> None:
        self._pieces, self._broken_off = pieces, broken_off

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._pieces
        except Exception as error:
            raise self._broken_off("the platform broke off its answer") from error

    def close(self) -> None:
        """Stop the work behind the answer; what was produced is booked."""
        close(self._pieces)


class AsyncPieces:
    """The same on an event loop, where other tasks have their turn after each piece."""

    def __init__(self, pieces: Any, broken_off: BrokenOff) -> None:
        self._pieces, self._broken_off = pieces, broken_off

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._pieces:
                yield piece
                await asyncio.sleep(0)
        except Exception as error:
            raise self._broken_off("the platform broke off its answer") from error

    async def aclose(self) -> None:
        """Stop the work behind the answer; what was produced is booked."""
        await self._pieces.aclose()
