"""The transports of httpx and httpx2: a request goes to the platform and an answer comes back as over a socket."""

import asyncio
import json
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import httpx2
import pytest

from modelyard import Platform, open_platform
from modelyard.domain.catalogue import CatalogueEntry, Quantization
from modelyard.domain.completion import Delta, FinishReason
from modelyard.http.endpoint import Endpoint
from modelyard.http.interface import Interface
from modelyard.http.message import Response
from modelyard.protocols import Capabilities
from modelyard.testing import Httpx2Transport, HttpxTransport, served

HOST = "http://modelyard.invalid"
CHAT = "/inference/v1/chat/completions"
LINES: list[Any] = [
    pytest.param((httpx, HttpxTransport), id="httpx"),
    pytest.param((httpx2, Httpx2Transport), id="httpx2"),
]


class Talker:
    """A backend of one model that speaks word by word, and tells how far it came and whether it was stopped."""

    blocking = True

    def __init__(self, words: int = 1000) -> None:
        self.words, self.generated, self.stopped = words, 0, 0

    def entries(self) -> tuple[CatalogueEntry, ...]:
        return (CatalogueEntry("talker", "h", "Talker", 0, Quantization.FP32, 10**6, 10**6),)

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities()

    def prompt_tokens(self, request: Any, model: Any) -> int:
        return 1

    def stream(self, request: Any, model: Any) -> Iterator[Delta]:
        try:
            for _ in range(self.words):
                self.generated += 1
                yield Delta("word ", 1)
            yield Delta(finish_reason=FinishReason.STOP)
        finally:
            self.stopped += 1


class AsyncTalker(Talker):
    """The same on an event loop; each word `waits`."""

    def __init__(self, words: int = 1000) -> None:
        super().__init__(words)
        self.waits, self.waiting = asyncio.Event(), asyncio.Event()
        self.waits.set()

    async def astream(self, request: Any, model: Any) -> AsyncIterator[Delta]:
        for delta in self.stream(request, model):
            self.waiting.set()
            await self.waits.wait()
            yield delta


@pytest.fixture(params=LINES)
def line(request: pytest.FixtureRequest) -> Any:
    return request.param


class Yard:
    """A platform, and clients of one line for it."""

    def __init__(self, platform: Platform, line: Any, **options: Any) -> None:
        self.platform = platform
        self.library, transport = line
        self.transport = transport(platform, **options)
        self.headers = {"Authorization": f"Bearer {platform.keys.create().secret}"}

    def client(self) -> Any:
        return self.library.Client(transport=self.transport, base_url=HOST, headers=self.headers)

    def aclient(self) -> Any:
        return self.library.AsyncClient(transport=self.transport, base_url=HOST, headers=self.headers)


