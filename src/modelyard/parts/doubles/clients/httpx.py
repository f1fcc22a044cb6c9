"""A platform as a transport of `httpx`: its clients reach the platform without a socket."""

from collections.abc import Iterable
from typing import Any

import httpx

from modelyard.http.interface import Interface
from modelyard.http.interfaces import STANDARD
from modelyard.http.message import Response
from modelyard.parts.doubles.clients.in_process import AsyncPieces, InProcess, Pieces
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
    `httpx.RemoteProtocolError` if a response breaks off.
    """

    def __init__(self, platform: Platform, interfaces: Iterable[Interface] = STANDARD) -> None:
        self._carrier = InProcess(platform, httpx.RemoteProtocolError, interfaces)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return _response(self._carrier.handle(request), _Stream)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return _response(await self._carrier.ahandle(request), _AsyncStream)


def _response(answer: Response, streamed: Any) -> httpx.Response:
    body = answer.body
    stream = httpx.ByteStream(body) if isinstance(body, bytes) else streamed(body, httpx.RemoteProtocolError)
    return httpx.Response(answer.status, headers=answer.headers, stream=stream)
