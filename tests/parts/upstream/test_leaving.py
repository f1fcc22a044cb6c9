"""A caller who leaves before the answer comes pays for what the server was asked, and for nothing that it was not."""

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any

import attrs
import httpx
import pytest

from each import each_case
from modelyard import Fallback, Pricing, UpstreamBackend, offer, open_platform
from modelyard.backends import VLLM, EchoBackend, Timeouts
from modelyard.errors import BackendError
from modelyard.parts.upstream.fake_vllm.server import EMBEDDINGS
from modelyard.protocols import Capabilities
from modelyard.testing import FakeVllm, Gate, Hold, Refuse, served
from polling import until
from upstream_asking import Hurried

PRICE = Pricing(Decimal("0.001"), Decimal("0.01"))
TEXT = "one two three four"
PROMPT = len(TEXT) // 4 + 1
CAN = Capabilities(embedding_size=256, completions=False)


@pytest.fixture
def fake() -> FakeVllm:
    return FakeVllm(EchoBackend())


@pytest.fixture
def url(fake: FakeVllm) -> Iterator[str]:
    with fake.serve() as url:
        yield f"{url}/v1"


def backend_at(url: str, capabilities: Capabilities = VLLM, **options: Any) -> UpstreamBackend:
    model = offer("echo", context_length=1000, pricing=PRICE, capabilities=capabilities)
    return UpstreamBackend(url, models=[model], **options)


async def whole(platform: Any) -> None:
    await platform.chat.acomplete(model="echo", messages=TEXT, max_tokens=5)


async def streamed(platform: Any) -> None:
    async with platform.chat.astream(model="echo", messages=TEXT, max_tokens=5) as deltas:
        async for _ in deltas:
            pass


async def embedded(platform: Any) -> None:
    await platform.embeddings.acreate(model="echo", input=TEXT)


async def left(task: "asyncio.Task[None]", gone_to: Callable[[], object]) -> None:
    await asyncio.to_thread(gone_to)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def booked(platform: Any) -> list[tuple[int, int, bool, Decimal]]:
    rows = platform.usage.list().page().items
    return [(row.prompt_tokens, row.completion_tokens, row.estimated, row.cost) for row in rows]


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.parametrize("ask", [whole, streamed, embedded])
def test_whoever_leaves_before_the_answer_pays_for_the_prompt(
    fake: FakeVllm, url: str, ask: Callable[[Any], Awaitable[None]], limited: bool
) -> None:
    gate = Gate()
    embeds = ask is embedded
    fake.plan(Hold(gate), **{"path": EMBEDDINGS} if embeds else {})

    async def main(platform: Any) -> None:
        await left(asyncio.ensure_future(ask(platform)), gate.reached)  # type: ignore[arg-type]

    with backend_at(url, CAN if embeds else VLLM) as backend, open_platform(backend=backend) as platform:
        if limited:
            platform.usage.set_budget(10)
        asyncio.run(main(platform))
        (row,) = booked(platform)
        assert row[1:3] == (0, True)
        assert PROMPT <= row[0] <= PROMPT + 2
        assert row[3] == row[0] * PRICE.prompt
        if limited:
            budget = platform.usage.get_budget()
            assert (budget.reserved, budget.spent) == (0, row[3])
    gate.open()


def test_a_client_who_disconnects_from_a_whole_answer_pays_for_the_prompt(fake: FakeVllm, url: str) -> None:
    gate = Gate()
    fake.plan(Hold(gate))
    with backend_at(url) as backend, open_platform(backend=backend) as platform, served(platform) as at:
        key = platform.keys.create("acme").secret
        body = {"model": "echo", "messages": [{"role": "user", "content": TEXT}]}

        async def main() -> None:
            async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}) as client:
                asking = client.post(f"{at}/inference/v1/chat/completions", json=body)
                await left(asyncio.ensure_future(asking), gate.reached)  # type: ignore[arg-type]

        asyncio.run(main())
        until(lambda: booked(platform))
        assert booked(platform) == [(PROMPT, 0, True, PROMPT * PRICE.prompt)]
    gate.open()


def test_a_platform_that_closes_books_what_was_asked(fake: FakeVllm, url: str, tmp_path: Any) -> None:
    gate = Gate()
    fake.plan(Hold(gate))
    with backend_at(url) as backend, ThreadPoolExecutor(1) as threads:
        platform = open_platform(tmp_path / "yard.db", backend=backend)
        asking = threads.submit(platform.chat.complete, model="echo", messages=TEXT)
        gate.reached()
        platform.close()
        gate.open()
        assert asking.exception() is not None
    with open_platform(tmp_path / "yard.db") as platform:
        assert booked(platform) == [(PROMPT, 0, True, PROMPT * PRICE.prompt)]


# ---- what the server was not asked


