"""A real server on loopback for the unmodified clients: every exchange is checked against the OpenAPI document."""

import asyncio
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from modelyard import Platform, open_platform
from modelyard.asgi import asgi_app
from modelyard.http.interface import Interface
from modelyard.parts.doubles.clients.server import asgi_server
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
    with open_platform() as platform:
        application = Checked(asgi_app(platform, list(Interface), worker=True))
        with asgi_server(application, log_level="warning") as server:
            yield Served(platform, application, server.url, platform.keys.create("acme").secret)


@pytest.fixture(autouse=True)
def _described(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever the client made of it, each exchange of a test was as it is described."""
    served = request.getfixturevalue("served") if "served" in request.fixturenames else None
    yield
    if served is not None:
        faults, served.application.faults = served.application.faults, []
        assert faults == []


@pytest.fixture(scope="module", autouse=True)
def _closed() -> Iterator[None]:
    """No test leaves a transport to the garbage collector, which would warn of it in whatever test runs by then.

    LangChain and LiteLLM keep asynchronous clients when the event loop of these is gone, where nothing can close them
    any more: what is still connected when a loop is closed is closed here.
    """
    close = asyncio.SelectorEventLoop.close

    def with_its_transports(loop: Any) -> None:
        if transports := [*loop._transports.values()]:
            for transport in transports:
                transport.abort()
            loop.run_until_complete(asyncio.sleep(0))  # the turn in which they are gone
        close(loop)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.SelectorEventLoop, "close", with_its_transports)
        yield
