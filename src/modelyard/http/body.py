"""Reading a body: counted, in bounded time, and never more than the route takes."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import cast

from modelyard.errors import BodyTooLarge
from modelyard.flow import in_executor
from modelyard.http.errors import BodyTimeout, UnsupportedMedia
from modelyard.http.message import Headers
from modelyard.platform.artifacts import Spool
from modelyard.protocols import Clock, StoredArtifact

PATIENCE = 30.0
PACE = 2**20
"""Seconds that any body may take, and bytes for which it may take one more."""

Blocking = Iterator[bytes]
AsyncBody = AsyncIterator[bytes]
AnyBody = Blocking | AsyncBody

_JSON = ("application/json", "application/jsonl", "application/x-ndjson", "application/octet-stream")


def check_media(headers: Headers, data: bool) -> None:
    """Absent means JSON; another type, another charset or a compressed body is refused. Raises `UnsupportedMedia`.

    Data bodies may also be declared JSON Lines or plain bytes.
    """
    encoding = headers.get("content-encoding")
    if encoding is not None and encoding.strip().lower() != "identity":
        raise UnsupportedMedia("a compressed body is not taken; send it without Content-Encoding")
    declared = headers.get("content-type")
    if declared is None or declared == "application/json":
        return
    media, _, parameters = declared.lower().partition(";")
    if media.strip() not in (_JSON if data else _JSON[:1]) or _charset(parameters) not in ("", "utf-8", "utf8"):
        raise UnsupportedMedia("the body must be JSON in UTF-8; send Content-Type: application/json")


def _charset(parameters: str) -> str:
    _, found, value = parameters.partition("charset=")
    return value.partition(";")[0].strip(' "') if found else ""


def check_length(headers: Headers, limit: int) -> None:
    """Refuse a body that says itself that it is too large, before reading it. Raises `BodyTooLarge`."""
    declared = headers.get("content-length") or ""
    if declared.isascii() and declared.isdigit() and (len(declared) > 18 or int(declared) > limit):
        raise BodyTooLarge(limit)


def seconds_for(size: int) -> float:
    """How long a body may take of which `size` bytes have come."""
    return PATIENCE + size / PACE


def too_slow() -> BodyTimeout:
    """What refuses a body that takes longer."""
    return BodyTimeout(f"the body came too slowly; it may take {PATIENCE:.0f} seconds and one more for each MiB")


def counted(body: Iterator[bytes], limit: int, clock: Clock) -> Iterator[bytes]:
    """The same chunks, until they are too many or too slow. Raises `BodyTooLarge`, `BodyTimeout`."""
    size, began = 0, clock.monotonic()
    for chunk in body:
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge(limit)
        if clock.monotonic() > began + seconds_for(size):
            raise too_slow()
        yield chunk


async def acounted(body: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    """The same on an event loop, where whoever receives the body keeps the time (`modelyard.http.asgi_receive`)."""
    size = 0
    async for chunk in body:
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge(limit)
        yield chunk


def read(body: AnyBody, limit: int, clock: Clock) -> bytes:
    """The whole body."""
    return b"".join(counted(cast(Blocking, body), limit, clock))


async def aread(body: AnyBody, limit: int) -> bytes:
    """The whole body, on an event loop."""
    chunks, size = [], 0
    async for chunk in cast(AsyncBody, body):
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def spool(body: AnyBody, limit: int, clock: Clock, files: Spool) -> StoredArtifact:
    """The whole body as an artifact, in constant memory."""
    return files.put(counted(cast(Blocking, body), limit, clock))


async def aspool(body: AnyBody, limit: int, files: Spool) -> StoredArtifact:
    """The same on an event loop: chunks are received there and written by a thread of its executor."""
    loop = asyncio.get_running_loop()
    chunks = acounted(cast(AsyncBody, body), limit)

    async def following() -> bytes | None:
        return await anext(chunks, None)

    def handed_over() -> Iterator[bytes]:
        while (chunk := asyncio.run_coroutine_threadsafe(following(), loop).result()) is not None:
            yield chunk

    return await in_executor(lambda: files.put(handed_over()))
