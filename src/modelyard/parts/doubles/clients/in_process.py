"""HTTP without a socket: a client's request is passed to the platform as a value, and so is the response.

`clients.httpx` and `clients.httpx2` build on it, for one client library each.
"""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Protocol

from modelyard.flow import give_way
from modelyard.http.endpoint import Endpoint
from modelyard.http.interface import Interface
from modelyard.http.interfaces import STANDARD
from modelyard.http.message import Request, Response
from modelyard.http.response_bodies import close
from modelyard.parts.doubles.clients.read_limit import NO_LIMIT, ReadLimit
from modelyard.platform.platform import Platform

BrokenOff = Callable[[str], Exception]
"""Creates the exception that a client library raises if a server breaks off its response."""


class RequestUrl(Protocol):
    @property
    def scheme(self) -> str: ...

    @property
    def raw_path(self) -> bytes: ...


class RawHeaders(Protocol):
    @property
    def raw(self) -> list[tuple[bytes, bytes]]: ...


class ClientRequest(Protocol):
    """A request of a client library. `stream` is its body, for one kind of client or for both."""

    method: str
    stream: Any

    @property
    def url(self) -> RequestUrl: ...

    @property
    def headers(self) -> RawHeaders: ...


class _ClientFailed(BaseException):
    """The client's own code failed while its body was read. For the platform this is a client that disconnected."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class InProcess:
    """Carries requests to a platform and responses back. Thread-safe; holds nothing that must be closed. An exception
    of the client's body is raised to the client. If a response breaks off, `broken_off` creates the exception."""

    def __init__(self, platform: Platform, broken_off: BrokenOff, interfaces: Iterable[Interface] = STANDARD) -> None:
        self._endpoint = Endpoint(platform, interfaces)
        self._broken_off = broken_off

    def handle(self, request: ClientRequest, limit: ReadLimit = NO_LIMIT) -> Response:
        """Respond to a request within a limit. A body that is not bytes is an iterator for `Pieces`."""
        with limit.waiting():
            return self._handle(request)

    def _handle(self, request: ClientRequest) -> Response:
        try:
            return self._endpoint.handle(_request(request, _sent(request.stream)))
        except _ClientFailed as failure:
            raise failure.error from failure.error.__cause__
        except Exception as error:
            raise self._broken_off("the platform disconnected without a response") from error

    async def ahandle(self, request: ClientRequest, limit: ReadLimit = NO_LIMIT) -> Response:
        await give_way()
        with limit.waiting():
            return await self._ahandle(request)

    async def _ahandle(self, request: ClientRequest) -> Response:
        try:
            return await self._endpoint.ahandle(_request(request, _asent(request.stream)))
        except _ClientFailed as failure:
            raise failure.error from failure.error.__cause__
        except Exception as error:
            raise self._broken_off("the platform disconnected without a response") from error


def _request(request: ClientRequest, body: Iterator[bytes] | AsyncIterator[bytes]) -> Request:
    path, _, query = request.url.raw_path.partition(b"?")
    headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in request.headers.raw]
    return Request(request.method, path.decode("ascii"), query.decode("ascii"), headers, body, request.url.scheme)


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
    """The body of a response, piece by piece. Closing it early disconnects the client."""

    def __init__(self, pieces: Any, broken_off: BrokenOff, limit: ReadLimit = NO_LIMIT) -> None:
        self._pieces, self._broken_off, self._limit = pieces, broken_off, limit

    def __iter__(self) -> Iterator[bytes]:
        pieces = iter(self._pieces)
        while True:
            with self._limit.waiting():
                piece = self._next(pieces)
            if piece is None:
                return
            yield piece

    def _next(self, pieces: Iterator[bytes]) -> bytes | None:
        try:
            return next(pieces, None)
        except Exception as error:
            raise self._broken_off("the platform broke off its response") from error

    def close(self) -> None:
        """Stop the work for the response; the usage so far is recorded."""
        close(self._pieces)


class AsyncPieces:
    """The body of a response on an event loop; other tasks run after each piece."""

    def __init__(self, pieces: Any, broken_off: BrokenOff, limit: ReadLimit = NO_LIMIT) -> None:
        self._pieces, self._broken_off, self._limit = pieces, broken_off, limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = aiter(self._pieces)
        while True:
            with self._limit.waiting():
                piece = await self._next(pieces)
            if piece is None:
                return
            yield piece
            await give_way()

    async def _next(self, pieces: AsyncIterator[bytes]) -> bytes | None:
        try:
            return await anext(pieces, None)
        except Exception as error:
            raise self._broken_off("the platform broke off its response") from error

    async def aclose(self) -> None:
        await self._pieces.aclose()
