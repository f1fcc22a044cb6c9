"""Connections of blocking calls, with a limit for each read that may change while an answer is read.

httpx has one limit for everything that is read of an answer. The first token of an answer may take long, and the next
ones may not.
"""

import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import httpcore

from modelyard.backends.upstream.address import httpx


class ReadLimit(float):
    """The limit of a request's reads: `seconds` is what holds for the next one."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class ConnectionTrace:
    """Notes whether a request opened a connection; otherwise it was sent over one that was kept."""

    def __init__(self) -> None:
        self.opened: bool = False

    def note(self, event: str, info: Mapping[str, Any]) -> None:
        """Take an event of httpcore, as its `trace` extension describes them."""
        self.opened = self.opened or event.startswith("connection.")

    async def anote(self, event: str, info: Mapping[str, Any]) -> None:
        """Take an event of httpcore, asynchronously."""
        self.note(event, info)


@attrs.define(eq=False)
class _Stream(httpcore.NetworkStream):
    """A connection that honours a `ReadLimit`."""

    inner: httpcore.NetworkStream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        seconds = timeout.seconds if isinstance(timeout, ReadLimit) else timeout
        return self.inner.read(max_bytes, seconds)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.inner.write(buffer, timeout)

    def close(self) -> None:
        self.inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self.inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self.inner.get_extra_info(info)


class _Network(httpcore.NetworkBackend):
    """Opens connections."""

    _inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.connect_tcp(host, port, timeout, local_address, socket_options))


class BlockingConnections(httpx.BaseTransport):
    """A pool of connections for threads: a transport of `httpx.Client`."""

    def __init__(self, verify: ssl.SSLContext | bool, limits: httpx.Limits) -> None:
        self._pool = httpcore.ConnectionPool(
            ssl_context=verify if isinstance(verify, ssl.SSLContext) else None,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=_Network(),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return the head of its answer, with the rest as a stream."""
        url = request.url
        with _as_httpx():
            answer = self._pool.handle_request(
                httpcore.Request(
                    method=request.method,
                    url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        return httpx.Response(answer.status, headers=answer.headers, stream=_Body(answer), extensions=answer.extensions)

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()


@attrs.define(eq=False)
class _Body(httpx.SyncByteStream):
    """The bytes of an answer."""

    answer: httpcore.Response

    def __iter__(self) -> Iterator[bytes]:
        with _as_httpx():
            yield from self.answer.iter_stream()

    def close(self) -> None:
        with _as_httpx():
            self.answer.close()


@contextmanager
def _as_httpx() -> Iterator[None]:
    """Raise faults of a connection as httpx does, which has a class of the same name for each."""
    try:
        yield
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as fault:
        raise getattr(httpx, type(fault).__name__)(str(fault)) from fault
