"""A caller who leaves before the answer comes pays for what the server was asked, and for nothing that it was not."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from typing import Any

import httpx
import pytest

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
