"""A real server on loopback for the unmodified clients: every exchange is checked against the OpenAPI document."""

import socket
import threading
from collections.abc import Iterator

import attrs
import pytest
import uvicorn

from modelyard import Platform, open_platform
from modelyard.asgi import asgi_app
from modelyard.http.route import Interface
from openapi_check import Checked


@attrs.frozen
class Served:
    """A served platform, where it answers, a key for it, and what was not as it is described."""

    platform: Platform
    application: Checked
    root: str
    key: str


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with open_platform() as platform, socket.create_server(("127.0.0.1", 0)) as listener:
        application = Checked(asgi_app(platform, list(Interface), worker=True))
        config = uvicorn.Config(application, log_level="warning")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            key = platform.keys.create("acme").secret
            yield Served(platform, application, f"http://127.0.0.1:{listener.getsockname()[1]}", key)
        finally:
            server.should_exit = True
            thread.join(timeout=30)
            assert not thread.is_alive()


@pytest.fixture(autouse=True)
def _described(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever the client made of it, each exchange of a test was as it is described."""
    served = request.getfixturevalue("served") if "served" in request.fixturenames else None
    yield
    if served is not None:
        faults, served.application.faults = served.application.faults, []
        assert faults == []
