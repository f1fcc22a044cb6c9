"""Clients that would ask a proxy are answered as any other: no byte of an intercepted request reaches the proxy."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2
import openai
import pytest
import requests
import urllib3

from modelyard import Platform, open_platform
from modelyard.testing import intercept

HOST = "api.openai.com"
KEY = {"Authorization": "Bearer sk-of-another-service", "Content-Type": "application/json"}
BODY: Any = {"model": "echo", "messages": [{"role": "user", "content": "one two three"}]}
DATA = json.dumps(BODY).encode()
SOCKET = {"timeout": 5}

Ask = Callable[[str, str], bytes]
"""Sends a chat request to a URL, with a client whose proxy is at an address; returns the body of the answer."""


class Proxy:
    """Accepts connections on loopback, keeps every byte that comes, and closes them."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener, self.seen, self.connections = listener, bytearray(), 0
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    self.connections += 1
                    connection.settimeout(5)
                    self.seen += connection.recv(4096)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy(socket.create_server(("127.0.0.1", 0)))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        yield opened


# ---- clients -----------------------------------------------------------------------------------------------------


def by_requests(url: str, **more: Any) -> bytes:
    return requests.post(url, data=DATA, headers=KEY, timeout=5, **more).content


def by_session(url: str, at: str) -> bytes:
    with requests.Session() as session:
        session.trust_env, session.proxies = False, {"all": at}
        return session.post(url, data=DATA, headers=KEY, timeout=5).content


def by_urllib3(pool: Any, url: str) -> bytes:
    with pool:
        body: bytes = pool.request("POST", url, body=DATA, headers=KEY, retries=False, timeout=5).data
        return body


def by_urllib(url: str, at: str | None) -> bytes:
    handlers = [] if at is None else [urllib.request.ProxyHandler({"http": at, "https": at})]
    asked = urllib.request.Request(url, DATA, KEY)
    with urllib.request.build_opener(*handlers).open(asked, timeout=5) as answer:
        return bytes(answer.read())


def by_tunnel(url: str, at: str) -> bytes:
    scheme, _, rest = url.partition("://")
    kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    with contextlib.closing(kind(at.partition("://")[2], timeout=5)) as connection:
        connection.set_tunnel(rest.partition("/")[0])
        connection.request("POST", "/v1/chat/completions", DATA, KEY)
        return connection.getresponse().read()


def by_absolute_form(url: str, at: str) -> bytes:
    with contextlib.closing(http.client.HTTPConnection(at.partition("://")[2], timeout=5)) as connection:
        connection.connect()
        connection.request("POST", url, DATA, KEY)
        return connection.getresponse().read()


def by_httpx(library: Any, url: str, **options: Any) -> bytes:
    with library.Client(**SOCKET, **options) as client:
        return bytes(client.post(url, content=DATA, headers=KEY).content)


def by_async_httpx(library: Any, url: str, **options: Any) -> bytes:
    async def ask() -> bytes:
        async with library.AsyncClient(**SOCKET, **options) as client:
            return bytes((await client.post(url, content=DATA, headers=KEY)).content)

    return asyncio.run(ask())


def by_aiohttp(url: str, proxy: str | None = None, connector: Any = None, trust_env: bool = True) -> bytes:
    aiohttp = pytest.importorskip("aiohttp")

    async def ask() -> bytes:
        more = {} if connector is None else {"connector": connector()}
        async with aiohttp.ClientSession(trust_env=trust_env, **more) as session:
            async with session.post(url, data=DATA, headers=KEY, proxy=proxy) as answer:
                return bytes(await answer.read())

    return asyncio.run(asyncio.wait_for(ask(), 10))


def by_openai(url: str, http_client: Any = None) -> bytes:
    base = url.partition("/chat")[0]
    with openai.OpenAI(api_key="sk-mine", base_url=base, http_client=http_client, max_retries=0) as client:
        return client.chat.completions.create(**BODY).to_json().encode()


