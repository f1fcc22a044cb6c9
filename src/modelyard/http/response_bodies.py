"""Bodies of responses that come piece by piece: of files, and of pieces that are fetched in threads."""

from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from typing import BinaryIO
from urllib.parse import quote

from modelyard.formats.json_stream import CHUNK
from modelyard.http.message import Response, dump
from modelyard.threads import TenantThreads


class FileBody:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        chunk = b"" if self._file.closed else self._file.read(CHUNK)
        if not chunk:
            self.close()
            raise StopIteration
        return chunk

    def close(self) -> None:
        self._file.close()


def download(file: BinaryIO, size: int, filename: str | None = None) -> Response:
    headers = [("content-type", "application/octet-stream"), ("content-length", str(size))]
    if filename is not None:
        headers.append(("content-disposition", f"attachment; filename*=UTF-8''{quote(filename, safe='')}"))
    return Response(200, headers, FileBody(file))


FIRST_LINES = 1000
"""How many lines are read before the status is sent, so that an error among them fails the request."""


def json_lines(items: Iterator[object]) -> Response:
    """Return the response with one JSON object a line, which reads all but the first lines while it is sent."""
    first = list(islice(items, FIRST_LINES))
    body = _lines(first) if len(first) < FIRST_LINES else _further_lines(first, items)
    return Response(200, [("content-type", "application/jsonl")], body)


def _further_lines(batch: list[object], items: Iterator[object]) -> Iterator[bytes]:
    while batch:
        yield _lines(batch)
        batch = list(islice(items, FIRST_LINES))


def _lines(items: Iterable[object]) -> bytes:
    return b"".join(dump(item) + b"\n" for item in items)


def close(body: object) -> None:
    if hasattr(body, "close"):
        body.close()


async def offloaded(pieces: Iterator[bytes], threads: TenantThreads) -> AsyncIterator[bytes]:
    """Yield pieces that are each fetched in a thread; none is held while a piece is sent."""
    try:
        while (piece := await threads.run(lambda: next(pieces, None))) is not None:
            yield piece
    finally:
        close(pieces)
