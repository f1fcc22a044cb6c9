"""No client writes a traceback into the log of a real server, whatever it does with its connection."""

import io
import json
import logging
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from modelyard import Platform
from modelyard.asgi import asgi_app
from modelyard.backends.echo import EchoBackend
from modelyard.compose import open_platform
from modelyard.http.interface import Interface
from modelyard.parts.doubles.clients.server import asgi_server

CHAT = "/inference/v1/chat/completions"
RESET = struct.pack("ii", 1, 0)


class Served:
    """A platform on a real server; `ended` counts the requests whose application has returned."""

    def __init__(self, url: str, key: str) -> None:
        self.place, self.key, self.ended = urlsplit(url), key, threading.Semaphore(0)

    def connect(self) -> socket.socket:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((self.place.hostname, self.place.port))
        return client

    def begin(self, path: str, body: bytes, length: int | None = None) -> socket.socket:
        """Send a request with this declared length."""
        client = self.connect()
        lines = f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {self.key}"
        head = "\r\n".join((*lines, f"Content-Length: {len(body) if length is None else length}", "", ""))
        client.sendall(head.encode() + body)
        return client

    def wait(self) -> None:
        """Wait until the application has done with a request."""
        assert self.ended.acquire(timeout=60)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What the server and the platform log from INFO on."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield written
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def served() -> Iterator[Served]:
    with open_platform(backend=EchoBackend(context_length=10**7)) as platform:
        app = asgi_app(platform)

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            try:
                await app(scope, receive, send)
            finally:
                if scope["type"] == "http":
                    served.ended.release()

        with asgi_server(counted) as server:
            served = Served(server.url, platform.keys.create("acme").secret)
            yield served


def chat(words: int, **more: Any) -> bytes:
    return json.dumps({"model": "echo", "messages": [{"role": "user", "content": "word " * words}], **more}).encode()


@pytest.mark.parametrize("path", [CHAT, "/v1/preview/datasets?project=p&name=d"])
@pytest.mark.parametrize("size", [10, 600_000])
@pytest.mark.parametrize("reset", [False, True])
def test_a_body_that_is_broken_off(served: Served, log: io.StringIO, path: str, size: int, reset: bool) -> None:
    client = served.begin(path, b"{" + b" " * size, length=10**6)
    if reset:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()
    served.wait()
    assert_quiet(log)


def test_a_connection_that_is_reset_in_the_middle_of_a_stream(served: Served, log: io.StringIO) -> None:
    client = served.begin(CHAT, chat(200_000, stream=True))
    assert client.recv(100)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()
    served.wait()
    assert_quiet(log)


def test_a_client_that_does_not_read(served: Served, log: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelyard.asgi.STALLED", 0.05)
    client = served.begin(CHAT, chat(1_000_000, stream=True))
    served.wait()
    assert_quiet(log, "a client has read nothing for 0 seconds; its connection is closed")
    with client, suppress(ConnectionError):  # a closed connection does as well as one that is reset
        while client.recv(2**20):
            pass


def assert_quiet(log: io.StringIO, *lines: str) -> None:
    written = [line for line in log.getvalue().splitlines() if "HTTP/1.1" not in line]
    noise = ("Started server", "Waiting for", "Application startup", "Uvicorn running", "ASGI 'lifespan'")
    assert [line for line in written if not line.startswith(noise)] == list(lines)


def served_without_access_log(platform: Platform) -> Any:
    """Serve with the level named: another server of this process may have left another one."""
    return asgi_server(asgi_app(platform, tuple(Interface)), access_log=False)


@pytest.mark.parts
def test_the_access_log_has_no_address_of_an_upload(log: io.StringIO) -> None:
    secret, logger = "5" * 64, logging.getLogger("modelyard.access")
    logger.setLevel(logging.INFO)
    try:
        with open_platform() as platform, served_without_access_log(platform) as server:
            served = Served(server.url, "none")
            for path in (f"/uploads/files/{secret}", f"/below/uploads/manifests/{secret}?x={secret[:9]}"):
                with served.begin(path, b"") as client:
                    assert client.recv(100)
    finally:
        logger.setLevel(logging.NOTSET)
    lines = [line for line in log.getvalue().splitlines() if "method=POST" in line]
    assert len(lines) == 2
    assert "route=- status=405" in lines[0]
    assert "route=- status=404" in lines[1]
    assert secret[:9] not in log.getvalue()
