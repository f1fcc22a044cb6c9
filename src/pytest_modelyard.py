"""The pytest plugin of modelyard. It imports nothing of modelyard until a fixture is asked for.

Override `yard_backend` in a conftest or a test module to say what answers:

    @pytest.fixture
    def yard_backend():
        return ScriptedBackend(["Paris."])
"""

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

    from modelyard import Platform
    from modelyard.protocols import AsyncBackend, Backend
    from modelyard.testing import LoopbackGuard

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
def _openai_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No project and no headers of whoever runs the tests: their client adds them to every request by itself."""
    monkeypatch.delenv("OPENAI_PROJECT_ID", raising=False)
    monkeypatch.delenv("OPENAI_CUSTOM_HEADERS", raising=False)


@pytest.fixture
def yard_openai(yard: "Platform", _openai_alone: None) -> "Iterator[OpenAI]":
    """The real `openai` client, wired to `yard` in process, with a key for its entity."""
    from modelyard.testing import openai_client

    with openai_client(yard) as client:
        yield client


@pytest.fixture
def yard_async_openai(yard: "Platform", _openai_alone: None) -> "AsyncOpenAI":
    """The same as an asynchronous client. It holds nothing that must be closed."""
    from modelyard.testing import async_openai_client

    return async_openai_client(yard)


@pytest.fixture
def yard_url(yard: "Platform") -> Iterator[str]:
    """The root of a server of `yard`, such as "http://127.0.0.1:43210", for clients that need a socket.

    They need a key too: `yard.keys.create().secret`.
    """
    from modelyard.testing import served

    with served(yard) as url:
        yield url


# ---- loopback ----------------------------------------------------------------------------------------------------

_GUARD = pytest.StashKey["LoopbackGuard"]()


@pytest.fixture
def loopback_only(request: pytest.FixtureRequest) -> "Iterator[LoopbackGuard]":
    """The test fails at any attempt to reach or look up another host, also one that is swallowed; the host is named.

    For a whole module: `pytestmark = pytest.mark.usefixtures("loopback_only")`.
    """
    from modelyard.testing import LoopbackGuard

    with LoopbackGuard() as guard:
        request.node.stash[_GUARD] = guard
        yield guard


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Look for swallowed attempts while the test can still fail, rather than its teardown."""
    __tracebackhide__ = True
    try:
        outcome = yield
    except BaseException:
        if _GUARD in item.stash:
            item.stash[_GUARD].attempts.clear()
        raise
    if _GUARD in item.stash:
        item.stash[_GUARD].check()
    return outcome
