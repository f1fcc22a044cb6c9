"""A connection that fails: what the clients of both libraries raise, and what the platform has heard of it."""

import asyncio
from typing import Any

import httpx
import httpx2
import openai
import pytest

from modelyard import open_platform
from modelyard.errors import ModelyardError, RateLimited
from modelyard.parts.doubles.faults.faults import Cut, Disconnect, Faults, Slow, Timeout
from modelyard.testing import Httpx2Transport, HttpxTransport
from modelyard.testing.clock import ManualClock

HOST = "http://modelyard.invalid"
CHAT = "/inference/v1/chat/completions"
LINES: list[Any] = [
    pytest.param((httpx, HttpxTransport), id="httpx"),
    pytest.param((httpx2, Httpx2Transport), id="httpx2"),
]
HELLO: Any = [{"role": "user", "content": "one two three"}]


class Caller:
    """Sends a request by a client of one line and kind, and reads the answer."""

    def __init__(self, faults: Faults, platform: Any, line: Any, is_async: bool) -> None:
        self.library, transport = line
        self.transport = faults.transport(transport(platform))
        self.headers = {"authorization": f"Bearer {platform.keys.create().secret}"}
        self.is_async = is_async

    def __call__(self, stream: bool) -> tuple[str, Exception | None]:
        """What was read, and how it failed."""
        read: list[str] = []
        try:
            if self.is_async:
                asyncio.run(self._aread(stream, read))
            else:
                self._read(stream, read)
        except Exception as error:
            return "".join(read), error
        return "".join(read), None

    def _asked(self, stream: bool) -> dict[str, Any]:
        return {"model": "echo", "messages": HELLO, "stream": stream}

    def _options(self) -> dict[str, Any]:
        return {"transport": self.transport, "base_url": HOST, "headers": self.headers, "timeout": 60}

    def _read(self, stream: bool, read: list[str]) -> None:
        with self.library.Client(**self._options()) as client:
            with client.stream("POST", CHAT, json=self._asked(stream)) as answer:
                for text in answer.iter_raw():
                    read.append(text.decode())

    async def _aread(self, stream: bool, read: list[str]) -> None:
        async with self.library.AsyncClient(**self._options()) as client:
            async with client.stream("POST", CHAT, json=self._asked(stream)) as answer:
                async for text in answer.aiter_raw():
                    read.append(text.decode())


@pytest.fixture
def platform(faults: Faults) -> Any:
    with faults.open_platform() as platform:
        yield platform


@pytest.fixture(params=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "async")


@pytest.fixture(params=LINES)
def call(request: pytest.FixtureRequest, faults: Faults, platform: Any, is_async: bool) -> Caller:
    return Caller(faults, platform, request.param, is_async)


def booked_requests(platform: Any) -> int:
    return sum(total.requests for total in platform.usage.total())


@pytest.mark.parametrize("stream", [False, True])
def test_with_no_fault_everything_passes(call: Caller, platform: Any, stream: bool) -> None:
    read, error = call(stream)
    assert error is None
    assert ("[DONE]" in read) is stream
    assert booked_requests(platform) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_connection_is_refused_before_the_platform_hears(
    faults: Faults, call: Caller, platform: Any, stream: bool
) -> None:
    faults.connection(Disconnect())
    read, error = call(stream)
    assert isinstance(error, call.library.ConnectError)
    assert (read, booked_requests(platform)) == ("", 0)
    assert call(stream)[1] is None


@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_connection_is_lost_in_the_stream(faults: Faults, call: Caller, platform: Any, after: int) -> None:
    faults.connection(Disconnect(), after=after)
    read, error = call(stream=True)
    assert isinstance(error, call.library.RemoteProtocolError)
    assert read.count("\n\n") == after
    assert "[DONE]" not in read
    assert booked_requests(platform) == 1
    faults.check()


def test_a_connection_is_lost_after_the_stream(faults: Faults, call: Caller) -> None:
    whole, _ = call(stream=True)
    faults.connection(Disconnect(), after=whole.count("\n\n"))
    read, error = call(stream=True)
    assert read.endswith("data: [DONE]\n\n")
    assert isinstance(error, call.library.RemoteProtocolError)


def test_an_answer_is_lost_on_its_way_though_the_platform_has_made_it(
    faults: Faults, call: Caller, platform: Any
) -> None:
    faults.connection(Disconnect(), after=1)
    _, error = call(stream=False)
    assert isinstance(error, call.library.RemoteProtocolError)
    assert booked_requests(platform) == 1


def test_a_stream_that_is_too_short_is_not_broken(faults: Faults, call: Caller) -> None:
    faults.connection(Disconnect(), after=100)
    assert call(stream=True)[1] is None
    assert call(stream=False)[1] is None
    with pytest.raises(AssertionError, match="after 100"):
        faults.check()


