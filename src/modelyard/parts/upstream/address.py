"""The address of a server, and the requests to it; messages show nothing secret."""

import re
import socket
import ssl
from collections.abc import Mapping
from functools import cached_property
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, quote, urljoin, urlsplit

import attrs

from modelyard.domain.record import EMPTY
from modelyard.errors import InvalidInput, MissingExtra

try:
    import certifi
except ImportError as error:
    raise MissingExtra("certifi", "upstream") from error

_PORTS = {"http": 80, "https": 443}
_OF_PATHS = "/%:@!$&'()*+,;=~"
"""What may stand in a path as it is."""
_OF_QUERIES = _OF_PATHS + "?"


_VERSION = re.compile(r"(api-version=[\w.-]+)?")
"""The query of a URL, which Azure needs. Another one may hold a key."""


def _without_slash(url: str) -> str:
    return url.rstrip("/")


@attrs.frozen
class Address:
    """The base URL of a server, perhaps with a query for each request, and the host's key. Raises `InvalidInput`."""

    url: str = attrs.field(converter=_without_slash)
    api_key: str | None = attrs.field(repr=False)

    def __attrs_post_init__(self) -> None:
        if not _fits(self.url):
            raise InvalidInput.at(
                "url",
                msg="must be like http://host:8000/v1, without a user or fragment; its query may be an api-version; "
                "a key goes into api_key",
            )
        if self.api_key is not None and (not self.api_key or not all("!" <= letter <= "~" for letter in self.api_key)):
            raise InvalidInput.at("api_key", msg="must be visible ASCII characters, and at least one")

    @cached_property
    def host(self) -> str:
        """The name or the IP address of the server."""
        return _ascii(self._parts.hostname or "")

    @cached_property
    def port(self) -> int:
        return self._parts.port or _PORTS[self._parts.scheme]

    @cached_property
    def is_ip(self) -> bool:
        """Whether the host is an IP address, which needs no look-up."""
        try:
            ip_address(self.host)
        except ValueError:
            return False
        return True

    @cached_property
    def tls(self) -> ssl.SSLContext | None:
        """The TLS context that verifies the server by the kept list of authorities, without the environment."""
        if self._parts.scheme == "http":
            return None
        return ssl.create_default_context(cafile=certifi.where())

    def look_up(self) -> list[str]:
        """Return the IP addresses of the host. Blocks; raises `OSError`."""
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(place[4][0]) for place in found))

    def request(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str] = EMPTY, target: str | None = None
    ) -> bytes:
        """Return a request for a path below the URL, with these headers in addition to its own, or for a `target` that
        the server has named.

        Nothing is compressed, so that tokens come as they are sent.
        """
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        place = self._base + path + self._query if target is None else target
        head = f"{method} {place} {self._headers}{more}content-length: {len(body)}\r\n\r\n"
        return head.encode("ascii") + body

    def redirected(self, path: str, location: str) -> str | None:
        """Return the target of the place that the server names instead of a path; None if it is on another server."""
        try:
            found = urlsplit(urljoin(f"{self.origin}{self._base}{path}", location))
            same = (found.scheme, found.hostname, found.port or _PORTS.get(found.scheme)) == self._place
        except ValueError:
            return None
        query = f"?{found.query}" if found.query else ""
        return quote(found.path, safe=_OF_PATHS) + quote(query, safe=_OF_QUERIES) if same else None

    @property
    def shown(self) -> str:
        """The URL without its query, which may hold a key."""
        return self.url.partition("?")[0]

    @property
    def origin(self) -> str:
        """The URL without its path and its query, which may hold a key."""
        return f"{self._parts.scheme}://{self._parts.netloc}"

    @property
    def _place(self) -> tuple[str, str | None, int]:
        return self._parts.scheme, self._parts.hostname, self.port

    @cached_property
    def _query(self) -> str:
        return f"?{quote(self._parts.query, safe=_OF_QUERIES)}" if self._parts.query else ""

    @cached_property
    def _parts(self) -> SplitResult:
        return urlsplit(self.url)

    @cached_property
    def _base(self) -> str:
        return quote(self._parts.path.rstrip("/"), safe=_OF_PATHS)

    @cached_property
    def _headers(self) -> str:
        """The version, and the headers of every request except their length."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        place = host if self._parts.port is None else f"{host}:{self.port}"
        name = "api-key: " if "api-version=" in self._parts.query else "authorization: Bearer "  # Azure has its own
        key = "" if self.api_key is None else f"{name}{self.api_key}\r\n"
        return (
            f"HTTP/1.1\r\nhost: {place}\r\naccept: */*\r\naccept-encoding: identity\r\nconnection: keep-alive\r\n"
            f"user-agent: modelyard\r\ncontent-type: application/json\r\n{key}"
        )


def _ascii(host: str) -> str:
    return host if host.isascii() else host.encode("idna").decode("ascii")


def _fits(url: str) -> bool:
    try:
        parts: Any = urlsplit(url)
        there = parts.scheme in _PORTS and parts.hostname and parts.port != 0 and _ascii(parts.hostname)
    except ValueError:
        return False
    more = parts.username or parts.password or parts.fragment or not _VERSION.fullmatch(parts.query)
    return bool(there) and not more and url.isprintable() and " " not in url
