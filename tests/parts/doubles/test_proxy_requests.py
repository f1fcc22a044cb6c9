"""A request for another host is noticed on its way to a proxy on loopback, whatever client sends it."""

import asyncio
import contextlib
import gc
import http.client
import socket
import ssl
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import urllib3
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.parts.doubles.proxy_requests import asked_of_proxy
from modelyard.testing import LeftLoopback, LoopbackGuard
from server_pem import SERVER_PEM

NAME = "models.example.invalid"

HOSTS = st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z]{2,8}){1,3}", fullmatch=True)
PORTS = st.integers(1, 65535)
V4, V6 = st.ip_addresses(v=4), st.ip_addresses(v=6)


@given(HOSTS, PORTS, st.sampled_from(["1.0", "1.1"]))
def test_what_http_asks_a_proxy_for_is_recognised(host: str, port: int, version: str) -> None:
    end = f" HTTP/{version}\r\nHost: {host}\r\n\r\n"
    for line in (f"CONNECT {host}:{port}", f"POST http://{host}:{port}/v1", f"GET HTTPS://user:word@{host}?a=b"):
        assert asked_of_proxy((line + end).encode()) == host
    for line in ("POST /v1", "OPTIONS *", f"GET {host}/x"):
        assert asked_of_proxy((line + end).encode()) is None
    assert asked_of_proxy(f"CONNECT [2001:db8::1]:{port}{end}".encode()) == "2001:db8::1"


@pytest.mark.slow
@given(HOSTS, PORTS, V4, V6, st.binary(max_size=3).filter(lambda user: b"\0" not in user))
def test_what_socks_asks_a_proxy_for_is_recognised(host: str, port: int, four: Any, six: Any, user: bytes) -> None:
    at = port.to_bytes(2, "big")
    name = bytes([len(host)]) + host.encode()
    requests_ = {
        b"\5\1\0\3" + name + at: host,
        b"\5\2\0\2\5\1\0\3" + name + at: host,
        b"\5\1\0\1" + four.packed + at: str(four),
        b"\5\1\0\4" + six.packed + at: str(six),
        b"\4\1" + at + b"\0\0\0\1" + user + b"\0" + host.encode() + b"\0": host,
    }
    if any(four.packed[:3]):
        requests_[b"\4\1" + at + four.packed + user + b"\0"] = str(four)
    assert [asked_of_proxy(memoryview(sent)) for sent in requests_] == list(requests_.values())


@given(st.binary(max_size=40) | st.binary(max_size=12).map(lambda more: b"\5\1\0" + more))
def test_other_bytes_are_read_to_an_end(data: bytes) -> None:
    host = asked_of_proxy(data)
    assert host is None or len(host) <= 255


# ---- clients -----------------------------------------------------------------------------------------------------


def serve(listener: socket.socket, context: ssl.SSLContext | None) -> None:
    with contextlib.suppress(OSError):
        while True:
            with listener.accept()[0] as connection, contextlib.suppress(OSError):
                connection.settimeout(5)
                answer(connection if context is None else context.wrap_socket(connection, server_side=True))


def answer(connection: socket.socket) -> None:
    with connection:
        while connection.recv(4096).startswith(b"\5"):
            connection.sendall(b"\5\0")  # the greeting of SOCKS 5; what asks by HTTP is left alone


@contextlib.contextmanager
def listening(context: ssl.SSLContext | None = None) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=[listener, context], daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def by_requests(url: str, at: str) -> None:
    requests.get(url, proxies={"http": at, "https": at}, timeout=5)


def by_urllib3(url: str, at: str) -> None:
    with urllib3.ProxyManager(at, cert_reqs="CERT_NONE", assert_hostname=False) as pool:
        pool.request("GET", url, retries=False, timeout=5)


def by_http_client(url: str, at: str) -> None:
    with contextlib.closing(http.client.HTTPSConnection(at.partition("://")[2], timeout=5)) as connection:
        connection.set_tunnel(NAME)
        connection.request("GET", "/")


def proxy_of_httpx(at: str) -> httpx.Proxy:
    return httpx.Proxy(at, ssl_context=unchecked() if at.startswith("https:") else None)


