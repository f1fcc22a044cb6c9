"""What a tenant notices of another's slow lines: its p99 alone, next to 64 slow uploads, and next to 64 stalled calls.

    python benchmarks/neighbours.py [seconds a round]

docs/explanation/sharing.md says what is promised and how to read the figures.

Prints JSON: for each kind of request the p99 in milliseconds alone and next to each kind of load, medians of five
rounds in turn, and the ratios to alone. The platform is in a file and is served by uvicorn; the slow uploads send a few
bytes a second after their first MiB, and the stalled calls are those of a backend that blocks. Quote the ratios.
"""

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from _served import serve, served

PORT, MANY, ROUNDS = 18090, 64, 5
STALLED = 600.0
CHAT = "/inference/v1/chat/completions"
ROW = b'{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}\n'


def serve_one(folder: str) -> None:
    """Serve a platform of two tenants; prints both keys."""
    from modelyard.asgi import asgi_app
    from modelyard.backends.echo import EchoBackend
    from modelyard.backends.router import Router
    from modelyard.compose import open_platform

    class Stalling(EchoBackend):
        blocking = True

        def stream(self, request: Any, model: Any) -> Iterator[Any]:
            if request.messages[0].text == "stall":
                time.sleep(STALLED)
            return super().stream(request, model)

    platform = open_platform(Path(folder, "yard.db"), backend=Router([EchoBackend(), Stalling(("blocking",))]))
    keys = " ".join(platform.keys.create(entity).secret for entity in ("greedy", "modest"))
    serve(asgi_app(platform), keys, PORT)


# ---- clients -----------------------------------------------------------------------------------------------------


def head_of(method: str, path: str, key: str, length: int) -> bytes:
    lines = (
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {key}",
        f"Content-Length: {length}",
    )
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


def chat_of(key: str, model: str, content: str = "hello there") -> bytes:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": content}]}).encode()
    return head_of("POST", CHAT, key, len(body)) + body


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert head.startswith(b"http/1.1 200"), head
    await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    try:
        yield reader, writer
    finally:
        writer.close()


async def p99(request: bytes, seconds: float) -> float:
    """The 99th percentile of a client's waits on four connections, in milliseconds."""
    waits: list[float] = []

    async def ask() -> None:
        async with connected() as (reader, writer):
            await exchange(reader, writer, request)
            until = time.perf_counter() + seconds
            while (began := time.perf_counter()) < until:
                await exchange(reader, writer, request)
                waits.append(time.perf_counter() - began)

    await asyncio.wait_for(asyncio.gather(*(ask() for _ in range(4))), seconds + 120)
    return sorted(waits)[int(len(waits) * 0.99)] * 1000


@asynccontextmanager
async def slow_uploads(key: str) -> AsyncIterator[None]:
    """Uploads that have sent a MiB and go on with a few bytes a second."""
    data = ROW * (2**20 // len(ROW))

    async def upload(stack: AsyncExitStack) -> None:
        _, writer = await stack.enter_async_context(connected())
        writer.write(head_of("POST", "/v1/preview/datasets?project=p&name=d", key, 2 * len(data)) + data)
        await writer.drain()
        while True:
            await asyncio.sleep(1)
            writer.write(ROW[:8])
            await writer.drain()

    async with many(upload):
        yield


@asynccontextmanager
async def stalled_calls(key: str) -> AsyncIterator[None]:
    """Calls that a backend does not answer."""

    async def call(stack: AsyncExitStack) -> None:
        reader, writer = await stack.enter_async_context(connected())
        writer.write(chat_of(key, "blocking", "stall"))
        await reader.read(1)

    async with many(call):
        yield


@asynccontextmanager
async def many(client: Any) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        tasks = [asyncio.create_task(client(stack)) for _ in range(MANY)]
        await asyncio.sleep(1)
        assert not any(task.done() for task in tasks), next(task for task in tasks if task.done())
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def nothing(key: str) -> AsyncIterator[None]:
    yield


LOADS = {"alone": nothing, "next to slow uploads": slow_uploads, "next to stalled calls": stalled_calls}


def measure(load: str, seconds: float) -> dict[str, float]:
    """The p99 of each kind of request, of a server of its own, as stalled calls outlast their clients."""
    with tempfile.TemporaryDirectory() as folder, served(__file__, folder) as (pid, keys):
        greedy, modest = keys.split()
        requests = {
            "chat": chat_of(modest, "echo"),
            "chat of a blocking backend": chat_of(modest, "blocking"),
            "read": head_of("GET", "/v1/preview/training-jobs", modest, 0),
        }

        async def main() -> dict[str, float]:
            async with LOADS[load](greedy):
                return {name: await p99(request, seconds) for name, request in requests.items()}

        try:
            return asyncio.run(main())
        finally:
            os.kill(pid, signal.SIGKILL)  # it would wait for the stalled calls


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    rounds = [{load: measure(load, seconds) for load in LOADS} for _ in range(ROUNDS)]
    found: dict[str, Any] = {}
    for kind in rounds[0]["alone"]:
        middle = {load: median(one[load][kind] for one in rounds) for load in LOADS}
        found[kind] = {f"{load}, ms": round(value, 2) for load, value in middle.items()}
        found[kind] |= {f"{load}/alone": round(middle[load] / middle["alone"], 2) for load in list(LOADS)[1:]}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve_one(sys.argv[2])
    else:
        main()
