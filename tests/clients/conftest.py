"""A real server on loopback for the unmodified clients."""

import socket
import threading
from collections.abc import Iterator

import attrs
import pytest
import uvicorn

from modelyard import Platform, open_platform
from modelyard.asgi import asgi_app
from modelyard.http.route import Interface


@attrs.frozen
class Served:
    """A served platform, where it answers, and a key for it."""

    platform: Platform
    root: str
    key: str


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with open_platform() as platform, socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(asgi_app(platform, list(Interface), worker=True), log_level="warning")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            key = platform.keys.create("acme").secret
            yield Served(platform, f"http://127.0.0.1:{listener.getsockname()[1]}", key)
        finally:
            server.should_exit = True
            thread.join(timeout=30)
            assert not thread.is_alive()
