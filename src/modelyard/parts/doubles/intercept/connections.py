"""Clients of http.client, and so of urllib3, requests and urllib.request, and those of aiohttp: their connections ask
who answers for a host, also if a proxy is to be asked. A connection is below pools, retries and redirects, so these
behave as with a server. It needs urllib3 2."""

import asyncio
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from modelyard.parts.doubles.clients.read_limit import ReadLimit
from modelyard.parts.doubles.intercept.target import TARGETS, HostTarget
from modelyard.parts.doubles.intercept.wire import WireSocket, WireTransport

_LAST = threading.local()
"""The target of each thread's last request; a pause before a retry takes its clock."""

_FOR = "_modelyard_host"
"""The host that a connection to a proxy is opened for, where its pool knows that."""


def _target(connection: Any, url: str = "") -> HostTarget | None:
    """Return who answers for the host that a connection leads to: that of an absolute URL or of the tunnel, which a
    proxy is asked for, or its own."""
    named = urlsplit(url).hostname if "://" in url else None
    noted = getattr(connection, _FOR, None)
    return TARGETS.find(named or getattr(connection, "_tunnel_host", None) or noted or connection.host)


def _timeout(connection: Any) -> Any:
    seconds = getattr(connection, "timeout", None)
    return seconds if seconds is None or isinstance(seconds, int | float) else socket.getdefaulttimeout()


@contextmanager
def _connects_intercepted(library: ModuleType) -> Iterator[None]:
    """Replace `connect` of the connections in this module."""
    kinds = library.HTTPConnection, library.HTTPSConnection
    connects = {kind: kind.connect for kind in kinds}

    def connecting(connect: Any) -> Any:
        def connected(self: Any) -> None:
            target = _target(self)
            if target is None:
                connect(self)
                return
            self.sock = WireSocket(target, _timeout(self))
            self.is_verified = True  # no pool warns of a connection that leaves no process

        return connected

    for kind, connect in connects.items():
        kind.connect = connecting(connect)
    try:
        yield
    finally:
        for kind, connect in connects.items():
            kind.connect = connect


@contextmanager
def http_client_intercepted() -> Iterator[None]:
    """Replace how the connections of http.client connect, and what begins each of their requests."""
    plain = http.client.HTTPConnection
    putrequest = plain.putrequest

    def begin(self: Any, method: str, url: str, *args: Any, **options: Any) -> None:
        target = _LAST.target = _target(self, url)
        if target is not None:
            if self.sock is not None:  # one that was opened before, or to the proxy
                self.sock.close()
            self.sock = WireSocket(target, _timeout(self))
        putrequest(self, method, url, *args, **options)

    plain.putrequest = begin  # type: ignore[method-assign]
    try:
        with _connects_intercepted(http.client):
            yield
    finally:
        plain.putrequest = putrequest  # type: ignore[method-assign]


@contextmanager
def urllib3_intercepted(urllib3: ModuleType, connection: ModuleType) -> Iterator[None]:
    """Let pools tell their connections which host they are for, and pauses before retries take no real time."""
    pool, retry = urllib3.HTTPConnectionPool, urllib3.Retry
    make_request, sleep = pool._make_request, retry.sleep

    def request(self: Any, conn: Any, method: str, url: str, *args: Any, **options: Any) -> Any:
        setattr(conn, _FOR, urlsplit(url).hostname if "://" in url else self.host)
        return make_request(self, conn, method, url, *args, **options)

    def pause(self: Any, response: Any = None) -> None:
        target: HostTarget | None = getattr(_LAST, "target", None)
        if target is None:
            sleep(self, response)
            return
        after = self.get_retry_after(response) if response is not None and self.respect_retry_after_header else None
        target.pauses.sleep(after or self.get_backoff_time())

    pool._make_request, retry.sleep = request, pause
    try:
        with _connects_intercepted(connection):
            yield
    finally:
        pool._make_request, retry.sleep = make_request, sleep


@contextmanager
def aiohttp_intercepted(aiohttp: ModuleType) -> Iterator[None]:
    """Replace the connections that any connector gives, whether it has them already, opens them or asks a proxy."""
    connector = aiohttp.connector.BaseConnector
    connect = connector.connect

    async def intercepted(self: Any, request: Any, *args: Any, **options: Any) -> Any:
        target = TARGETS.find(request.url.host or "")
        if target is None:
            return await connect(self, request, *args, **options)
        loop = asyncio.get_running_loop()
        protocol = aiohttp.client_proto.ResponseHandler(loop)
        limits: Any = options.get("timeout", args[-1] if args else None)
        seconds = min(filter(None, (limits.total, limits.sock_read)), default=None)

        def timed_out(words: str) -> Exception:
            protocol._on_read_timeout()
            return TimeoutError(words)

        limit = ReadLimit.on(target.clock, seconds, timed_out)
        protocol.connection_made(WireTransport(target, protocol, limit))
        return aiohttp.connector.Connection(self, request.connection_key, protocol, loop)

    connector.connect = intercepted
    try:
        yield
    finally:
        connector.connect = connect
