"""The pytest plugin of modelyard. It imports nothing of modelyard until one of its fixtures is used.

Override `yard_backend` in a conftest or a test module to choose the backend:

    @pytest.fixture
    def yard_backend():
        return ScriptedBackend(["Paris."])
"""

import re
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic
    from openai import AsyncOpenAI, OpenAI

    from modelyard import Platform
    from modelyard.protocols import AsyncBackend, Backend
    from modelyard.testing import Faults, LoopbackGuard, RequestLog
    from modelyard.testing.clock import ManualClock

OPENED_WITH = {"yard_clock": "clock"}
"""Fixtures that `yard` is opened with if a test, or another of its fixtures, uses them: each with the argument of
`open_platform` that takes its value."""


@pytest.fixture
def yard_backend() -> "Backend | AsyncBackend | None":
    """Return the backend of `yard`. None stands for the platform's defaults: an echo and the tabular base models."""
    return None


@pytest.fixture
def yard_profile() -> str | None:
    """Return the vendor that `yard` is as strict as: "openai", "anthropic", "vllm", or None for that of each format."""
    return None


@pytest.fixture
def yard(
    yard_backend: "Backend | AsyncBackend | None", yard_profile: Any, request: pytest.FixtureRequest
) -> "Iterator[Platform]":
    """Open a fresh platform in memory, and close it at the end of the test.

    `@pytest.mark.yard(settings=Settings(...), backend=...)` gives arguments of `open_platform` for a test, a class or
    a module. The nearest mark that names an argument decides, also over `yard_backend`.
    """
    from attrs import evolve

    from modelyard import Settings, open_platform

    faults = _faults_of(request)
    opener = open_platform if faults is None else faults.open_platform
    options = {"backend": yard_backend, **_marked(request), **_requested(request)}
    if yard_profile == "vllm":
        options["settings"] = evolve(options.get("settings") or Settings(), strict_conversations=False)
    options["observer"] = _observing(request, options.get("observer"))
    with opener(**options) as platform:
        if find_spec("modelyard.parts.doubles") is not None:  # the core works without its parts
            from modelyard.testing import watch_requests

            log = request.node.stash[_LOG] = watch_requests(platform, yard_profile)
            log.faults = faults
        yield platform


def _observing(request: pytest.FixtureRequest, own: Callable[[object], None] | None) -> Callable[[object], None]:
    """Return an observer that notes what the application asks in Python and is refused, and calls the test's `own`."""

    def observe(event: object) -> None:
        if _LOG in request.node.stash:
            request.node.stash[_LOG].note(event)
        if own is not None:
            own(event)

    return observe


@pytest.fixture
def yard_requests(yard: "Platform", request: pytest.FixtureRequest) -> "RequestLog":
    """Return the requests that clients have sent to `yard` in this test, oldest first.

    What was refused, or found no answer, fails the test even if the application swallowed it:
    `yard_requests.allow_refusals(400)` expects it.
    """
    log: RequestLog = request.node.stash[_LOG]
    return log


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark `yard`."""
    config.addinivalue_line("markers", "yard(**options): arguments of open_platform for the fixture `yard`")


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for mark in request.node.iter_markers("yard"):
        if mark.args:
            pytest.fail("the mark yard takes the arguments of open_platform by name: @pytest.mark.yard(settings=...)")
        options = {**mark.kwargs, **options}
    return options


def _requested(request: pytest.FixtureRequest) -> dict[str, Any]:
    wanted = OPENED_WITH.keys() & set(request.fixturenames)
    return {OPENED_WITH[name]: request.getfixturevalue(name) for name in sorted(wanted)}


def _faults_of(request: pytest.FixtureRequest) -> "Faults | None":
    return request.getfixturevalue("yard_faults") if "yard_faults" in request.fixturenames else None


@pytest.fixture
def yard_clock() -> "ManualClock":
    """Return the clock of `yard`, which stands still until the test moves it: `yard_clock.advance(hours=3)`."""
    from modelyard.testing.clock import ManualClock

    return ManualClock()


@pytest.fixture
def yard_sleeps(yard_clock: "ManualClock") -> Iterator[None]:
    """Let what the application sleeps by `time.sleep` or `asyncio.sleep` take no real time: `yard_clock` moves on."""
    from modelyard.parts.doubles.own_sleeps import sleeping_on

    with sleeping_on(yard_clock):
        yield


@pytest.fixture
def yard_faults(yard_clock: "ManualClock", request: pytest.FixtureRequest) -> "Faults":
    """Return the faults of the ports of `yard` and of its clients in process.

    The test fails if a scheduled fault did not occur.
    """
    from modelyard.testing import Faults

    faults = Faults(clock=yard_clock)
    request.node.stash[_FAULTS] = faults
    return faults


@pytest.fixture
def _openai_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the developer's project and headers, which the client would add to every request."""
    monkeypatch.delenv("OPENAI_PROJECT_ID", raising=False)
    monkeypatch.delenv("OPENAI_CUSTOM_HEADERS", raising=False)


@pytest.fixture
def yard_openai(yard: "Platform", _openai_alone: None, request: pytest.FixtureRequest) -> "Iterator[OpenAI]":
    """Create an `openai` client that is connected to `yard` in process, with a key for its entity."""
    from modelyard.testing import openai_client

    with openai_client(yard, faults=_faults_of(request)) as client:
        yield client


@pytest.fixture
def yard_async_openai(yard: "Platform", _openai_alone: None, request: pytest.FixtureRequest) -> "AsyncOpenAI":
    """Create an asynchronous `openai` client in the same way. It holds nothing that must be closed."""
    from modelyard.testing import async_openai_client

    return async_openai_client(yard, faults=_faults_of(request))


