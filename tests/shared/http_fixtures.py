"""A platform and a client for each module, in both faces of the endpoint."""

from collections.abc import Iterator
from typing import Any

import pytest

from http_client import Client, client_of
from modelyard.compose import open_platform
from modelyard.platform.platform import Platform


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with open_platform() as platform:
        yield platform


@pytest.fixture(scope="module", params=[False, True], ids=["sync", "async"])
def client(request: pytest.FixtureRequest, platform: Platform) -> Client:
    return client_of(platform, asynchronous=request.param)


@pytest.fixture(scope="session")
def client_for() -> Any:
    """`client_of`, for platforms of a test's own."""
    return client_of