def by_async_openai(url: str, http_client: Any = None) -> bytes:
    async def ask() -> bytes:
        base = url.partition("/chat")[0]
        made = openai.AsyncOpenAI(api_key="sk-mine", base_url=base, http_client=http_client, max_retries=0)
        async with made as client:
            return (await client.chat.completions.create(**BODY)).to_json().encode()

    return asyncio.run(ask())


def mounts(library: Any, at: str, kind: str) -> dict[str, Any]:
    return {f"{scheme}://": getattr(library, kind)(proxy=at) for scheme in ("http", "https")}


FROM_ENVIRONMENT: dict[str, Callable[[str], bytes]] = {
    "requests": by_requests,
    "urllib.request": lambda url: by_urllib(url, None),
    "httpx": lambda url: by_httpx(httpx, url),
    "httpx2": lambda url: by_httpx(httpx2, url),
    "httpx on a loop": lambda url: by_async_httpx(httpx, url),
    "httpx2 on a loop": lambda url: by_async_httpx(httpx2, url),
    "aiohttp": by_aiohttp,
    "openai": by_openai,
    "openai on a loop": by_async_openai,
}

FROM_CLIENT: dict[str, Ask] = {
    "requests, proxies=": lambda url, at: by_requests(url, proxies={"http": at, "https": at}),
    "requests, proxies of the session": by_session,
    "urllib3.ProxyManager": lambda url, at: by_urllib3(urllib3.ProxyManager(at), url),
    "urllib3.ProxyManager that forwards": lambda url, at: by_urllib3(
        urllib3.ProxyManager(at, use_forwarding_for_https=True), url
    ),
    "urllib3.ProxyManager over TLS": lambda url, at: by_urllib3(
        urllib3.ProxyManager(at.replace("http:", "https:"), cert_reqs="CERT_NONE"), url
    ),
    "urllib3.ProxyManager over TLS that forwards": lambda url, at: by_urllib3(
        urllib3.ProxyManager(at.replace("http:", "https:"), use_forwarding_for_https=True), url
    ),
    "urllib3.proxy_from_url": lambda url, at: by_urllib3(urllib3.proxy_from_url(at), url),
    "urllib.request.ProxyHandler": by_urllib,
    "http.client, a tunnel": by_tunnel,
    **{
        f"{library.__name__}, {name}": (lambda url, at, library=library, ask=ask: ask(library, url, at))
        for library in (httpx, httpx2)
        for name, ask in {
            "proxy=": lambda library, url, at: by_httpx(library, url, proxy=at),
            "mounts": lambda library, url, at: by_httpx(library, url, mounts=mounts(library, at, "HTTPTransport")),
            "transport": lambda library, url, at: by_httpx(library, url, transport=library.HTTPTransport(proxy=at)),
            "without the environment": lambda library, url, at: by_httpx(library, url, proxy=at, trust_env=False),
            "proxy= on a loop": lambda library, url, at: by_async_httpx(library, url, proxy=at),
            "mounts on a loop": lambda library, url, at: by_async_httpx(
                library, url, mounts=mounts(library, at, "AsyncHTTPTransport")
            ),
        }.items()
    },
    "aiohttp, proxy=": lambda url, at: by_aiohttp(url, at, trust_env=False),
    "openai, its http_client": lambda url, at: by_openai(url, openai.DefaultHttpxClient(proxy=at)),
    "openai on a loop, its http_client": lambda url, at: by_async_openai(url, openai.DefaultAsyncHttpxClient(proxy=at)),
}


def socks_of_urllib3(url: str, at: str) -> bytes:
    return by_urllib3(pytest.importorskip("urllib3.contrib.socks").SOCKSProxyManager(at), url)


def socks_of_aiohttp(url: str, at: str) -> bytes:
    return by_aiohttp(url, connector=lambda: pytest.importorskip("aiohttp_socks").ProxyConnector.from_url(at))