def chat(model: str = "echo", **members: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hello there"}], **members}


@pytest.fixture
def requested(yard: Platform, yard_requests: Any, line: Any) -> Yard:
    yard_requests.allow_refusals()
    return Yard(yard, line)


def booked(platform: Platform) -> list[int]:
    return [entry.completion_tokens for entry in platform.usage.list().page().items]


# ---- whole answers -----------------------------------------------------------------------------------------------

REQUESTS: list[dict[str, Any]] = [
    {"method": "GET", "url": "/inference/analysis/partner/models"},
    {"method": "HEAD", "url": "/inference/analysis/partner/models"},
    {"method": "OPTIONS", "url": CHAT},
    {"method": "POST", "url": CHAT, "json": chat()},
    {"method": "POST", "url": CHAT, "json": chat(stream=True)},
    {"method": "POST", "url": CHAT, "json": chat("no-such-model")},
    {"method": "POST", "url": CHAT, "content": b"{", "headers": {"content-type": "application/json"}},
    {"method": "POST", "url": CHAT, "json": chat(), "headers": {"authorization": "Bearer wrong"}},
    {"method": "POST", "url": CHAT, "json": chat(), "headers": {"X-Request-ID": "mine"}},
    {"method": "GET", "url": "/nowhere/at%2Fall?a=%C3%A9&a=2"},
    {"method": "GET", "url": "/inference/v1/models/echo?x=1"},
    {"method": "GET", "url": "/openapi.json?interface=nonsense"},
]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_every_answer_is_as_a_server_gives_it(requested: Yard, asynchronous: bool) -> None:
    with served(requested.platform) as url, requested.library.Client(base_url=url, headers=requested.headers) as remote:
        for request in REQUESTS:
            answer = send(requested, request, asynchronous)
            assert comparable(answer) == comparable(remote.request(**request)), request


def send(requested: Yard, request: dict[str, Any], asynchronous: bool) -> Any:
    if not asynchronous:
        with requested.client() as client:
            return client.request(**request)

    async def main() -> Any:
        async with requested.aclient() as client:
            return await client.request(**request)

    return asyncio.run(main())


def comparable(answer: Any) -> tuple[int, set[str], str]:
    """What does not change from one time to the next, and is not the server's own."""
    names = set(answer.headers) - {"date", "server", "transfer-encoding"}
    text = answer.text
    for event in text.replace("data: ", "").split("\n"):
        if event.startswith("{") and "id" in (found := json.loads(event)):
            text = text.replace(found["id"], "<id>").replace(str(found.get("created")), "<created>")
    return answer.status_code, names, text.replace(answer.headers["x-request-id"], "<request>")


def test_the_interfaces_that_answer_can_be_chosen(yard: Platform, yard_requests: Any, line: Any) -> None:
    yard_requests.allow_refusals(404)
    with Yard(yard, line, interfaces=[Interface.BASE]).client() as client:
        assert client.post(CHAT, json=chat()).status_code == 404
        assert client.get("/inference/analysis/partner/models").status_code == 200


# ---- streams -----------------------------------------------------------------------------------------------------


def test_a_stream_is_passed_on_piece_by_piece(line: Any) -> None:
    talker = Talker()
    with open_platform(backend=talker) as platform, Yard(platform, line).client() as client:
        with client.stream("POST", CHAT, json=chat("talker", stream=True, max_tokens=2000)) as answer:
            heads = answer.iter_bytes()
            generated = []
            for _ in range(5):
                next(heads)
                generated.append(talker.generated)
    assert generated == sorted(set(generated))
    assert generated[-1] < 10


def test_a_client_that_goes_away_stops_the_backend_and_pays_for_what_was_said(line: Any) -> None:
    talker = Talker()
    with open_platform(backend=talker) as platform, Yard(platform, line).client() as client:
        with client.stream("POST", CHAT, json=chat("talker", stream=True, max_tokens=2000)) as answer:
            pieces = answer.iter_bytes()
            for _ in range(5):
                next(pieces)
            assert talker.stopped == 0
        assert talker.stopped == 1
        assert booked(platform) == [talker.generated]
        assert 0 < talker.generated < 10


def test_an_answer_that_is_never_read_is_stopped_too(line: Any) -> None:
    talker = Talker()
    with open_platform(backend=talker) as platform, Yard(platform, line).client() as client:
        with client.stream("POST", CHAT, json=chat("talker", stream=True, max_tokens=2000)):
            pass
        assert talker.stopped == 1
        assert booked(platform) == [talker.generated]


def test_the_same_holds_on_an_event_loop(line: Any) -> None:
    async def main() -> None:
        talker = AsyncTalker()
        async with open_platform(backend=talker) as platform, Yard(platform, line).aclient() as client:
            async with client.stream("POST", CHAT, json=chat("talker", stream=True, max_tokens=2000)) as answer:
                pieces = answer.aiter_bytes()
                for _ in range(5):
                    await anext(pieces)
                assert 0 < talker.generated < 10
            assert talker.stopped == 1
            assert booked(platform) == [talker.generated]

    asyncio.run(main())


def test_a_cancelled_task_is_a_client_that_goes_away(line: Any) -> None:
    async def main() -> None:
        talker = AsyncTalker()
        async with open_platform(backend=talker) as platform, Yard(platform, line).aclient() as client:
            talker.waits.clear()
            asking = asyncio.create_task(client.post(CHAT, json=chat("talker")))
            await talker.waiting.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert talker.stopped == 1
            assert booked(platform) == []

    asyncio.run(main())


def test_a_stream_that_never_waits_lets_other_tasks_have_their_turn(line: Any) -> None:
    talker = Talker(100_000)
    talker.blocking = False

    async def read(client: Any) -> None:
        async with client.stream("POST", CHAT, json=chat("talker", stream=True, max_tokens=200_000)) as answer:
            async for _ in answer.aiter_bytes():
                pass

    async def main() -> None:
        async with open_platform(backend=talker) as platform, Yard(platform, line).aclient() as client:
            reading = asyncio.create_task(read(client))
            while not talker.generated:
                await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert talker.stopped == 1
            assert booked(platform) == [talker.generated]

    asyncio.run(main())


def test_tasks_take_turns_also_where_no_answer_waits(requested: Yard) -> None:
    order: list[str] = []

    async def ask(name: str, client: Any) -> None:
        for _ in range(3):
            await client.post(CHAT, json=chat())
            order.append(name)

    async def main() -> None:
        async with requested.aclient() as client:
            await asyncio.gather(ask("a", client), ask("b", client))

    asyncio.run(main())
    assert order == ["a", "b"] * 3


# ---- bodies and failures -----------------------------------------------------------------------------------------

JSON = {"content-type": "application/json"}


def halves() -> Iterator[bytes]:
    whole = json.dumps(chat()).encode()
    yield whole[:10]
    yield whole[10:]


async def ahalves() -> AsyncIterator[bytes]:
    for half in halves():
        yield half


def test_a_body_may_be_an_iterator(requested: Yard) -> None:
    with requested.client() as client:
        assert client.post(CHAT, content=halves(), headers=JSON).status_code == 200

    async def main() -> None:
        async with requested.aclient() as client:
            assert (await client.post(CHAT, content=ahalves(), headers=JSON)).status_code == 200

    asyncio.run(main())


class OwnFault(Exception):
    """A fault of the test's own code."""


def broken() -> Iterator[bytes]:
    yield b"{"
    raise OwnFault


async def abroken() -> AsyncIterator[bytes]:
    yield b"{"
    raise OwnFault


def test_an_error_of_a_body_is_raised_to_its_client_only(requested: Yard, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    with requested.client() as client, pytest.raises(OwnFault):
        client.post(CHAT, content=broken(), headers=JSON)

    async def main() -> None:
        async with requested.aclient() as client:
            await client.post(CHAT, content=abroken(), headers=JSON)

    with pytest.raises(OwnFault):
        asyncio.run(main())
    assert not caplog.records
    assert booked(requested.platform) == []


def breaking_off(*pieces: bytes) -> Iterator[bytes]:
    yield from pieces
    raise OwnFault


async def abreaking_off(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
    raise OwnFault


def test_an_interrupted_answer_raises_an_error_of_the_library(requested: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ahandle(self: Endpoint, request: Any) -> Response:
        return Response(200, [], abreaking_off(b"half"))

    monkeypatch.setattr(Endpoint, "handle", lambda self, request: Response(200, [], breaking_off(b"half")))
    monkeypatch.setattr(Endpoint, "ahandle", ahandle)
    error = requested.library.RemoteProtocolError
    with requested.client() as client, pytest.raises(error, match="broke off") as failed:
        client.get("/")
    assert isinstance(failed.value.__cause__, OwnFault)

    async def main() -> None:
        async with requested.aclient() as client:
            await client.get("/")

    with pytest.raises(error, match="broke off"):
        asyncio.run(main())


def test_a_platform_that_does_not_answer_raises_an_error_of_the_library(
    requested: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle(self: Endpoint, request: Any) -> Response:
        raise OwnFault

    async def ahandle(self: Endpoint, request: Any) -> Response:
        raise OwnFault

    monkeypatch.setattr(Endpoint, "handle", handle)
    monkeypatch.setattr(Endpoint, "ahandle", ahandle)
    error = requested.library.RemoteProtocolError
    for asynchronous in (False, True):
        with pytest.raises(error, match="disconnected") as failed:
            send(requested, {"method": "GET", "url": "/"}, asynchronous)
        assert isinstance(failed.value.__cause__, OwnFault)


# ---- isolation ---------------------------------------------------------------------------------------------------


def test_platforms_of_one_test_know_nothing_of_each_other(line: Any) -> None:
    with open_platform() as one, open_platform() as other:
        with Yard(one, line).client() as client, Yard(other, line).client() as stranger:
            assert client.post(CHAT, json=chat()).status_code == 200
            assert stranger.post(CHAT, json=chat(), headers=client.headers).status_code == 401
            assert (len(booked(one)), len(booked(other))) == (1, 0)


def test_threads_may_share_a_transport(requested: Yard) -> None:
    together = threading.Barrier(8)

    def ask(number: int) -> str:
        with requested.client() as client:
            together.wait()
            content = {"model": "echo", "messages": [{"role": "user", "content": f"number {number}"}]}
            return str(client.post(CHAT, json=content).json()["choices"][0]["message"]["content"])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [f"number {number}" for number in range(8)]
    assert len(booked(requested.platform)) == 8


def test_an_asynchronous_client_serves_one_event_loop_after_another(requested: Yard) -> None:
    client = requested.aclient()
    for _ in range(2):
        assert asyncio.run(client.post(CHAT, json=chat())).status_code == 200
    asyncio.run(client.aclose())
