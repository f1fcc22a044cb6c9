"""A request and a response as values, and the reading of a body: counted, in bounded time, within the route's limit.
Adapters (`modelyard.asgi`, `modelyard.wsgi`) carry them and nothing more."""

import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, time
from enum import Enum
from io import BufferedReader, BytesIO, FileIO
from operator import attrgetter
from typing import Any, BinaryIO, TypeVar, cast

import attrs

from modelyard.domain.catalogue import CatalogueEntry
from modelyard.errors import BodyTooLarge, InvalidInput
from modelyard.formats.converter import unstructure
from modelyard.formats.json import loads
from modelyard.http.errors import BodyTimeout, UnsupportedMedia
from modelyard.http.headers import Header, Headers, RawHeader
from modelyard.platform.artifacts import Spool
from modelyard.protocols import Clock
from modelyard.threads import TenantThreads

A = TypeVar("A", bound=attrs.AttrsInstance)

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=unstructure)


def dump(value: object) -> bytes:
    """Return one compact JSON text in ASCII of JSON data with instances of answer classes anywhere. Raises ValueError
    for NaN, infinities and what has no JSON form."""
    return _ENCODER.encode(value).encode("ascii")


def parse(raw: bytes, call: object = None) -> object:
    return loads(raw, at=("body",))


@attrs.define
class Request:
    """A request of a client. `raw_path` is the path as sent, percent-encoded, below the mount point of the platform.
    `query` follows the question mark. Headers are text in latin-1, or bytes. `body` yields its bytes as they come.
    `scheme` and `root` (the decoded path of the mount point) are the platform's address."""

    method: str
    raw_path: str
    query: str
    headers: Sequence[Header] | Sequence[RawHeader]
    body: Iterator[bytes] | AsyncIterator[bytes]
    scheme: str = "http"
    root: str = ""


class Streamed(Enum):
    """The body of a response that its flow emits in pieces."""

    STREAMED = "streamed"


STREAMED = Streamed.STREAMED


@attrs.define
class Response:
    """A response. A body that is an iterator is closed when the client goes away. A handler that is a flow may emit a
    response with the body `STREAMED`, and then the body's pieces; an exception before that fails the request."""

    status: int
    headers: list[Header]
    body: bytes | Iterator[bytes] | AsyncIterator[bytes] | Streamed


JSON_HEADER = ("content-type", "application/json")
HTML_HEADER = ("content-type", "text/html; charset=utf-8")
PROTOBUF = "application/x-protobuf"
"""The media type of an export, besides JSON."""

EVENT_STREAM = ("content-type", "text/event-stream; charset=utf-8")


def json_response(value: object, status: int = 200, headers: Iterable[Header] = ()) -> Response:
    """Return a response whose body is a value as JSON; attrs classes are objects."""
    return Response(status, [JSON_HEADER, *headers], dump(value))


def deprecation(entry: CatalogueEntry, clock: Clock) -> list[Header]:
    if entry.deprecation_date is None:
        return []
    since = datetime.combine(entry.deprecation_date, time(), UTC)
    return [("deprecation", f"@{int(since.timestamp())}")] if since <= clock.now() else []


def answering(cls: type[A], **sources: str | Callable[[Any], Any]) -> Callable[[Any], A]:
    """Return a function that makes an instance of an answer class from a value: each member is the attribute of its
    name, or of the name in `sources`, or what the function there returns for the value."""
    found = [sources.get(field.name, field.name) for field in attrs.fields(cls)]
    getters = [attrgetter(source) if isinstance(source, str) else source for source in found]
    return lambda value: cls(*[get(value) for get in getters])


def constant(value: object) -> Callable[[Any], object]:
    return lambda _: value


def each(show: Callable[[Any], A], name: str) -> Callable[[Any], tuple[A, ...]]:
    several = attrgetter(name)
    return lambda value: tuple(map(show, several(value)))


@contextmanager
def problems_at(*prefix: str, **moved: str) -> Iterator[None]:
    """Locate the problems of a use case where the client put the values. Locations get `prefix`, except that the
    argument named in `moved` is that member of the body."""
    try:
        yield
    except InvalidInput as wrong:
        raise type(wrong)([attrs.evolve(one, loc=_moved(one.loc, prefix, moved)) for one in wrong.problems]) from None


def _moved(loc: tuple[str | int, ...], prefix: tuple[str, ...], moved: Mapping[str, str]) -> tuple[str | int, ...]:
    if loc and loc[0] in moved:
        return ("body", moved[str(loc[0])], *loc[1:])
    return loc if loc[:1] in (("body",), ("query",)) else (*prefix, *loc)


PATIENCE = 30.0
"""Seconds that any body may take."""

