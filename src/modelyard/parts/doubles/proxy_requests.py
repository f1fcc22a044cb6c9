"""What a client asks a proxy for: HTTP's CONNECT and absolute form, SOCKS 4, 4a and 5, recognised by their bytes."""

import re
from ipaddress import ip_address

_HTTP = re.compile(
    rb"(?:CONNECT |[A-Z]+ [A-Za-z]+://(?:[^/@ \r\n]*@)?)(\[[^\]\r\n]+\]|[^:/?# \r\n]+)[^ \r\n]* HTTP/1\.[01]\r\n"
)
_SOCKS5_SIZES = {1: 4, 4: 16}
_LONGEST = 2**16


def asked_of_proxy(data: bytes | bytearray | memoryview) -> str | None:
    """Return the host that these bytes ask a proxy for; None if they are not such a request."""
    sent = bytes(memoryview(data)[:_LONGEST])
    if (found := _HTTP.match(sent)) is not None:
        return found[1].decode("latin-1").strip("[]")
    return {4: _socks4, 5: _socks5}.get(sent[0] if sent else 0, _none)(sent)


def _none(sent: bytes) -> None:
    return None


def _socks4(sent: bytes) -> str | None:
    if len(sent) < 9 or sent[1] not in (1, 2) or sent[-1]:
        return None
    _, *named = sent[8:-1].split(b"\0")
    is_name = not any(sent[4:7]) and sent[7]
    if len(named) != bool(is_name):
        return None
    return named[0].decode("latin-1") if named else str(ip_address(sent[4:8]))


def _socks5(sent: bytes) -> str | None:
    after = 2 + (sent[1] if len(sent) > 1 else 0)
    request = sent[after:] if sent[after : after + 1] == b"\5" else sent  # the greeting may come with it
    if len(request) < 7 or request[1] not in (1, 2, 3) or request[2]:
        return None
    if request[3] == 3:
        return request[5:-2].decode("latin-1") if len(request) == 7 + request[4] else None
    size = _SOCKS5_SIZES.get(request[3])
    return str(ip_address(request[4:-2])) if size is not None and len(request) == 6 + size else None
