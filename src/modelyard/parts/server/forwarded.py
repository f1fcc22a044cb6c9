"""A platform behind a proxy that serves it below a prefix, which it takes off: addresses are made with the prefix."""

import re
from collections.abc import Sequence
from functools import lru_cache
from ipaddress import ip_address, ip_network

from modelyard.asgi import Application, Receive, Scope, Send
from modelyard.errors import MissingExtra

try:
    from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
except ImportError as error:
    raise MissingExtra("uvicorn", "serve") from error

LOOPBACK = ("127.0.0.1", "::1")
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)+/?")
_HEADER = b"x-forwarded-prefix"


def check_prefix(prefix: str) -> str:
    """Return a prefix without a slash at its end. Raises ValueError for what is none."""
    if prefix.rstrip("/") and (len(prefix) > 200 or not _PREFIX.fullmatch(prefix) or "/.." in prefix):
        raise ValueError(f"{prefix!r} is not a path such as /ai")
    return prefix.rstrip("/")


def check_proxies(addresses: Sequence[str]) -> tuple[str, ...]:
    """Return addresses and networks of proxies. Raises ValueError for what is neither."""
    return tuple(str(ip_network(address)) if "/" in address else str(ip_address(address)) for address in addresses)


def behind_proxy(app: Application, root: str, proxies: Sequence[str]) -> Application:
    """Return the application below `root`, or the `X-Forwarded-Prefix` of a request of one of the `proxies`.

    Of these it also believes who is their client, and the scheme.
    """
    networks = [ip_network(proxy) for proxy in proxies]
    inner: Application = ProxyHeadersMiddleware(app, trusted_hosts=list(proxies))  # type: ignore[arg-type, assignment]

    @lru_cache(1024)
    def is_proxy(host: str) -> bool:
        try:
            return any(ip_address(host) in network for network in networks)
        except ValueError:
            return False  # a socket of this machine has no address

    def prefix_of(scope: Scope) -> str:
        client = scope.get("client")
        if client is not None and is_proxy(client[0]):
            for name, value in scope["headers"]:
                if name == _HEADER:
                    try:
                        return check_prefix(value.decode("latin-1"))
                    except ValueError:
                        return root
        return root

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (prefix := prefix_of(scope)):
            scope["root_path"], scope["path"] = prefix, prefix + scope["path"]
            scope["raw_path"] = prefix.encode() + scope["raw_path"]
        await inner(scope, receive, send)

    return application
