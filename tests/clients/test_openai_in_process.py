"""The public `openai` client in process: the fixtures and functions that wire it, on every pinned line."""

import asyncio
import threading
import unittest
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from modelyard import Platform, open_platform
from modelyard.domain.completion import Delta, FinishReason
from modelyard.errors import Overloaded, RateLimited
from modelyard.formats.chat.stream import Chunks
from modelyard.http.chat import routes as completion
from modelyard.parts.doubles.clients import in_process
from modelyard.parts.scripted.backend import ScriptedBackend
from modelyard.testing import LeftLoopback, LoopbackGuard, ManualClock, async_openai_client, intercept, openai_client
from openapi_check import CheckedEndpoint

HELLO: Any = [{"role": "user", "content": "hello from the other side"}]
pytestmark = pytest.mark.usefixtures("loopback_only")


@pytest.fixture(autouse=True)
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every exchange with the client is held against the OpenAPI document; what was not as it says."""
    monkeypatch.setattr(in_process, "Endpoint", CheckedEndpoint)
    monkeypatch.setattr(CheckedEndpoint, "faults", found := [])
    yield found
    assert found == []


def text(answer: Any) -> str:
    return str(answer.choices[0].message.content)


def test_the_client_needs_no_socket_at_all(yard_openai: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("a socket was made")

    monkeypatch.setattr("socket.socket.__init__", refuse)
    assert text(yard_openai.chat.completions.create(model="echo", messages=HELLO)) == "hello from the other side"
    assert "echo" in [model.id for model in yard_openai.models.list()]


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_not_as_described_is_noticed(
    yard_openai: Any, yard_async_openai: Any, faults: list[str], stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "completion_json", lambda *_: b'{"id": 1}')
    monkeypatch.setattr(Chunks, "of", lambda *_: b'data: {"id": 1}\n\n')

    async def main() -> None:
        answer = await yard_async_openai.chat.completions.create(model="echo", messages=HELLO, stream=stream)
        _ = [chunk async for chunk in answer] if stream else answer

    list(yard_openai.chat.completions.create(model="echo", messages=HELLO, stream=stream))
    asyncio.run(main())
    assert [fault.partition(":")[0] for fault in faults] == ["POST /inference/v1/chat/completions"] * 2
    faults.clear()


def test_it_is_the_client_s_own_class_with_its_own_defaults(yard_openai: Any, yard_async_openai: Any) -> None:
    assert type(yard_openai) is openai.OpenAI
    assert type(yard_async_openai) is openai.AsyncOpenAI
    assert yard_openai.max_retries == openai.OpenAI(api_key="x").max_retries
    assert yard_openai.timeout == openai.OpenAI(api_key="x").timeout


def test_both_clients_answer_whole_and_streamed(yard: Platform, yard_openai: Any, yard_async_openai: Any) -> None:
    chunks = yard_openai.chat.completions.create(model="echo", messages=HELLO, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello from the other side"

    async def main() -> tuple[str, str]:
        create = yard_async_openai.chat.completions.create
        whole = await create(model="echo", messages=HELLO)
        stream = await create(model="echo", messages=HELLO, stream=True)
        return text(whole), "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(main()) == ("hello from the other side",) * 2
    assert len(yard.usage.list().page().items) == 3


def test_a_client_that_is_not_wired_is_stopped_before_it_tries_again(loopback_only: LoopbackGuard) -> None:
    with openai.OpenAI(api_key="x", base_url="https://models.example.invalid/v1") as client:
        with pytest.raises(LeftLoopback, match=r"reach models\.example\.invalid;"):
            client.models.list()
    assert loopback_only.attempts == ["models.example.invalid"]
    loopback_only.attempts.clear()


def test_the_key_is_one_of_the_platform_s_entity_and_books_on_it() -> None:
    with open_platform(entity="acme") as platform, openai_client(platform) as client:
        client.chat.completions.create(model="echo", messages=HELLO)
        (key,), (entry,) = platform.keys.list(), platform.usage.list().page().items
        assert (key.entity, entry.entity, entry.key_id) == ("acme", "acme", key.id)
        platform.keys.revoke(key.id)
        with openai_client(platform, api_key=client.api_key) as again, pytest.raises(openai.AuthenticationError):
            again.models.list()


def test_a_given_key_is_used_and_its_limits_hold(yard: Platform) -> None:
    limited = yard.keys.create(requests_per_minute=1)
    with openai_client(yard, api_key=limited.secret, max_retries=0) as client:
        client.chat.completions.create(model="echo", messages=HELLO)
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="echo", messages=HELLO)
    assert [key.id for key in yard.keys.list()] == [limited.key.id]


def test_the_base_url_chooses_the_interface(yard: Platform) -> None:
    with openai_client(yard, base_url="https://api.example.invalid/v1") as client:
        answer: Any = client.chat.completions.create(model="tabular-mini", messages=HELLO, max_tokens=3)
    assert len(answer.choices[0].token_ids) <= 3


def test_options_are_the_client_s_own(yard: Platform) -> None:
    with openai_client(yard, project="local/books", default_headers={"x-request-id": "mine"}) as client:
        raw = client.chat.completions.with_raw_response.create(model="echo", messages=HELLO)
    assert raw.headers["x-request-id"] == "mine"
    assert [entry.project for entry in yard.usage.list().page().items] == ["books"]


@pytest.fixture
def settings_of_a_developer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment of the tests may have."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-real")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://api.example.invalid/v1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj_123")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "Authorization: Bearer sk-real")


@pytest.mark.usefixtures("settings_of_a_developer")
def test_the_environment_changes_nothing(yard_openai: Any, yard_async_openai: Any) -> None:
    copy = yard_openai.with_options(max_retries=0)
    assert text(copy.chat.completions.create(model="echo", messages=HELLO)) == "hello from the other side"
    answer = asyncio.run(yard_async_openai.chat.completions.create(model="echo", messages=HELLO))
    assert text(answer) == "hello from the other side"


def test_errors_arrive_as_the_client_s_own_classes(yard_openai: Any, yard_requests: Any) -> None:
    yard_requests.allow_refusals(404)
    with pytest.raises(openai.NotFoundError, match="nothing-like-it") as missing:
        yard_openai.chat.completions.create(model="nothing-like-it", messages=HELLO)
    assert missing.value.code == "model_not_found"


class TestFailures:
    """What fails once is asked for again by the client itself."""

    @pytest.fixture
    def yard_backend(self) -> ScriptedBackend:
        failures = iter([Overloaded("busy")])

        def answer(request: Any) -> str:
            for failure in failures:
                raise failure
            return "at last"

        return ScriptedBackend(answer)

    def test_the_client_s_own_retries_are_at_work(
        self, yard_openai: Any, yard_backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        answer = yard_openai.chat.completions.create(model="scripted", messages=HELLO)
        assert text(answer) == "at last"
        assert len(yard_backend.requests) == 2


class Endless:
    """A script without end that tells when it was stopped."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def __call__(self, request: Any) -> Iterator[Delta]:
        try:
            for _ in range(100_000):
                yield Delta("word ", 1)
            yield Delta(finish_reason=FinishReason.STOP)
        finally:
            self.stopped.set()


