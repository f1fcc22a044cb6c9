"""The platform as a WSGI application: it carries bytes between a server and `modelyard.http`, and nothing more. A
client that disconnects in the middle of a stream is noticed at the next write."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import urlsplit

from modelyard.http.endpoint import Endpoint
from modelyard.http.errors import ClientDisconnected, MalformedRequest
from modelyard.http.headers import Header
from modelyard.http.interface import Interface
from modelyard.http.interfaces import STANDARD
from modelyard.http.message import Request
from modelyard.http.router import mounted_path
from modelyard.platform.platform import Platform
from modelyard.protocols import Authenticator

__all__ = [
    "STANDARD",
    "Interface",
    "wsgi_app",
]

Environ = Mapping[str, Any]
StartResponse = Callable[[str, list[Header]], object]

CHUNK = 2**16


def wsgi_app(
    platform: Platform,
    interfaces: Iterable[Interface] = STANDARD,
    authenticator: Authenticator | None = None,
    cors_origins: Iterable[str] = (),
    dashboard: bool = False,
) -> Callable[[Environ, StartResponse], Iterable[bytes]]:
    """Make a WSGI application of the host's platform, for servers with any number of threads.

    `authenticator` identifies callers; without one, the platform's API keys do. `cors_origins` are the origins from
    which browsers may use it, such as `https://app.example.com`; `*` allows all. `dashboard` adds its pages, below
    `/dashboard`.
    """
    endpoint = Endpoint(platform, interfaces, authenticator, cors_origins)
    answering = platform.site(authenticator, api=endpoint) if dashboard else endpoint

    def application(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        response = answering.handle(_request(environ))
        start_response(f"{response.status} {HTTPStatus(response.status).phrase}", response.headers)
        if isinstance(response.body, bytes):
            return [response.body]
        return cast(Iterator[bytes], response.body)

    return application


def _request(environ: Environ) -> Request:
    path = environ.get("PATH_INFO", "")
    root = environ.get("SCRIPT_NAME", "").rstrip("/")
    raw = environ.get("REQUEST_URI") or environ.get("RAW_URI")
    return Request(
        environ["REQUEST_METHOD"],
        mounted_path(urlsplit(raw).path if raw else None, _text(root + path), _text(root)),
        environ.get("QUERY_STRING", ""),
        list(_headers(environ)),
        _body(environ),
        environ.get("wsgi.url_scheme", "http"),
        _text(root),
    )


def _text(path: str) -> str:
    """Decode a path, which WSGI passes as UTF-8 bytes decoded as latin-1."""
    return path.encode("latin-1").decode("utf-8", "replace")


def _headers(environ: Environ) -> Iterator[Header]:
    """Yield the headers but `Connection`: it is the server's, and applications may not answer with one (PEP 3333)."""
    for name, value in environ.items():
        if name.startswith("HTTP_") and name != "HTTP_CONNECTION":
            yield name[5:].replace("_", "-").lower(), value
        elif name in ("CONTENT_TYPE", "CONTENT_LENGTH") and value:
            yield name.replace("_", "-").lower(), value


def _body(environ: Environ) -> Iterator[bytes]:
    source, declared = environ["wsgi.input"], environ.get("CONTENT_LENGTH") or ""
    if declared and not (declared.isascii() and declared.isdigit()):
        raise MalformedRequest("the header Content-Length is not a number")
    if not declared and environ.get("wsgi.input_terminated"):
        while chunk := _read(source, CHUNK):
            yield chunk
    left = int(declared or 0)
    while left:
        chunk = _read(source, min(CHUNK, left))
        if not chunk:
            raise MalformedRequest("the body ended before its declared length")
        left -= len(chunk)
        yield chunk


def _read(source: Any, size: int) -> bytes:
    try:
        chunk: bytes = source.read(size)
    except OSError as error:
        raise ClientDisconnected("the client disconnected while it was sending") from error
    return chunk