@pytest.fixture
def yard_anthropic(yard: "Platform", request: pytest.FixtureRequest) -> "Iterator[Anthropic]":
    """Create an `anthropic` client that is connected to `yard` in process, with a key for its entity."""
    from modelyard.testing import anthropic_client

    with anthropic_client(yard, faults=_faults_of(request)) as client:
        yield client


@pytest.fixture
def yard_async_anthropic(yard: "Platform", request: pytest.FixtureRequest) -> "AsyncAnthropic":
    """Create an asynchronous `anthropic` client in the same way. It holds nothing that must be closed."""
    from modelyard.testing import async_anthropic_client

    return async_anthropic_client(yard, faults=_faults_of(request))


@pytest.fixture
def yard_url(yard: "Platform") -> Iterator[str]:
    """Serve `yard` and return its root URL, such as "http://127.0.0.1:43210", for clients that need a socket.

    They also need a key: `yard.keys.create().secret`.
    """
    from modelyard.testing import served

    with served(yard) as url:
        yield url


@pytest.fixture
def yard_hosts() -> tuple[str, ...]:
    """Return the hosts for which `yard_intercepts` answers: that of OpenAI. Override it to name others."""
    return ("api.openai.com",)


@pytest.fixture
def yard_intercepts(yard: "Platform", yard_hosts: tuple[str, ...], request: pytest.FixtureRequest) -> Iterator[None]:
    """Answer from `yard` what clients of the application's own, wherever they were made, ask of `yard_hosts`."""
    from modelyard.testing import intercept

    with intercept(yard, yard_hosts, faults=_faults_of(request)):
        yield


# ---- recordings --------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that controls `yard_cassette`."""
    parser.getgroup("modelyard").addoption(
        "--yard-record",
        choices=("none", "new", "all"),
        default="none",
        help="what yard_cassette records: nothing, and no other host is reached (default); what is missing; all again",
    )


@pytest.fixture
def yard_cassette(request: pytest.FixtureRequest) -> "Iterator[Callable[..., Backend | AsyncBackend]]":
    """Return a function that replays the test's own cassette, `cassettes/<module>/<test>.jsonl`.

    The folder is next to the test. With `--yard-record`, `yard_cassette(make)` records the answers of the backend that
    `make()` returns, and closes it at the end of the test. Otherwise `make` is not called, and the test fails at any
    attempt to reach another host. Keywords are those of `modelyard.testing.use_cassette`; a second cassette of one test
    has its number in its name.
    """
    from modelyard.testing import use_cassette

    mode = request.config.getoption("--yard-record")
    paths = _cassettes(request)
    if mode == "none":
        request.getfixturevalue("loopback_only")
    with ExitStack() as made:

        def cassette(make: "Callable[[], Backend | AsyncBackend]", **options: Any) -> "Backend | AsyncBackend":
            if mode == "none":
                return use_cassette(next(paths), **options)
            real = make()
            if hasattr(real, "close"):
                made.callback(real.close)
            return use_cassette(next(paths), real, mode=mode, **options)

        yield cassette


_MOST_CHARACTERS = 100


def _cassettes(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Yield the files of the test's cassettes. A name that is not a valid file name gets a checksum, to stay unique."""
    test = request.node.nodeid.partition("::")[2].replace("::", ".")
    name = re.sub(r"[^\w.\[\]-]+", "-", test)[:_MOST_CHARACTERS]
    if name != test:
        name = f"{name}-{crc32(test.encode()):08x}"
    folder = request.path.parent / "cassettes" / request.path.stem
    yield folder / f"{name}.jsonl"
    for number in count(2):
        yield folder / f"{name}-{number}.jsonl"


# ---- loopback ----------------------------------------------------------------------------------------------------

_GUARD = pytest.StashKey["LoopbackGuard"]()
_FAULTS = pytest.StashKey["Faults"]()
_LOG = pytest.StashKey["RequestLog"]()


@pytest.fixture
def loopback_only(request: pytest.FixtureRequest) -> "Iterator[LoopbackGuard]":
    """Fail the test at any attempt to reach or look up another host, even if it is swallowed; the host is named.

    For a whole module: `pytestmark = pytest.mark.usefixtures("loopback_only")`.
    """
    from modelyard.testing import LoopbackGuard

    with LoopbackGuard() as guard:
        request.node.stash[_GUARD] = guard
        yield guard


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Check for what was swallowed, and for unused faults, while the test can still fail, rather than its teardown."""
    __tracebackhide__ = True
    try:
        outcome = yield
    except BaseException:
        if _GUARD in item.stash:
            item.stash[_GUARD].attempts.clear()
        raise
    if _GUARD in item.stash:
        item.stash[_GUARD].check()
    if _FAULTS in item.stash:
        item.stash[_FAULTS].check()
    if _LOG in item.stash:
        item.stash[_LOG].check()
    return outcome


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the requests of a test that failed."""
    report = yield
    if report.failed and _LOG in item.stash and str(item.stash[_LOG]):
        report.sections.append(("requests of this test", str(item.stash[_LOG])))
    return report


def pytest_assertrepr_compare(op: str, left: Any, right: Any) -> list[str] | None:
    """Say what differs where the requests of a test are compared with those that it expects."""
    logs: Any = sys.modules.get("modelyard.parts.doubles.requests.request_log")
    log, wanted = (left, right) if logs and type(left) is logs.RequestLog else (right, left)
    if op != "==" or logs is None or type(log) is not logs.RequestLog or not isinstance(wanted, list | tuple):
        return None
    return ["the requests differ:", *logs.differences(wanted, list(log))]