def by_httpx(url: str, at: str) -> None:
    with httpx.Client(proxy=proxy_of_httpx(at), timeout=5) as client:
        client.get(url)


def by_asyncio(url: str, at: str) -> None:
    async def ask() -> None:
        async with httpx.AsyncClient(proxy=proxy_of_httpx(at), timeout=5) as client:
            await client.get(url)

    asyncio.run(ask())


def by_aiohttp(url: str, at: str) -> None:
    async def ask() -> None:
        aiohttp = pytest.importorskip("aiohttp")
        async with aiohttp.ClientSession() as session, session.get(url, proxy=at, ssl=unchecked()):
            pass

    asyncio.run(asyncio.wait_for(ask(), 5))


def unchecked() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def socks_of_requests(url: str, at: str) -> None:
    pytest.importorskip("socks")
    by_requests(url, at)


def socks_of_httpx(url: str, at: str) -> None:
    pytest.importorskip("socksio")
    by_httpx(url, at)


def socks_of_aiohttp(url: str, at: str) -> None:
    async def ask() -> None:
        connector = pytest.importorskip("aiohttp_socks").ProxyConnector.from_url(at, rdns=True)
        async with pytest.importorskip("aiohttp").ClientSession(connector=connector) as session, session.get(url):
            pass

    asyncio.run(asyncio.wait_for(ask(), 5))


def sent_in_parts(url: str, at: str) -> None:
    host, _, port = at.partition("://")[2].partition(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendmsg(iter([f"GET {url} HT".encode(), b"TP/1.1\r\n\r\n"]))


Ask = Callable[[str, str], None]
CLIENTS: dict[str, tuple[Ask, str]] = {
    **{f"{ask.__name__}, {url}": (ask, url) for ask in (by_requests, by_urllib3, by_httpx, by_asyncio, by_aiohttp)
       for url in (f"http://{NAME}/v1", f"https://{NAME}/v1")},
    "by_http_client": (by_http_client, ""),
    "sent_in_parts": (sent_in_parts, f"http://{NAME}/v1"),
}  # fmt: skip


def assert_noticed(ask: Ask, url: str, at: str) -> None:
    gc.freeze()  # the collection below looks at what the client leaves, and not at all that other tests have made
    with warnings.catch_warnings(action="ignore"):  # clients clean up after an `Exception`, which `LeftLoopback` is not
        with pytest.raises(LeftLoopback, match=NAME), LoopbackGuard(), contextlib.suppress(Exception):
            ask(url, at)
        gc.collect()


@each_case("client", CLIENTS)
def test_a_request_to_a_proxy_on_loopback_is_noticed(client: str) -> None:
    ask, url = CLIENTS[client]
    with listening() as at:
        assert_noticed(ask, url, f"http://{at}")


@pytest.mark.parametrize("ask", [by_urllib3, by_httpx, by_asyncio, by_aiohttp], ids=lambda ask: ask.__name__)
def test_a_request_to_a_proxy_over_tls_is_noticed(ask: Ask, tmp_path: Path) -> None:
    context, pem = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tmp_path / "server.pem"
    pem.write_text(SERVER_PEM)
    context.load_cert_chain(pem)
    with listening(context) as at:
        assert_noticed(ask, f"https://{NAME}/v1", f"https://{at}")


@each_case("ask", [socks_of_requests, socks_of_httpx, socks_of_aiohttp], ids=lambda ask: ask.__name__)
@each_case("scheme", ["http", "https"])
def test_a_request_to_a_socks_proxy_is_noticed(ask: Ask, scheme: str) -> None:
    with listening() as at:
        kind = "socks5h" if ask is socks_of_requests else "socks5"
        assert_noticed(ask, f"{scheme}://{NAME}/v1", f"{kind}://{at}")


def test_a_proxy_may_be_asked_for_what_is_on_loopback() -> None:
    with listening() as at, LoopbackGuard() as guard:
        for host in ("localhost:9", "127.0.0.1", "[::1]:9"):
            with contextlib.suppress(OSError):
                by_requests(f"http://{host}/v1", f"http://{at}")
    assert guard.attempts == []
