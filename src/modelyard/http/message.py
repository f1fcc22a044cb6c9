"""A request and a response as values. Adapters (`modelyard.asgi`, `modelyard.wsgi`) carry them and nothing more."""

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import attrs

from modelyard.formats.converter import unstructure
from modelyard.formats.json import loads
from modelyard.http.errors import MalformedRequest

A = TypeVar("A", bound=attrs.AttrsInstance)

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=unstructure)


def dump(value: object) -> bytes:
    """Return one compact JSON text in ASCII of JSON data, in which instances of answer classes may stand anywhere.

    Raises ValueError for NaN, infinities and what has no JSON form.
    """
    return _ENCODER.encode(value).encode("ascii")


def parse(raw: bytes) -> object:
    """Parse the body of a request as JSON. Raises `InvalidInput` at ("body",), never repeating the input."""
    return loads(raw, at=("body",))


Header = tuple[str, str]

Headers = Mapping[str, str]
"""A request's headers by lower-case name."""

SINGULAR = frozenset(
    {"authorization", "content-type", "content-encoding", "content-length", "openai-project", "compat-project"}
)
"""Headers that decide something, and so must not come twice."""


def headers_of(pairs: Sequence[Header]) -> tuple[Headers, set[str]]:
    """Index headers by name, and collect the names that came more than once; the index leaves those out."""
    headers = dict(pairs)
    if len(headers) == len(pairs):
        return headers, set()
    names = [name for name, _ in pairs]
    doubled = {name for name in headers if names.count(name) > 1}
    return {name: value for name, value in headers.items() if name not in doubled}, doubled


def check_singular(doubled: set[str]) -> None:
    """Raise `MalformedRequest` when one of the `SINGULAR` headers came twice."""
    for name in sorted(doubled & SINGULAR):
        raise MalformedRequest(f"the header {name} was sent more than once; send it once")


@attrs.define
class Request:
    """A request of a client.

    `raw_path` is the path as sent, percent-encoded, below the mount point of the platform. `query` is what follows the
    question mark. Header names are lower-case, values latin-1. `body` yields its bytes as they come. `scheme` and
    `root` (the decoded path of the mount point) tell where the platform is reached.
    """

    method: str
    raw_path: str
    query: str
    headers: Sequence[Header]
    body: Iterator[bytes] | AsyncIterator[bytes]
    scheme: str = "http"
    root: str = ""


class Streamed(Enum):
    """The body of a response whose flow emits the body's pieces after it."""

    STREAMED = "streamed"


STREAMED = Streamed.STREAMED


@attrs.define
class Response:
    """A response. A body that is an iterator is closed when the client goes away.

    A handler that is a flow may emit a response whose body is `STREAMED`, and then the body's pieces; what it raises
    before that fails the request.
    """

    status: int
    headers: list[Header]
    body: bytes | Iterator[bytes] | AsyncIterator[bytes] | Streamed


JSON_HEADER = ("content-type", "application/json")
EVENT_STREAM = ("content-type", "text/event-stream; charset=utf-8")


def json_response(value: object, status: int = 200, headers: Iterable[Header] = ()) -> Response:
    """Return a response whose body is an instance of an answer class, or other JSON data."""
    return Response(status, [JSON_HEADER, *headers], dump(value))


def answer_from(cls: type[A], value: object, **members: Any) -> A:
    """Return an instance of an answer class: with these members, and the others from the attributes of `value`."""
    others = (field.name for field in attrs.fields(cls) if field.name not in members)
    return cls(**members, **{name: getattr(value, name) for name in others})