PACE = 2**20
"""Bytes for which a body may take one more second."""

IN_MEMORY = 2**18
Blocking = Iterator[bytes]
AsyncBody = AsyncIterator[bytes]
AnyBody = Blocking | AsyncBody

_JSON = ("application/json", "application/jsonl", "application/x-ndjson", "application/octet-stream")


_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_PARAMETER = re.compile(r';\s*([A-Za-z0-9*_-]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;"]*)')


def boundary_of(content_type: str | None) -> str | None:
    media, _, _ = (content_type or "").partition(";")
    if media.strip().lower() != "multipart/form-data":
        return None
    boundary = header_parameters(content_type or "").get("boundary", "")
    return boundary if _BOUNDARY.fullmatch(boundary) else None


def header_parameters(header: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in _PARAMETER.findall(header):
        text = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
        found.setdefault(name.lower(), text)
    return found


def check_media(headers: Headers, data: bool, form: bool = False) -> None:
    """Check the declared type of a body. Raises `UnsupportedMedia`. A body is JSON in UTF-8, also when no type is
    declared, and not compressed. Data bodies may also be declared as JSON Lines or plain bytes. A form is declared as
    one."""
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding.decode("latin-1").strip().lower() != "identity":
        raise UnsupportedMedia("a compressed body is not accepted; send it without Content-Encoding")
    declared = headers.get(b"content-type")
    if form:
        if boundary_of(headers.text(b"content-type")) is None:
            raise UnsupportedMedia("the body must be a form; send Content-Type: multipart/form-data; boundary=...")
        return
    if declared is None or declared == b"application/json":
        return
    media, _, parameters = declared.decode("latin-1").lower().partition(";")
    if media.strip() not in (_JSON if data else _JSON[:1]) or _charset(parameters) not in ("", "utf-8", "utf8"):
        raise UnsupportedMedia("the body must be JSON in UTF-8; send Content-Type: application/json")


def _charset(parameters: str) -> str:
    _, found, value = parameters.partition("charset=")
    return value.partition(";")[0].strip(' "') if found else ""


def check_length(headers: Headers, limit: int) -> None:
    """Refuse a body of a declared length that is too large, before reading it. Raises `BodyTooLarge`."""
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and (len(declared) > 18 or int(declared) > limit):
        raise BodyTooLarge(limit)


def seconds_for(size: int) -> float:
    """Return how long a body may take of which `size` bytes have come."""
    return PATIENCE + size / PACE


def too_slow() -> BodyTimeout:
    return BodyTimeout(f"the body came too slowly; it may take {PATIENCE:.0f} seconds and one more for each MiB")


def counted(body: Iterator[bytes], limit: int, clock: Clock) -> Iterator[bytes]:
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
    return b"".join(counted(cast(Blocking, body), limit, clock))


async def aread(body: AnyBody, limit: int) -> bytes:
    return b"".join([chunk async for chunk in acounted(cast(AsyncBody, body), limit)])


class SpooledBody:
    """The data of a body as they come: in memory while they are small, then in a temporary file."""

    def __init__(self, files: Spool) -> None:
        self._files, self._chunks, self._size = files, list[bytes](), 0
        self._file: BinaryIO | None = None

    @property
    def in_file(self) -> bool:
        return self._file is not None

    def take(self, chunk: bytes) -> bool:
        """Keep a chunk in memory. Returns whether it is time to `write`."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        return self._size >= IN_MEMORY

    def write(self) -> None:
        self._file = self._file or self._files.scratch()
        self._file.write(b"".join(self._chunks))
        self._chunks, self._size = [], 0

    def whole(self) -> BinaryIO:
        if self._file is None:
            return BytesIO(b"".join(self._chunks))
        self.write()
        self._file.seek(0)
        return cast(BinaryIO, BufferedReader(cast(FileIO, self._file)))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def spool(body: AnyBody, limit: int, clock: Clock, files: Spool) -> BinaryIO:
    spooled = SpooledBody(files)
    try:
        for chunk in counted(cast(Blocking, body), limit, clock):
            if spooled.take(chunk):
                spooled.write()
        return spooled.whole()
    except BaseException:
        spooled.close()
        raise


async def aspool(body: AnyBody, limit: int, files: Spool, threads: TenantThreads) -> BinaryIO:
    """Return the data as a file: received on the event loop, and written piece by piece in a thread."""
    spooled = SpooledBody(files)
    try:
        async for chunk in acounted(cast(AsyncBody, body), limit):
            if spooled.take(chunk):
                await threads.run(spooled.write)
        return await threads.run(spooled.whole) if spooled.in_file else spooled.whole()
    except BaseException:
        spooled.close()
        raise
