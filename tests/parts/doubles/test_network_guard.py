"""The guard of loopback: every door of Python's sockets is watched, loopback stays open, and nothing of it is left."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from each import each_case
from modelyard.testing import LeftLoopback, LoopbackGuard

FAR = "192.0.2.1"
NAME = "models.example.invalid"


def unblocked(kind: int = socket.SOCK_STREAM, family: int = socket.AF_INET) -> socket.socket:
    sock = socket.socket(family, kind)
    sock.setblocking(False)
    return sock


def with_socket(use: Callable[[socket.socket], object], **options: Any) -> Callable[[], object]:
    def door() -> None:
        with unblocked(**options) as sock:
            use(sock)

    return door


DATAGRAM = {"kind": socket.SOCK_DGRAM}
DOORS: dict[str, tuple[str, Callable[[], object]]] = {
    "connect": (FAR, with_socket(lambda sock: sock.connect((FAR, 9)))),
    "connect to a name": (NAME, with_socket(lambda sock: sock.connect((NAME, 9)))),
    "connect_ex": (FAR, with_socket(lambda sock: sock.connect_ex((FAR, 9)))),
    "connect over IPv6": ("2001:db8::1", with_socket(lambda s: s.connect(("2001:db8::1", 9)), family=socket.AF_INET6)),
    "sendto": (FAR, with_socket(lambda sock: sock.sendto(b"x", (FAR, 9)), **DATAGRAM)),
    "sendto with flags": (FAR, with_socket(lambda sock: sock.sendto(b"x", 0, (FAR, 9)), **DATAGRAM)),
    "sendmsg": (FAR, with_socket(lambda sock: sock.sendmsg([b"x"], [], 0, (FAR, 9)), **DATAGRAM)),
    "create_connection": (NAME, lambda: socket.create_connection((NAME, 9), timeout=0.1)),
    "getaddrinfo": (NAME, lambda: socket.getaddrinfo(NAME, 9)),
    "getaddrinfo of bytes": (NAME, lambda: socket.getaddrinfo(NAME.encode(), 9)),
    "getaddrinfo by keyword": (NAME, lambda: socket.getaddrinfo(host=NAME, port=9)),
    "gethostbyname": (NAME, lambda: socket.gethostbyname(NAME)),
    "gethostbyname_ex": (NAME, lambda: socket.gethostbyname_ex(NAME)),
    "gethostbyaddr": (FAR, lambda: socket.gethostbyaddr(FAR)),
    "getnameinfo": (FAR, lambda: socket.getnameinfo((FAR, 9), socket.NI_NUMERICSERV)),
}


@each_case("door", DOORS)
def test_a_door_to_another_host_is_shut_and_the_host_named(door: str) -> None:
    host, use = DOORS[door]
    with pytest.raises(LeftLoopback, match=host) as refused, LoopbackGuard() as guard:
        use()
    assert guard.attempts == [host]
    assert "only loopback" in str(refused.value)


async def by_name() -> None:
    await asyncio.open_connection(NAME, 9)


async def by_address() -> None:
    await asyncio.wait_for(asyncio.open_connection(FAR, 9), 0.1)


async def by_look_up() -> None:
    await asyncio.get_running_loop().getaddrinfo(NAME, 9)


async def by_datagram() -> None:
    await asyncio.get_running_loop().create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=(FAR, 9))


@each_case("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@each_case("door", [by_name, by_address, by_look_up, by_datagram], ids=lambda door: door.__name__)
def test_event_loops_are_watched_too(loop: Any, door: Any) -> None:
    with pytest.raises(LeftLoopback, match=f"{NAME}|{FAR}"), asyncio.Runner(loop_factory=loop) as runner:
        with LoopbackGuard():
            runner.run(door())


@each_case("host", ["127.0.0.1", "127.8.9.1", "localhost", "LocalHost.", "a.localhost", "0.0.0.0", ""])
def test_loopback_stays_open(host: str) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server, unblocked() as client, LoopbackGuard():
        with contextlib.suppress(BlockingIOError, socket.gaierror):
            client.connect((host, server.getsockname()[1]))


@each_case("host", ["::1", "::ffff:127.0.0.1", "::1%lo", None, socket.gethostname()])
def test_local_names_and_addresses_are_looked_up(host: str | None) -> None:
    with LoopbackGuard(), contextlib.suppress(socket.gaierror):
        socket.getaddrinfo(host, 9)


@each_case("host", ["127.0.0.1.example.invalid", "localhost.example.invalid", "notlocalhost", "10.0.0.1"])
def test_what_only_looks_local_is_refused(host: str) -> None:
    with pytest.raises(LeftLoopback), LoopbackGuard():
        socket.getaddrinfo(host, 9)


def test_sockets_of_unix_pass(tmp_path: Path) -> None:
    address = str(tmp_path / "yard.sock")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client, LoopbackGuard():
        server.bind(address)
        server.listen()
        client.connect(address)
        client.sendmsg([b"hello"])
        with server.accept()[0] as accepted:
            assert accepted.recv(5) == b"hello"


def test_a_call_with_wrong_arguments_fails_as_ever() -> None:
    with unblocked() as sock, LoopbackGuard():
        with pytest.raises(TypeError):
            sock.connect("no address")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            sock.sendto(b"x")  # type: ignore[call-overload]


def quietly(door: str) -> None:
    with contextlib.suppress(LeftLoopback):
        DOORS[door][1]()


def swallowing() -> None:
    with LoopbackGuard():
        for door in ("connect", "connect_ex", "getaddrinfo"):
            quietly(door)


def in_a_thread() -> None:
    with LoopbackGuard():
        thread = threading.Thread(target=quietly, args=["getaddrinfo"])
        thread.start()
        thread.join()


def failing_otherwise() -> None:
    with LoopbackGuard():
        quietly("getaddrinfo")
        raise ZeroDivisionError


def test_what_was_swallowed_is_raised_at_the_end() -> None:
    with pytest.raises(LeftLoopback, match=f"{FAR}, {NAME};"):
        swallowing()


def test_an_attempt_in_another_thread_is_raised_at_the_end() -> None:
    with pytest.raises(LeftLoopback, match=NAME):
        in_a_thread()


def test_a_failure_of_the_block_is_not_hidden_by_what_was_swallowed() -> None:
    with pytest.raises(ZeroDivisionError):
        failing_otherwise()


def test_nothing_remains() -> None:
    names = ("connect", "connect_ex", "sendto", "sendmsg")
    before = (socket.getaddrinfo, *(getattr(socket.socket, name) for name in names))
    with LoopbackGuard():
        assert socket.getaddrinfo is not before[0]
    assert (socket.getaddrinfo, *(getattr(socket.socket, name) for name in names)) == before
    assert not set(names) & set(vars(socket.socket))


def test_guards_end_in_any_order() -> None:
    before = socket.getaddrinfo
    first, second = LoopbackGuard(), LoopbackGuard()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with pytest.raises(LeftLoopback):
        socket.getaddrinfo(NAME, 9)
    assert (first.attempts, second.attempts) == ([], [NAME])
    second.attempts.clear()
    second.__exit__(None, None, None)
    assert socket.getaddrinfo is before
