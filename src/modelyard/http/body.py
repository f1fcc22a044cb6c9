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
"""Seconds that any body may take."""

PACE = 2**20
"""Bytes for which a body may take one more second."""

Blocking = Iterator[bytes]
AsyncBody = AsyncIterator[bytes]
AnyBody = Blocking | AsyncBody

_JSON = ("application/json", "application/jsonl", "application/x-ndjson", "application/octet-stream")


def check_media(headers: Headers, data: bool) -> None:
    """Check the declared type of a body. Raises `UnsupportedMedia`.

    A body is JSON in UTF-8, also when no type is declared, and not compressed. Data bodies may also be declared as
    JSON Lines or plain bytes.
    """
    encoding = headers.get("content-encoding")
    if encoding is not None and encoding.strip().lower() != "identity":
        raise UnsupportedMedia("a compressed body is not accepted; send it without Content-Encoding")
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
    """Refuse a body whose declared length is too large, before reading it. Raises `BodyTooLarge`."""
    declared = headers.get("content-length") or ""
    if declared.isascii() and declared.isdigit() and (len(declared) > 18 or int(declared) > limit):
        raise BodyTooLarge(limit)


def seconds_for(size: int) -> float:
    """Return how long a body may take of which `size` bytes have come."""
    return PATIENCE + size / PACE


def too_slow() -> BodyTimeout:
    """Return the error for a body that takes longer."""
    return BodyTimeout(f"the body came too slowly; it may take {PATIENCE:.0f} seconds and one more for each MiB")


def counted(body: Iterator[bytes], limit: int, clock: Clock) -> Iterator[bytes]:
    """Yield the chunks while they are within size and time. Raises `BodyTooLarge`, `BodyTimeout`."""
    size, began = 0, clock.monotonic()
    for chunk in body:
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge(limit)
        if clock.monotonic() > began + seconds_for(size):
            raise too_slow()
        yield chunk


async def acounted(body: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    """Yield the chunks while they are within size; `RequestReceiver` keeps the time. Raises `BodyTooLarge`."""
    size = 0
    async for chunk in body:
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge(limit)
        yield chunk


def read(body: AnyBody, limit: int, clock: Clock) -> bytes:
    """Read the whole body."""
    return b"".join(counted(cast(Blocking, body), limit, clock))


async def aread(body: AnyBody, limit: int) -> bytes:
    """Read the whole body on an event loop."""
    chunks, size = [], 0
    async for chunk in cast(AsyncBody, body):
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge(limit)
        chunks.append(chunk)
    return b"".join(chunks)


def spool(body: AnyBody, limit: int, clock: Clock, files: Spool) -> StoredArtifact:
    """Write the body to an artifact as it comes."""
    return files.put(counted(cast(Blocking, body), limit, clock))


async def aspool(body: AnyBody, limit: int, files: Spool) -> StoredArtifact:
    """Write the body to an artifact: chunks are received on the event loop and written by a thread of its executor."""
    loop = asyncio.get_running_loop()
    chunks = acounted(cast(AsyncBody, body), limit)

    async def next_chunk() -> bytes | None:
        return await anext(chunks, None)

    def received() -> Iterator[bytes]:
        while (chunk := asyncio.run_coroutine_threadsafe(next_chunk(), loop).result()) is not None:
            yield chunk

    return await in_executor(lambda: files.put(received()))