def test_whoever_leaves_while_waiting_for_a_turn_pays_nothing(fake: FakeVllm, url: str) -> None:
    gate = Gate()
    fake.plan(Hold(gate))

    async def main(platform: Any, backend: UpstreamBackend) -> None:
        first = asyncio.ensure_future(whole(platform))
        await asyncio.to_thread(gate.reached)
        second = asyncio.ensure_future(whole(platform))
        await left(second, lambda: until(lambda: backend._state.limiter._waiting))
        assert booked(platform) == []
        gate.open()
        await first

    with backend_at(url, concurrency=1) as backend, open_platform(backend=backend) as platform:
        asyncio.run(main(platform, backend))
        assert [row[1] for row in booked(platform)] == [4]


@pytest.mark.parametrize("ask", [whole, streamed])
def test_whoever_leaves_after_a_refusal_pays_nothing(fake: FakeVllm, url: str, ask: Any) -> None:
    fake.plan(*[Refuse(503, retry_after=20)] * 3)
    clock = Pausing()

    async def main(platform: Any) -> None:
        await left(asyncio.ensure_future(ask(platform)), lambda: until(lambda: clock.pauses))

    with backend_at(url, clock=clock) as backend, open_platform(backend=backend) as platform:
        asyncio.run(main(platform))
        assert booked(platform) == []


class Pausing(Hurried):
    """A clock whose pauses never end."""

    pauses = 0

    async def asleep(self, seconds: float) -> None:
        self.pauses += 20 <= seconds < 30
        await asyncio.Event().wait()


def test_a_request_that_fails_costs_nothing(fake: FakeVllm, url: str) -> None:
    fake.plan(Refuse(500), Refuse(500), Refuse(500), Refuse(500))
    careful = Timeouts(retries=0)
    with backend_at(url, timeouts=careful) as one, backend_at(url, timeouts=careful) as other:
        with open_platform(backend=Fallback([one, other])) as platform:
            with suppress(BackendError):
                platform.chat.complete(model="echo", messages=TEXT)
            assert booked(platform) == []


def test_a_backend_that_asks_no_server_is_booked_as_before() -> None:
    begun = asyncio.Event

    class Slow(EchoBackend):
        async def astream(self, request: Any, model: Any) -> Any:
            entered.set()
            await asyncio.Event().wait()
            yield

    async def main(platform: Any) -> None:
        task = asyncio.ensure_future(whole(platform))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    entered = begun()
    with open_platform(backend=Slow()) as platform:
        asyncio.run(main(platform))
        assert booked(platform) == []


COUNTED = {"usage": {"prompt_tokens": 900, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 300}}}
ONE = {"token_ids": [5], "logprobs": {"content": [{"token": "hello", "logprob": -0.1}]}}


def said(**more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": "hello"}, **more}]}


@contextmanager
def stalled(*chunks: Any) -> Iterator[str]:
    """A server that sends these chunks of an answer and no more, until the caller has left."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, suppress(ConnectionError):
            connection.recv(65536)
            body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
            connection.sendall(f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{body}".encode())
            while connection.recv(65536):
                pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    thread.join(60)
    assert not thread.is_alive()


def first_three(platform: Any) -> None:
    with platform.chat.stream(model="echo", messages=TEXT, max_tokens=50) as deltas:
        for _ in zip(range(3), deltas, strict=False):
            pass


def first_three_on_a_loop(platform: Any) -> None:
    async def main() -> None:
        async with platform.chat.astream(model="echo", messages=TEXT, max_tokens=50) as deltas:
            for _ in range(3):
                await anext(deltas)

    asyncio.run(main())


@each_case("ask", [first_three, first_three_on_a_loop])
@each_case("details", [ONE, {}], ids=["token by token", "text alone"])
@each_case(
    "chunks",
    [
        [{"choices": [], **COUNTED}, *[said()] * 3],
        [{"type": "message_start", "message": COUNTED}, *[said()] * 3],
        [said() | COUNTED, said(), said()],
        [said() | COUNTED] * 3,
    ],
    ids=["before", "in an object", "with the first", "with each"],
)
def test_whoever_leaves_amid_an_answer_pays_for_what_the_server_has_counted(
    chunks: Any, details: Any, ask: Callable[[Any], None]
) -> None:
    given = [one | {"choices": [choice | details for choice in one.get("choices", [])]} for one in chunks]
    can = VLLM if details else attrs.evolve(VLLM, token_ids=False, logprobs=False, top_logprobs=0)
    with stalled(*given) as url, backend_at(url, can) as backend, open_platform(backend=backend) as platform:
        ask(platform)
        (row,) = platform.usage.list()
    shown = 3 if details else 4  # of fifteen letters, four are estimated
    assert (row.prompt_tokens, row.completion_tokens, row.cached_tokens, row.estimated) == (900, shown, 300, True)
