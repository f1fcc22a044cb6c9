"""Clients of httpx and httpx2, also existing ones: the transports under them ask who answers for a host."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from modelyard.parts.doubles.clients.retries import SLEEP_OF_OPENAI, pause_of_openai
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
def openai_unhurried(openai: ModuleType) -> Iterator[None]:
    """Let pauses between retries of `openai` clients of intercepted hosts take no real time while the block runs."""
    sync, asynchronous = openai.OpenAI, openai.AsyncOpenAI
    sleep, asleep = (getattr(client, SLEEP_OF_OPENAI) for client in (sync, asynchronous))

    def pause(client: Any, **retry: Any) -> Any:
        target = TARGETS.find(client.base_url.host)
        return sleep(client, **retry) if target is None else target.pauses.sleep(pause_of_openai(client, **retry))

    def apause(client: Any, **retry: Any) -> Any:
        target = TARGETS.find(client.base_url.host)
        return asleep(client, **retry) if target is None else target.pauses.asleep(pause_of_openai(client, **retry))

    setattr(sync, SLEEP_OF_OPENAI, pause)
    setattr(asynchronous, SLEEP_OF_OPENAI, apause)
    try:
        yield
    finally:
        delattr(sync, SLEEP_OF_OPENAI)  # the inherited one is seen again
        delattr(asynchronous, SLEEP_OF_OPENAI)