def test_closing_a_stream_stops_the_work_and_books_what_was_said() -> None:
    endless = Endless()
    with open_platform(backend=ScriptedBackend(endless)) as platform, openai_client(platform) as client:
        stream = client.chat.completions.create(model="scripted", messages=HELLO, stream=True, max_tokens=120_000)
        next(stream)
        stream.close()
        assert endless.stopped.is_set()
        (entry,) = platform.usage.list().page().items
        assert 0 < entry.completion_tokens < 100_000


def test_leaving_an_asynchronous_stream_stops_the_work_too() -> None:
    endless = Endless()

    async def main() -> int:
        async with open_platform(backend=ScriptedBackend(endless)) as platform:
            client = async_openai_client(platform)
            create = client.chat.completions.create
            async with await create(model="scripted", messages=HELLO, stream=True, max_tokens=120_000) as stream:
                await anext(stream)
            assert endless.stopped.is_set()
            return platform.usage.list().page().items[0].completion_tokens

    assert 0 < asyncio.run(main()) < 100_000


def test_several_platforms_in_one_test_are_strangers(yard: Platform, yard_openai: Any) -> None:
    with open_platform(backend=ScriptedBackend(["from elsewhere"])) as other, openai_client(other) as client:
        assert text(client.chat.completions.create(model="scripted", messages=HELLO)) == "from elsewhere"
        assert "scripted" not in [model.id for model in yard_openai.models.list()]
        with openai_client(other, api_key=yard_openai.api_key) as stranger, pytest.raises(openai.AuthenticationError):
            stranger.models.list()
    assert not yard.usage.list().page().items


class TestInUnittest(unittest.TestCase):
    """The same without fixtures."""

    def setUp(self) -> None:
        self.enterContext(LoopbackGuard())
        self.platform = self.enterContext(open_platform(backend=ScriptedBackend(["Paris."])))
        self.client = self.enterContext(openai_client(self.platform))

    def test_it_answers(self) -> None:
        assert text(self.client.chat.completions.create(model="scripted", messages=HELLO)) == "Paris."


class TestInAsyncUnittest(unittest.IsolatedAsyncioTestCase):
    """The same without fixtures, on an event loop."""

    async def asyncSetUp(self) -> None:
        self.platform = await self.enterAsyncContext(open_platform())
        self.client = await self.enterAsyncContext(async_openai_client(self.platform))

    async def test_it_answers(self) -> None:
        answer = await self.client.chat.completions.create(model="echo", messages=HELLO)
        assert text(answer) == "hello from the other side"


# ---- retries -------------------------------------------------------------------------------------------------------


def busy() -> Platform:
    answers = [Overloaded("busy", retry_after=20), RateLimited("slow down", retry_after=20), "at last"]
    return open_platform(clock=ManualClock(), backend=ScriptedBackend(answers, ["m"]))


def test_its_retries_pass_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", refuse_to_sleep)
    with busy() as platform, openai_client(platform, max_retries=0) as client:
        assert text(client.with_options(max_retries=2).chat.completions.create(model="m", messages=HELLO)) == "at last"
        assert platform.clock.monotonic() == 40


def test_its_retries_on_a_loop_pass_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anyio.sleep", refuse_to_sleep)
    with busy() as platform:
        answer = asyncio.run(async_openai_client(platform).chat.completions.create(model="m", messages=HELLO))
        assert (text(answer), platform.clock.monotonic()) == ("at last", 40)


def test_retries_of_a_client_of_the_application_pass_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", refuse_to_sleep)
    with busy() as platform, openai.OpenAI(api_key="sk-mine") as client, intercept(platform):
        assert text(client.chat.completions.create(model="m", messages=HELLO)) == "at last"
        assert platform.clock.monotonic() == 40


def refuse_to_sleep(seconds: float) -> None:
    raise AssertionError(f"slept for {seconds} s")
