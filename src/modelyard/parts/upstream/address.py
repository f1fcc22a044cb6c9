"""The address of a server, and the requests to it; messages show nothing secret."""

import socket
import ssl
from collections.abc import Mapping
from functools import cached_property
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

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


def _without_slash(url: str) -> str:
    return url.rstrip("/")


@attrs.frozen
class Address:
    """The base URL of a server, without a slash at its end, and the host's key. Raises `InvalidInput`."""

    url: str = attrs.field(converter=_without_slash)
    api_key: str | None = attrs.field(repr=False)

    def __attrs_post_init__(self) -> None:
        if not _fits(self.url):
            raise InvalidInput.at(
                "url",
                msg="must be like http://host:8000/v1, without a user, query or fragment; a key goes into api_key",
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

    def request(self, method: str, path: str, body: bytes, headers: Mapping[str, str] = EMPTY) -> bytes:
        """Return a request for a path below the URL, with these headers in addition to its own.

        Nothing is compressed, so that tokens come as they are sent.
        """
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {self._base}{path} {self._headers}{more}content-length: {len(body)}\r\n\r\n"
        return head.encode("ascii") + body

    @cached_property
    def _parts(self) -> SplitResult:
        return urlsplit(self.url)

    @cached_property
    def _base(self) -> str:
        return quote(self._parts.path, safe=_OF_PATHS)

    @cached_property
    def _headers(self) -> str:
        """The version, and the headers of every request except their length."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        place = host if self._parts.port is None else f"{host}:{self.port}"
        key = "" if self.api_key is None else f"authorization: Bearer {self.api_key}\r\n"
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
    more = parts.username or parts.password or parts.query or parts.fragment
    return bool(there) and not more and url.isprintable() and " " not in url
