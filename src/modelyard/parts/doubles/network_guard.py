"""A guard that keeps a process from reaching other hosts: it replaces Python's sockets and name look-ups."""

import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from ipaddress import ip_address
from typing import Any, Self

from modelyard.parts.doubles.proxy_requests import asked_of_proxy


class LeftLoopback(BaseException):
    """Something tried to reach another host. It is not an `Exception`, so that a client's retry or an application's
    fallback does not handle it as a network error."""


class LoopbackGuard:
    """While it is entered, any attempt of this process to reach or look up another host raises `LeftLoopback`, and so
    does one to have a proxy on loopback reach it.

    `attempts` names the hosts. Leaving raises it once more if it was swallowed, or raised in another thread. Unix
    sockets are allowed. Several guards may be entered at a time, in any order.

        with LoopbackGuard():
            urllib.request.urlopen("https://example.org")  # LeftLoopback: example.org ...
    """

    def __init__(self) -> None:
        self.attempts: list[str] = []

    def check(self) -> None:
        """Raise `LeftLoopback` for the attempts so far, and forget them."""
        attempts = sorted(set(self.attempts))
        self.attempts.clear()
        if attempts:
            raise LeftLoopback(_complaint(", ".join(attempts)))

    def __enter__(self) -> Self:
        with _LOCK:
            if not _ENTERED:
                _PATCHES.enter_context(_guarded_sockets())
            _ENTERED.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with _LOCK:
            _ENTERED.remove(self)
            if not _ENTERED:
                _PATCHES.close()
        if kind is None:
            self.check()


_LOCK = threading.Lock()
_ENTERED: list[LoopbackGuard] = []
_PATCHES = ExitStack()
"""The guards of this process, as sockets belong to the whole process."""


def _complaint(hosts: str) -> str:
    return f"something tried to reach {hosts}; only loopback may be reached here"


def _require_local(host: object) -> None:
    name = host.decode("latin-1") if isinstance(host, bytes | bytearray) else host
    if name is None or not _ENTERED or _is_local(str(name)):
        return
    for guard in list(_ENTERED):
        guard.attempts.append(str(name))
    raise LeftLoopback(_complaint(str(name)))


def _is_local(host: str) -> bool:
    """Return whether this is loopback, no particular address, or a name that never leaves this machine."""
    name = host.rstrip(".").lower()
    if name in ("", "localhost", socket.gethostname().lower()) or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(name.partition("%")[0])
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


# ---- guarded calls ----------------------------------------------------------------------------------------------

HostOf = Callable[..., object]
"""Returns the host that a call would reach, from its arguments; None if it names none."""


def _of_socket(sock: socket.socket, address: Any) -> object:
    if sock.family == getattr(socket, "AF_UNIX", None):
        return None
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return f"an address of {sock.family!r}"
    return address[0] if isinstance(address, tuple) and address else None


def _of_sendto(sock: socket.socket, data: object, *flags_and_address: Any) -> object:
    return _of_socket(sock, flags_and_address[-1]) if flags_and_address else None


def _of_sendmsg(sock: socket.socket, buffers: Any, *ancdata_flags_and_address: Any) -> object:
    address = ancdata_flags_and_address[2:]
    return _of_socket(sock, address[0]) if address else asked_of_proxy(b"".join(buffers))


def _of_sent(sock: object, data: Any, *_: object) -> object:
    return asked_of_proxy(data)


def _of_loop_sent(loop: object, sock: object, data: Any) -> object:
    return asked_of_proxy(data)


def _of_look_up(host: object, *_: object, **__: object) -> object:
    return host


def _of_sockaddr(address: Any, *_: object) -> object:
    return address[0]


def _of_loop_look_up(loop: object, host: object, *_: object, **__: object) -> object:
    return host


def _of_loop_connection(loop: object, factory: object, host: object = None, *_: object, **__: object) -> object:
    return host


def _of_loop_datagrams(
    loop: object, factory: object, local_addr: object = None, remote_addr: Any = None, **_: object
) -> object:
    return remote_addr and remote_addr[0]


_METHODS: dict[str, HostOf] = {
    "connect": _of_socket,
    "connect_ex": _of_socket,
    "sendto": _of_sendto,
    "sendmsg": _of_sendmsg,
    "send": _of_sent,
    "sendall": _of_sent,
}
_TLS: dict[str, HostOf] = {"write": _of_sent, "send": _of_sent}
"""Calls that encrypt what a proxy is asked for."""

_LOOK_UPS: dict[str, HostOf] = {
    "getaddrinfo": _of_look_up,
    "gethostbyname": _of_look_up,
    "gethostbyname_ex": _of_look_up,
    "gethostbyaddr": _of_look_up,
    "getnameinfo": _of_sockaddr,
}
_UVLOOP: dict[str, HostOf] = {
    "getaddrinfo": _of_loop_look_up,
    "create_connection": _of_loop_connection,
    "create_datagram_endpoint": _of_loop_datagrams,
    "sock_sendall": _of_loop_sent,
}
"""Calls of an event loop that bypasses Python's sockets; asyncio's own loops use them."""


@contextmanager
def _guarded_sockets() -> Iterator[None]:
    loop = getattr(sys.modules.get("uvloop"), "Loop", None)  # another thread may be in the middle of importing it
    owners: list[tuple[object, dict[str, HostOf]]] = [(socket.socket, _METHODS), (socket, _LOOK_UPS)]
    owners += [(ssl.SSLSocket, _TLS), (ssl.SSLObject, _TLS)]
    owners += [(loop, _UVLOOP)] if loop is not None else []
    with ExitStack() as stack:
        for owner, judged in owners:
            for name in judged.keys() & set(dir(owner)):
                inherited = name not in vars(owner)
                original = getattr(owner, name)
                setattr(owner, name, _guarded(original, judged[name]))
                stack.callback(*((delattr, owner, name) if inherited else (setattr, owner, name, original)))
        yield


def _guarded(original: Callable[..., Any], host_of: HostOf) -> Callable[..., Any]:
    @wraps(original)
    def guarded(*given: Any, **kwargs: Any) -> Any:
        args = [list(one) if isinstance(one, Iterator) else one for one in given]  # buffers, which are read twice
        _require_local(host_of(*args, **kwargs))
        return original(*args, **kwargs)

    return guarded
