"""Where a server is, and the options of a client that connects to it; its messages show nothing secret."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs

from modelyard.errors import InvalidInput, MissingExtra

try:
    import httpx
except ImportError as error:
    raise MissingExtra("httpx", "upstream") from error

__all__ = ["Address", "httpx"]
"""httpx is an extra; it is imported from here."""


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

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of an httpx client. The environment, with its proxies and certificates, is not read."""
        verify = httpx.create_ssl_context(trust_env=False) if self.url.startswith("https:") else False
        return {"base_url": self.url, "headers": self._headers, "trust_env": False, "verify": verify}

    @property
    def _headers(self) -> Mapping[str, str]:
        """Headers of every request. Nothing is compressed, so that tokens come as they are sent."""
        headers = {"content-type": "application/json", "accept-encoding": "identity", "user-agent": "modelyard"}
        return headers if self.api_key is None else {**headers, "authorization": f"Bearer {self.api_key}"}


def _fits(url: str) -> bool:
    try:
        parts = urlsplit(url)
        there = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return False
    more = parts.username or parts.password or parts.query or parts.fragment
    return bool(there) and not more and url.isprintable()
