"""Clients of httpx and httpx2, also existing ones: the transports under them ask who answers for a host."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from modelyard.parts.doubles.clients.retries import PAUSE, pause_before_retry
from modelyard.parts.doubles.intercept.target import TARGETS, HostTarget


@contextmanager
def httpx_intercepted(library: ModuleType, transport: type, begin: Callable[[], None]) -> Iterator[None]:
    http, ahttp = library.HTTPTransport, library.AsyncHTTPTransport
    handle, ahandle = http.handle_request, ahttp.handle_async_request

    def intercepted(self: Any, request: Any) -> Any:
        target = TARGETS.find(request.url.host)
        if target is None:
            return handle(self, request)
        begin()
        return target.transport(transport).handle_request(_readdressed(library, request, target))

    async def aintercepted(self: Any, request: Any) -> Any:
        target = TARGETS.find(request.url.host)
        if target is None:
            return await ahandle(self, request)
        begin()
        return await target.transport(transport).handle_async_request(_readdressed(library, request, target))

    http.handle_request, ahttp.handle_async_request = intercepted, aintercepted
    try:
        yield
    finally:
        http.handle_request, ahttp.handle_async_request = handle, ahandle


def _readdressed(library: ModuleType, request: Any, target: HostTarget) -> Any:
    path, query, rest = request.url.raw_path.partition(b"?")
    raw_path = target.path(path.decode("ascii")).encode("ascii") + query + rest
    return library.Request(
        request.method,
        request.url.copy_with(raw_path=raw_path),
        headers=target.headers(request.headers.multi_items()),
        stream=request.stream,
        extensions=request.extensions,
    )


@contextmanager
def unhurried(client: ModuleType) -> Iterator[None]:
    """Let pauses between retries of the clients of a package in `WITH_PAUSE` take no real time while the block runs, if
    their host is intercepted."""
    sync, asynchronous = client.SyncAPIClient, client.AsyncAPIClient
    sleep, asleep = getattr(sync, PAUSE), getattr(asynchronous, PAUSE)

    def pause(client: Any, **retry: Any) -> Any:
        target = TARGETS.find(client.base_url.host)
        return sleep(client, **retry) if target is None else target.pauses.sleep(pause_before_retry(client, **retry))

    def apause(client: Any, **retry: Any) -> Any:
        target = TARGETS.find(client.base_url.host)
        return asleep(client, **retry) if target is None else target.pauses.asleep(pause_before_retry(client, **retry))

    setattr(sync, PAUSE, pause)
    setattr(asynchronous, PAUSE, apause)
    try:
        yield
    finally:
        setattr(sync, PAUSE, sleep)
        setattr(asynchronous, PAUSE, asleep)
