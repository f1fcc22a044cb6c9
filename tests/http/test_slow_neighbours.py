"""No caller waits for another's slow line: not for a body that trickles in, nor for a backend that does not answer."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from modelyard.backends.echo import EchoBackend
from modelyard.backends.router import Router
from modelyard.clock import SystemClock
from modelyard.compose import open_platform
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.http.endpoint import Endpoint
from modelyard.http.message import IN_MEMORY, Request, Response
from modelyard.parts.upstream.fallback import Fallback
from modelyard.protocols import Running, ServedModel
from modelyard.threads import FairPool

pytestmark = pytest.mark.slow

MANY = 64
UPLOAD = "project=p&name=d"


class Stalling(EchoBackend):
    """A backend that blocks: for the tenants of prompts with "stall" until `gate` opens, for others not at all."""

    blocking = True

    def __init__(self, *models: str) -> None:
        super().__init__(models)
        self.gate, self.stalled = threading.Event(), threading.Semaphore(0)

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        if request.messages[0].text == "stall":
            self.stalled.release()
            assert self.gate.wait(60)
        return super().stream(request, model)


class Yard:
    """A platform in a file, with an endpoint, with the stalling backend `slow`; `plain` blocks, but does not stall."""

    def __init__(self, path: Path, fallback: bool = False) -> None:
        self.slow = Stalling("slow")
        slow: Any = Fallback([self.slow, EchoBackend(("slow",))]) if fallback else self.slow
        self.platform = open_platform(path, backend=Router([slow, Stalling("plain"), EchoBackend()]))
        self.endpoint = Endpoint(self.platform)
        self.greedy, self.modest = (self.platform.keys.create(entity).secret for entity in ("greedy", "modest"))

    async def send(self, key: str, method: str, path: str, body: AsyncIterator[bytes], query: str = "") -> Response:
        headers = [("authorization", f"Bearer {key}")]
        return await self.endpoint.ahandle(Request(method, path, query, headers, body))

    async def chat(self, key: str, model: str, content: str = "hello", stream: bool = False) -> str:
        body = {"model": model, "messages": [{"role": "user", "content": content}], "stream": stream}
        response = await self.send(key, "POST", "/inference/v1/chat/completions", pieces(json.dumps(body).encode()))
        assert response.status == 200, response.body
        if isinstance(response.body, bytes):
            return str(json.loads(response.body)["choices"][0]["message"]["content"])
        return "".join([piece.decode() async for piece in response.body])  # type: ignore[union-attr]

    async def modest_tenant_is_served(self) -> None:
        """Identify a caller for the first time, and have every kind of work done for it."""
        key = await self.platform.threads.store.of("host").run(lambda: self.platform.keys.create("modest").secret)
        assert (await self.send(key, "GET", "/v1/preview/training-jobs", pieces())).status == 200
        for model in ("slow", "plain", "echo"):
            assert await self.chat(key, model) == "hello"
        assert "[DONE]" in await self.chat(key, "plain", stream=True)
        rows = b'{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}\n'
        large = pieces(*[rows * 1000] * (2 * IN_MEMORY // len(rows * 1000) + 1))
        assert (await self.send(key, "POST", "/v1/preview/datasets", large, UPLOAD)).status == 200


async def pieces(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        await asyncio.sleep(0)
        yield chunk


async def reached(semaphore: threading.Semaphore, count: int) -> None:
    for _ in range(count):
        while not semaphore.acquire(blocking=False):
            await asyncio.sleep(0)


@asynccontextmanager
async def busy_host() -> AsyncIterator[None]:
    """A loop whose default executor the host keeps busy: it is not ours to use."""
    gate, executor = threading.Event(), ThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(executor)
    held = loop.run_in_executor(None, gate.wait)
    try:
        yield
    finally:
        gate.set()
        await held


@pytest.fixture
def yard(yard_file: Path) -> Iterator[Yard]:
    yard = Yard(yard_file)
    with yard.platform:
        yield yard


def test_slow_uploads_of_one_key_keep_no_other_waiting(yard: Yard) -> None:
    arrived, go_on = threading.Semaphore(0), asyncio.Event()

    async def slow_body() -> AsyncIterator[bytes]:
        yield b'{"messages":[{"role":"user","content":"' + b"x" * 2 * IN_MEMORY
        arrived.release()
        await go_on.wait()
        yield b'"},{"role":"assistant","content":"b"}]}\n'

    async def main() -> list[Response]:
        async with busy_host():
            sends = [yard.send(yard.greedy, "POST", "/v1/preview/datasets", slow_body(), UPLOAD) for _ in range(MANY)]
            uploads = [asyncio.create_task(send) for send in sends]
            await reached(arrived, MANY)
            await yard.modest_tenant_is_served()
            assert not any(upload.done() for upload in uploads)
            go_on.set()
            return await asyncio.gather(*uploads)

    assert {response.status for response in asyncio.run(main())} == {200}


@pytest.mark.parametrize("fallback", [False, True], ids=["alone", "in a fallback"])
def test_stalled_calls_of_a_backend_keep_no_other_waiting(yard_file: Path, fallback: bool) -> None:
    yard = Yard(yard_file, fallback)

    async def main() -> list[str]:
        async with busy_host():
            calls = [asyncio.create_task(yard.chat(yard.greedy, "slow", "stall")) for _ in range(MANY)]
            await reached(yard.slow.stalled, MANY)
            await yard.modest_tenant_is_served()
            assert not any(call.done() for call in calls)
            yard.slow.gate.set()
            return await asyncio.gather(*calls)

    with yard.platform:
        assert asyncio.run(main()) == ["stall"] * MANY


def test_stalled_calls_in_process_keep_no_other_waiting(yard: Yard) -> None:
    async def main() -> None:
        complete = yard.platform.chat.acomplete
        async with busy_host():
            calls = [asyncio.create_task(complete(model="slow", messages="stall")) for _ in range(MANY)]
            await reached(yard.slow.stalled, MANY)
            assert (await complete(model="plain", messages="hello", entity="modest")).text == "hello"
            await yard.modest_tenant_is_served()
            assert not any(call.done() for call in calls)
            yard.slow.gate.set()
            assert [answer.text for answer in await asyncio.gather(*calls)] == ["stall"] * MANY

    asyncio.run(main())


def test_a_tenant_with_too_many_stalled_calls_is_refused_alone(yard: Yard) -> None:
    async def main() -> None:
        calls = [asyncio.create_task(yard.chat(yard.greedy, "slow", "stall")) for _ in range(128)]
        await reached(yard.slow.stalled, 128)
        yard.platform._runtime.threads.backends._most_waiting = 2
        calls += [asyncio.create_task(yard.chat(yard.greedy, "slow", "stall")) for _ in range(2)]
        while len(yard.platform._runtime.threads.backends._lines.get("greedy", ())) != 2:
            await asyncio.sleep(0)
        body = {"model": "slow", "messages": [{"role": "user", "content": "stall"}]}
        path = "/inference/v1/chat/completions"
        refused = await yard.send(yard.greedy, "POST", path, pieces(json.dumps(body).encode()))
        assert (refused.status, dict(refused.headers)["retry-after"]) == (503, "1")
        await yard.modest_tenant_is_served()
        yard.slow.gate.set()
        await asyncio.gather(*calls)

    asyncio.run(main())


class Held:
    """An executor that takes jobs and does nothing with them."""

    isolates = False

    def submit(self, claim: Any, run: Any, needs: Any) -> str:
        return str(claim.job_id)

    def states(self, handles: Any) -> Any:
        return {handle: Running() for handle in handles}

    def cancel(self, handle: str) -> None:
        pass

    def reattach(self, handle: str, alive: bool) -> bool:
        return True

    def close(self, leave: bool = False) -> None:
        pass


class Sleepless(SystemClock):
    """A clock on which tasks sleep until they are cancelled; `asleep_now` counts them."""

    def __init__(self) -> None:
        self.asleep_now = threading.Semaphore(0)

    async def asleep(self, seconds: float) -> None:
        self.asleep_now.release()
        await asyncio.Event().wait()


def test_followers_hold_no_thread_between_two_polls() -> None:
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    clock = Sleepless()

    async def main(platform: Any) -> None:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        asked = [{**row, "expected": "ho"} for row in rows]
        job, run = platform.training.sft(model, rows), platform.evaluations.submit("e", "echo", asked, project="p")
        async with busy_host():
            follow = [lambda: job.aevents(), lambda: platform.evaluations.aevents(run.id)]
            tasks = [asyncio.create_task(to_the_end(follow[at % 2]())) for at in range(MANY)]
            await reached(clock.asleep_now, MANY)
            assert await platform.threads.backends.of("local").run(lambda: "free") == "free"
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    with open_platform(clock=clock) as platform:
        object.__setattr__(platform.threads, "backends", FairPool("modelyard-backend", 2))
        with platform.worker(concurrency=2, executor=Held()):
            asyncio.run(main(platform))


async def to_the_end(events: AsyncIterator[Any]) -> None:
    async for _ in events:
        pass