def with_module(name: str, ask: Ask) -> Ask:
    def checked(url: str, at: str) -> bytes:
        pytest.importorskip(name)
        return ask(url, at)

    return checked


SOCKS: dict[str, Ask] = {
    "requests": with_module("socks", lambda url, at: by_requests(url, proxies={"http": at, "https": at})),
    "urllib3": with_module("socks", socks_of_urllib3),
    "httpx": with_module("socksio", lambda url, at: by_httpx(httpx, url, proxy=at)),
    "httpx2": with_module("socksio", lambda url, at: by_httpx(httpx2, url, proxy=at)),
    "httpx on a loop": with_module("socksio", lambda url, at: by_async_httpx(httpx, url, proxy=at)),
    "aiohttp": socks_of_aiohttp,
}

# ---- the matrix --------------------------------------------------------------------------------------------------

each_scheme = pytest.mark.parametrize("scheme", ["http", "https"])


def held_back(ask: Callable[[str], bytes], scheme: str, platform: Platform, proxy: Proxy) -> None:
    """Assert that the platform answers, and that the proxy is not even connected to."""
    with intercept(platform, hosts=[HOST]):
        answer = json.loads(ask(f"{scheme}://{HOST}/v1/chat/completions"))
    assert answer["choices"][0]["message"]["content"] == "one two three"
    assert (bytes(proxy.seen), proxy.connections) == (b"", 0)


def notices(ask: Callable[[str], bytes], scheme: str, proxy: Proxy) -> bool:
    """Return whether the proxy would notice this client's request to another host: else the test proves nothing."""
    with contextlib.suppress(Exception):
        ask(f"{scheme}://models.example/v1/chat/completions")
    return proxy.connections > 0


VARIABLES = [
    (*variables, *more)
    for variables in [("HTTP_PROXY", "HTTPS_PROXY"), ("http_proxy", "https_proxy"), ("ALL_PROXY",), ("all_proxy",)]
    for more in [(), ("NO_PROXY",)]
]


@pytest.mark.parametrize("name", FROM_ENVIRONMENT)
@each_scheme
def test_no_byte_reaches_a_proxy_of_the_environment(
    name: str, scheme: str, platform: Platform, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variables in VARIABLES:
        with monkeypatch.context() as environment:
            for variable in variables:
                named = "localhost,other.example" if variable == "NO_PROXY" else f"http://{proxy.address}"
                environment.setenv(variable, named)
            held_back(FROM_ENVIRONMENT[name], scheme, platform, proxy)
    with monkeypatch.context() as environment:
        environment.setenv(f"{scheme}_proxy", f"http://{proxy.address}")
        assert notices(FROM_ENVIRONMENT[name], scheme, proxy)


@pytest.mark.parametrize("name", FROM_CLIENT)
@each_scheme
def test_no_byte_reaches_a_proxy_of_the_client(name: str, scheme: str, platform: Platform, proxy: Proxy) -> None:
    at = f"http://{proxy.address}"
    held_back(lambda url: FROM_CLIENT[name](url, at), scheme, platform, proxy)
    assert notices(lambda url: FROM_CLIENT[name](url, at), scheme, proxy)


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "socks5") for name in SOCKS), ("requests", "socks5h"), ("urllib3", "socks4")]
)
@each_scheme
def test_no_byte_reaches_a_socks_proxy(name: str, kind: str, scheme: str, platform: Platform, proxy: Proxy) -> None:
    held_back(lambda url: SOCKS[name](url, f"{kind}://{proxy.address}"), scheme, platform, proxy)


def test_a_connection_that_was_opened_before_sends_no_byte_of_the_request(platform: Platform, proxy: Proxy) -> None:
    with intercept(platform, hosts=[HOST]):
        said = by_absolute_form(f"http://{HOST}/v1/chat/completions", f"http://{proxy.address}")
    assert (b"one two three" in said, bytes(proxy.seen)) == (True, b"")
