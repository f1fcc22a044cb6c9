"""The pytest plugin of modelyard. It imports nothing of modelyard until a fixture is asked for.

Override `yard_backend` in a conftest or a test module to say what answers:

    @pytest.fixture
    def yard_backend():
        return ScriptedBackend(["Paris."])
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

    from modelyard import Platform
    from modelyard.protocols import AsyncBackend, Backend

OPENED_WITH = {"yard_clock": "clock"}
"""Fixtures that `yard` is opened with when a test, or another of its fixtures, asks for them: each with the argument of
`open_platform` that takes its value."""


@pytest.fixture
def yard_backend() -> "Backend | AsyncBackend | None":
    """What answers on `yard`. None stands for the platform's own: an echo and the tabular base models."""
    return None


@pytest.fixture
def yard(yard_backend: "Backend | AsyncBackend | None", request: pytest.FixtureRequest) -> "Iterator[Platform]":
    """A fresh platform in memory, closed at the end of the test."""
    from modelyard import open_platform

    with open_platform(backend=yard_backend, **_asked_for(request)) as platform:
        yield platform


def _asked_for(request: pytest.FixtureRequest) -> dict[str, Any]:
    wanted = OPENED_WITH.keys() & set(request.fixturenames)
    return {OPENED_WITH[name]: request.getfixturevalue(name) for name in sorted(wanted)}


@pytest.fixture
def yard_openai(yard: "Platform") -> "Iterator[OpenAI]":
    """The real `openai` client, wired to `yard` in process, with a key for its entity."""
    from modelyard.testing import openai_client

    with openai_client(yard) as client:
        yield client


@pytest.fixture
def yard_async_openai(yard: "Platform") -> "AsyncOpenAI":
    """The same as an asynchronous client. It holds nothing that must be closed."""
    from modelyard.testing import async_openai_client

    return async_openai_client(yard)
