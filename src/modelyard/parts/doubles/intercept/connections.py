"""Clients of urllib3, and so of requests: their connections ask who answers for a host. A connection is below pools,
retries and redirects, so these behave as with a server. It needs urllib3 2."""

import http.client
import io
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import attrs

from modelyard.http.message import Response
from modelyard.parts.doubles.clients.in_process import Pieces
from modelyard.parts.doubles.intercept.target import TARGETS, HostTarget

_LAST = threading.local()
"""The target of each thread's last request; a pause before a retry takes its clock."""

_REQUEST = "_modelyard_request"


@attrs.frozen
class _Url:
    scheme: str
    raw_path: bytes


@attrs.frozen
class _Headers:
    raw: list[tuple[bytes, bytes]]


@attrs.frozen
class _Sent:
    method: str
    url: _Url
    headers: _Headers
    stream: Iterable[bytes]
    options: Mapping[str, Any]


@contextmanager
def urllib3_intercepted(urllib3: ModuleType) -> Iterator[None]:
    plain, tls = urllib3.connection.HTTPConnection, urllib3.connection.HTTPSConnection
    retry, answer_of = urllib3.Retry, _answers(urllib3)
    connects = {kind: kind.connect for kind in (plain, tls)}
    request, getresponse, sleep = plain.request, plain.getresponse, retry.sleep

    def connect(self: Any) -> None:
        if TARGETS.find(self.host) is None:
            connects[tls if isinstance(self, tls) else plain](self)
        else:
            self.is_verified = True  # no pool warns of a connection that leaves no process

    def send(self: Any, method: str, url: str, body: Any = None, headers: Any = None, **options: Any) -> None:
        target = _LAST.target = TARGETS.find(self.host)
        if target is None:
            request(self, method, url, body, headers, **options)
            return
        chunks = urllib3.util.request.body_to_chunks(body, method=method, blocksize=self.blocksize).chunks or ()
        setattr(self, _REQUEST, _sent(target, method, url, headers or {}, chunks, options))

    def receive(self: Any) -> Any:
        sent, target = self.__dict__.pop(_REQUEST, None), TARGETS.find(self.host)
        if sent is None or target is None:
            return getresponse(self)
        return answer_of(target.in_process.handle(sent), sent)

    def pause(self: Any, response: Any = None) -> None:
        target: HostTarget | None = getattr(_LAST, "target", None)
        if target is None:
            sleep(self, response)
            return
        after = self.get_retry_after(response) if response is not None and self.respect_retry_after_header else None
        target.pauses.sleep(after or self.get_backoff_time())

    plain.request, plain.getresponse, retry.sleep = send, receive, pause
    plain.connect = tls.connect = connect
    try:
        yield
    finally:
        plain.request, plain.getresponse, retry.sleep = request, getresponse, sleep
        plain.connect, tls.connect = connects[plain], connects[tls]


def _sent(
    target: HostTarget, method: str, url: str, headers: Mapping[str, str], chunks: Iterable[bytes], options: Any
) -> _Sent:
    path, query, rest = url.partition("?")
    raw = [(name.encode("latin-1"), _bytes(value)) for name, value in target.headers(headers).items()]
    address = _Url("https", f"{target.path(path)}{query}{rest}".encode("ascii"))
    return _Sent(method, address, _Headers(raw), iter(chunks), options)


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1")


def _answers(urllib3: ModuleType) -> Any:
    class Streamed(urllib3.HTTPResponse):  # type: ignore[name-defined,misc]
        def stream(self, amt: int | None = 2**16, decode_content: bool | None = None) -> Iterator[bytes]:
            with self._error_catcher():
                while piece := self._fp.read1(-1):
                    yield piece

    def answer(found: Response, sent: _Sent) -> Any:
        body, options = found.body, sent.options
        whole = io.BytesIO(body) if isinstance(body, bytes) else None
        return (Streamed if whole is None else urllib3.HTTPResponse)(
            body=_PieceReader(Pieces(body, http.client.HTTPException)) if whole is None else whole,
            headers=urllib3.HTTPHeaderDict(found.headers),
            status=found.status,
            reason=http.client.responses.get(found.status),
            version=11,
            preload_content=options.get("preload_content", True),
            decode_content=options.get("decode_content", True),
            request_method=sent.method,
        )

    return answer


class _PieceReader(io.BufferedIOBase):
    """The body of a response as a file. `read1` gives what has come."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces, self._iterator, self._left = pieces, iter(pieces), b""

    def readable(self) -> bool:
        return True

    def read1(self, size: int = -1, /) -> bytes:
        piece = self._left or next(filter(None, self._iterator), b"")
        cut = len(piece) if size < 0 else size
        self._left = piece[cut:]
        return piece[:cut]

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return b"".join(iter(self.read1, b""))
        found = bytearray()
        while len(found) < size and (piece := self.read1(size - len(found))):
            found += piece
        return bytes(found)

    def close(self) -> None:
        self._pieces.close()
        super().close()
