"""Which addresses may be reached: none of the host's own network, unless the host trusts an endpoint."""

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

import attrs

from modelyard.errors import InvalidInput

MAX_URL = 2000

_NO_V4 = tuple(
    map(
        IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15"),
            *("198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
            "168.63.129.16/32",  # a cloud's own services, by a public address
        ),
    )
)
_V6 = IPv6Network("2000::/3")
_NO_V6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
_NAT64 = ip_network("64:ff9b::/96")

Address = tuple[socket.AddressFamily, tuple[str, int]]
"""A family, and what a socket of it connects to."""

Resolve = Callable[[str, int], Sequence[Address]]


class TargetRefused(Exception):
    """The address of an endpoint may not be reached."""


@attrs.frozen
class WebhookTarget:
    """Where a message is posted: over TLS if `secure`."""

    secure: bool
    host: str
    port: int
    path: str


def target_of(url: str, trusted: bool) -> WebhookTarget:
    """Read the URL of an endpoint. Raises `InvalidInput`, which does not repeat it."""
    split = _split(url)
    if split.scheme not in (("https", "http") if trusted else ("https",)):
        more = "" if trusted else "; only the host may trust one without TLS, with --trusted"
        raise InvalidInput.at("url", msg=f"must begin with https://{more}")
    if not split.hostname or split.username is not None or split.password is not None or split.fragment:
        raise InvalidInput.at("url", msg="must name a host, and have no user, password or fragment")
    secure = split.scheme == "https"
    path = f"{split.path or '/'}{f'?{split.query}' if split.query else ''}"
    return WebhookTarget(secure, split.hostname, _port(split) or (443 if secure else 80), path)


def _split(url: str) -> SplitResult:
    if not isinstance(url, str) or len(url) > MAX_URL or not url.isascii() or any(c <= " " or c == "\x7f" for c in url):
        raise InvalidInput.at("url", msg=f"must be a URL of at most {MAX_URL} ASCII characters")
    try:
        return urlsplit(url)
    except ValueError:
        raise InvalidInput.at("url", msg="must be a URL") from None


def _port(split: SplitResult) -> int | None:
    with suppress(ValueError):
        if split.port != 0:
            return split.port
    raise InvalidInput.at("url", msg="must have a port from 1 to 65535")


def resolve(host: str, port: int) -> Sequence[Address]:
    """Look up the addresses of a host. Raises `OSError`."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, (str(address[0]), port)) for family, _, _, _, address in found]


def allowed(addresses: Sequence[Address], trusted: bool) -> Sequence[Address]:
    """Return addresses that may be reached. Raises `TargetRefused` if one of them may not, and if there are none."""
    if not addresses:
        raise TargetRefused("its host has no address")
    if not trusted and not all(is_public(address) for _, (address, _) in addresses):
        raise TargetRefused("its host is in a network that is not public")
    return addresses


def is_public(address: str) -> bool:
    """Return whether an address is of the public internet, and so are those that it stands for."""
    return all(_is_public(one) for one in _meant(ip_address(address.partition("%")[0])))


def _meant(address: IPv4Address | IPv6Address) -> Iterator[IPv4Address | IPv6Address]:
    """Yield the addresses that one leads to: itself, or the IPv4 address that it holds."""
    if isinstance(address, IPv4Address):
        yield address
        return
    held = address.ipv4_mapped
    if held is None and address in _NAT64:
        held = IPv4Address(int(address) & 0xFFFFFFFF)
    yield held if held is not None else address


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NO_V4)
    return address in _V6 and not any(address in network for network in _NO_V6)
