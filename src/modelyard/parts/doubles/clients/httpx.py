"""A platform as a transport of `httpx`: its clients reach the platform without a socket."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import httpx

from modelyard.http.interface import Interface
from modelyard.http.interfaces import STANDARD
from modelyard.http.message import Response
from modelyard.parts.doubles.clients.in_process import AsyncPieces, InProcess, Pieces
from modelyard.parts.doubles.clients.read_limit import ReadLimit, limit_of_httpx
from modelyard.platform.platform import Platform


class _Stream(Pieces, httpx.SyncByteStream):
    """The body of a response."""


class _AsyncStream(AsyncPieces, httpx.AsyncByteStream):
    """The body of a response on an event loop."""


class HttpxTransport(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Sends every request to `platform`, for any host; for a `Client` or an `AsyncClient`.

        client = httpx.Client(transport=HttpxTransport(platform), base_url="http://modelyard.invalid")
        client.get("/inference/analysis/partner/models").json()

    `interfaces` are those that respond. Closing a streamed response early stops the work for it. Raises
    `httpx.RemoteProtocolError` if a response breaks off, and on a `ManualClock` `httpx.ReadTimeout` if no answer, or
    no piece of it, comes within the client's time-out.
    """

    def __init__(self, platform: Platform, interfaces: Iterable[Interface] = STANDARD) -> None:
        self._carrier = InProcess(platform, httpx.RemoteProtocolError, interfaces)
        self._limit = partial(limit_of_httpx, httpx, platform.clock)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        limit = self._limit(request)
        return _response(self._carrier.handle(request, limit), _Stream, limit)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        limit = self._limit(request)
        return _response(await self._carrier.ahandle(request, limit), _AsyncStream, limit)


def _response(answer: Response, streamed: Any, limit: ReadLimit) -> httpx.Response:
    body = answer.body
    stream = httpx.ByteStream(body) if isinstance(body, bytes) else streamed(body, httpx.RemoteProtocolError, limit)
    return httpx.Response(answer.status, headers=answer.headers, stream=stream)
