"""HTTP/1.1 without a network: the bytes that a client writes are read as a request, and a response becomes bytes. A
library's own code so writes and reads everything, and only its connection is replaced."""

import asyncio
import http.client
import io
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Protocol
from urllib.parse import urlsplit

import attrs

from modelyard.http.message import Response
from modelyard.parts.doubles.clients.in_process import AsyncPieces, InProcess, Pieces
from modelyard.parts.doubles.clients.read_limit import ReadLimit
from modelyard.protocols import Clock

_BODILESS = frozenset({204, 304})
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Answering(Protocol):
    """Who answers for a host, and what its paths and headers are there."""

    in_process: InProcess
    clock: Clock

    def path(self, path: str) -> str: ...

    def headers(self, headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]: ...


@attrs.frozen
class _Url:
    scheme: str
    raw_path: bytes


@attrs.frozen
class _Headers:
    raw: list[tuple[bytes, bytes]]


class _Body:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def __iter__(self) -> Iterator[bytes]:
        yield self._data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data


@attrs.define
class SentRequest:
    method: str
    url: _Url
    headers: _Headers
    stream: _Body


class RequestReader:
    """Collects what a client writes until it is a whole request, to a host or through a proxy."""

    def __init__(self, target: Answering) -> None:
        self._target, self._data = target, bytearray()
        self._head: tuple[str, str, list[tuple[str, str]]] | None = None

    def take(self, data: bytes) -> bool:
        """Keep these bytes. Returns whether the client now waits to be told to continue."""
        self._data += data
        if self._head is not None or b"\r\n\r\n" not in self._data:
            return False
        head, _, rest = bytes(self._data).partition(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        method, address = line.split(" ")[:2]
        pairs = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        self._head, self._data = (method, address, pairs), bytearray(rest)
        return self._header("expect") == "100-continue" and not rest

    def _header(self, wanted: str) -> str:
        assert self._head is not None
        return next((value.lower() for name, value in self._head[2] if name.lower() == wanted), "")

    def request(self) -> SentRequest | None:
        """Return the request, or None while it is not whole."""
        if self._head is None or (body := self._body()) is None:
            return None
        method, address, pairs = self._head
        at = urlsplit(address)
        query = f"?{at.query}" if at.query else ""
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._target.headers(pairs)]
        path = f"{self._target.path(at.path or '/')}{query}"
        return SentRequest(method, _Url("https", path.encode("ascii")), _Headers(raw), _Body(body))

    def _body(self) -> bytes | None:
        if "chunked" in self._header("transfer-encoding"):
            return _dechunked(bytes(self._data)) if self._data.endswith(b"0\r\n\r\n") else None
        size = int(self._header("content-length") or 0)
        return bytes(self._data[:size]) if len(self._data) >= size else None


def _dechunked(data: bytes) -> bytes | None:
    found, at = bytearray(), 0
    while (end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:end].partition(b";")[0], 16)
        if size == 0:
            return bytes(found)
        found += data[end + 2 : end + 2 + size]
        at = end + 4 + size
    return None


def _head(answer: Response) -> bytes:
    length = [] if isinstance(answer.body, bytes) else [("transfer-encoding", "chunked")]
    lines = [f"{name}: {value}" for name, value in (*answer.headers, *length, ("connection", "close"))]
    reason = http.client.responses.get(answer.status, "")
    return "\r\n".join([f"HTTP/1.1 {answer.status} {reason}", *lines, "", ""]).encode("latin-1")


def _whole_body(answer: Response, sent: SentRequest) -> bytes | None:
    if sent.method == "HEAD" or answer.status in _BODILESS:
        return b""
    return answer.body if isinstance(answer.body, bytes) else None


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


# ---- for a thread that waits -----------------------------------------------------------------------------------------


class WireSocket:
    """What a connection of the standard library uses of its socket, for one request."""

    def __init__(self, target: Answering, timeout: object = None) -> None:
        self._target, self._reader = target, RequestReader(target)
        self.settimeout(timeout)

    def settimeout(self, seconds: object) -> None:
        self._limit = ReadLimit.on(self._target.clock, seconds, TimeoutError)

    def sendall(self, data: bytes, flags: int = 0) -> None:
        self._reader.take(data)

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        """Return the response as a file. What goes wrong is raised when it is read, as by a socket; it is a
        `ConnectionResetError` if the request is not whole."""
        try:
            return io.BufferedReader(self._answer())
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised to who reads
            return io.BufferedReader(_Failed(error))

    def _answer(self) -> "_Answer":
        sent = self._reader.request()
        if sent is None:
            raise ConnectionResetError("the client asks for the response to a request that it has not sent wholly")
        return _Answer(self._target.in_process.handle(sent, self._limit), sent, self._limit)

    def _ignore(self, *_: Any) -> None:
        """There is no connection to set up or to close."""

    setsockopt = shutdown = close = _ignore


class _Failed(io.RawIOBase):
    """A file that cannot be read."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def readable(self) -> bool:
        return True

    def readinto(self, _: Any) -> int:
        raise self._error


class _Answer(io.RawIOBase):
    """The bytes of a response, each piece when it has come."""

    def __init__(self, answer: Response, sent: SentRequest, limit: ReadLimit) -> None:
        body = _whole_body(answer, sent)
        self._pieces = None if body is not None else Pieces(answer.body, ConnectionResetError, limit)
        self._left, self._following = memoryview(_head(answer) + (body or b"")), self._chunks()

    def _chunks(self) -> Iterator[bytes]:
        if self._pieces is not None:
            yield from map(_chunk, filter(None, self._pieces))
            yield b"0\r\n\r\n"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self._left:
            self._left = memoryview(next(self._following, b""))
        taken = self._left[: len(buffer)]
        buffer[: len(taken)] = taken
        self._left = self._left[len(taken) :]
        return len(taken)

    def close(self) -> None:
        if self._pieces is not None and not self.closed:
            self._pieces.close()
        super().close()


# ---- on an event loop ------------------------------------------------------------------------------------------------


class WireTransport(asyncio.Transport):
    """The transport of a connection of an asynchronous client, for one request."""

    def __init__(self, target: Answering, protocol: asyncio.Protocol, limit: ReadLimit) -> None:
        super().__init__()
        self._target, self._protocol, self._limit = target, protocol, limit
        self._reader = RequestReader(target)
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    def write(self, data: Any) -> None:
        if self._reader.take(bytes(data)):
            self._protocol.data_received(_CONTINUE)
        if self._task is None and (sent := self._reader.request()) is not None:
            self._task = asyncio.get_running_loop().create_task(self._respond(sent))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    async def _respond(self, sent: SentRequest) -> None:
        failure: Exception | None = None
        try:
            answer = await self._target.in_process.ahandle(sent, self._limit)
            await self._give(answer, _whole_body(answer, sent))
        except TimeoutError:
            return  # its library knows, and closes
        except Exception as error:  # noqa: BLE001 - the client's library raises it
            failure = error
        if not self._closed:
            self._closed = True
            self._protocol.connection_lost(failure)

    async def _give(self, answer: Response, whole: bytes | None) -> None:
        self._protocol.data_received(_head(answer) + (whole or b""))
        if whole is not None:
            return
        pieces = AsyncPieces(answer.body, ConnectionResetError, self._limit)
        try:
            async for piece in pieces:
                await self._may_read.wait()
                self._protocol.data_received(_chunk(piece) if piece else b"")
            self._protocol.data_received(b"0\r\n\r\n")
        finally:
            await pieces.aclose()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._task is not None:
                self._task.cancel()

    abort = close

    def is_closing(self) -> bool:
        return self._closed

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: no byte is ever buffered."""