@pytest.mark.parametrize("after", [0, 2])
def test_a_time_out_takes_its_time_on_the_clock(faults: Faults, call: Caller, after: int) -> None:
    faults.connection(Timeout(20), after=after)
    read, error = call(stream=True)
    assert isinstance(error, call.library.ReadTimeout)
    assert read.count("\n\n") == after
    assert faults.clock.monotonic() == 20


@pytest.mark.parametrize("after", [0, 2])
def test_a_slow_connection_brings_everything_in_the_end(faults: Faults, call: Caller, after: int) -> None:
    faults.connection(Slow(20), after=after)
    read, error = call(stream=True)
    assert (read.endswith("[DONE]\n\n"), error) == (True, None)
    assert faults.clock.monotonic() == 20


def test_a_fault_of_one_s_own_is_raised_as_it_is(faults: Faults, call: Caller) -> None:
    faults.connection(OSError("no route to host"))
    _, error = call(stream=False)
    assert isinstance(error, OSError)


# ---- the openai client ---------------------------------------------------------------------------------------------


def test_the_client_of_the_same_test_suffers_the_faults_of_its_platform(yard_openai: Any, yard_faults: Faults) -> None:
    client = yard_openai.with_options(max_retries=0)

    def ask() -> Any:
        return client.chat.completions.create(model="echo", messages=HELLO)

    yard_faults.completion(RateLimited("slow down", 2.0))
    with pytest.raises(openai.RateLimitError) as limited:
        ask()
    assert limited.value.response.headers["retry-after"] == "2"
    yard_faults.completion(ModelyardError("lost its mind"))
    with pytest.raises(openai.InternalServerError):
        ask()
    yard_faults.connection(Disconnect())
    with pytest.raises(openai.APIConnectionError):
        ask()
    yard_faults.connection(Timeout(600))
    with pytest.raises(openai.APITimeoutError):
        ask()
    assert ask().choices[0].message.content == "one two three"


def test_the_client_learns_that_a_stream_broke(yard_openai: Any, yard_faults: Faults) -> None:
    def read() -> list[str]:
        seen: list[str] = []
        for chunk in yard_openai.chat.completions.create(model="echo", messages=HELLO, stream=True):
            seen.append(chunk.choices[0].delta.content or "")
        return seen

    yard_faults.completion(Cut(), after=2)
    with pytest.raises(openai.APIError, match="without a finish reason"):
        read()
    yard_faults.connection(Disconnect(), after=2)
    with pytest.raises((openai.APIError, httpx.HTTPError, httpx2.HTTPError)):
        read()
    assert "".join(read()) == "one two three"


def test_the_asynchronous_client_suffers_them_too(yard_async_openai: Any, yard_faults: Faults) -> None:
    async def main() -> None:
        client = yard_async_openai.with_options(max_retries=0)
        yard_faults.connection(Disconnect())
        with pytest.raises(openai.APIConnectionError):
            await client.chat.completions.create(model="echo", messages=HELLO)

    asyncio.run(main())


# ---- the fixtures --------------------------------------------------------------------------------------------------


def test_the_platform_of_the_same_test_goes_by_its_clock(yard: Any, yard_clock: ManualClock) -> None:
    assert yard._runtime.clock is yard_clock


def test_faults_go_by_the_same_clock(yard: Any, yard_faults: Faults, yard_clock: ManualClock) -> None:
    assert yard._runtime.clock is yard_faults.clock is yard_clock


def test_a_platform_without_them_is_an_ordinary_one(yard: Any) -> None:
    assert not isinstance(yard._runtime.clock, ManualClock)
    assert type(yard._runtime.store).__name__ == "MemoryStore"


def test_another_clock_than_that_of_the_faults_is_refused(faults: Faults) -> None:
    with pytest.raises(ValueError, match="clock"):
        faults.open_platform(clock=ManualClock())


@pytest.mark.plugin
def test_a_test_fails_when_a_fault_did_not_come(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from modelyard.errors import Overloaded

        def test_unused(yard, yard_faults):
            yard_faults.completion(Overloaded("full"), at=2)
            yard.chat.complete(model="echo", messages="x")

        def test_fails_by_itself(yard_faults):
            yard_faults.completion(Overloaded("full"))
            assert False, "its own words"
        """
    )
    done = pytester.runpytest_subprocess("-p", "pytest_modelyard", "-p", "no:cacheprovider", "-W", "error")
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(["*did not occur: completion, from call 2 on: Overloaded*", "*its own words*"])


def test_only_what_is_disturbed_is(faults: Faults) -> None:
    faults.connection(Disconnect())
    with open_platform() as platform:
        assert platform.chat.complete(model="echo", messages="ok").text == "ok"
    assert len(faults.unused) == 1
