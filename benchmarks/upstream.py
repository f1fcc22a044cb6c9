"""What it costs to ask a server through modelyard: beside httpx that asks the same server directly.

    python benchmarks/upstream.py

Prints JSON. For 1, 16 and 64 requests at once: CPU in microseconds per request, and per token of a stream, of a program
that reads the answers with httpx alone (`direct`), with an `UpstreamBackend`, and with a platform over it; of a served
modelyard that stands between a client and the server (`served`); and their ratios to `direct`. Last, the memory that a
program holds for each of 1,000 open streams. CPU is read from /proc, so this runs on Linux. Quote ratios of one run,
never figures of two.
"""

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from _served import cpu, serve, served
from serving import ANSWER, CHUNK

AT_ONCE = (1, 16, 64)
TOKENS = 100
OPEN = 1000
ASKED = {"model": "echo", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 600}
END = [
    {**CHUNK, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {**CHUNK, "choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": TOKENS, "total_tokens": TOKENS + 2}},
]

Ask = Callable[[bool], Awaitable[object]]


# ---- the server that is asked ------------------------------------------------------------------------------------


def event(chunk: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def far(scope: Any, receive: Any, send: Any) -> None:
    """Answers a constant, or streams one chunk a token; below /held it stops after the first and waits."""
    requested = json.loads((await receive()).get("body") or b"{}")
    kind = b"text/event-stream" if requested.get("stream") else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    if not requested.get("stream"):
        await send({"type": "http.response.body", "body": json.dumps(ANSWER).encode()})
        return
    held = scope["path"].startswith("/held")
    for _ in range(1 if held else TOKENS):
        await send({"type": "http.response.body", "body": event(CHUNK), "more_body": True})
    while held and (await receive())["type"] != "http.disconnect":
        pass
    await send({"type": "http.response.body", "body": b"".join(map(event, END)) + b"data: [DONE]\n\n"})


def serve_one(kind: str, port: int, behind: int = 0) -> None:
    """Serve the far server, or a modelyard that asks the one at port `behind`."""
    app, key = far, "none"
    if kind == "modelyard":
        from modelyard.asgi import asgi_app
        from modelyard.compose import open_platform

        platform = open_platform(backend=backend_at(f"http://127.0.0.1:{behind}/v1"))
        app, key = asgi_app(platform), platform.keys.create("acme").secret
    serve(app, key, port)


# ---- who asks ----------------------------------------------------------------------------------------------------


def backend_at(url: str) -> Any:
    """The backend under measurement."""
    from modelyard import Pricing
    from modelyard.backends import VLLM, UpstreamBackend, offer

    models = [offer("echo", context_length=100_000, pricing=Pricing(), capabilities=VLLM)]
    return UpstreamBackend(url, models=models, concurrency=2 * OPEN)


async def asking_directly(url: str, key: str = "none") -> Ask:
    """httpx, and the reading of JSON that anybody needs."""
    headers = {"authorization": f"Bearer {key}"}
    client = httpx.AsyncClient(headers=headers, limits=httpx.Limits(max_connections=None), trust_env=False, timeout=60)

    async def ask(stream: bool) -> None:
        async with client.stream("POST", f"{url}/chat/completions", json={**ASKED, "stream": stream}) as response:
            response.raise_for_status()
            if not stream:
                json.loads(await response.aread())
                return
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    json.loads(line[6:])

    return ask


async def asking_a_backend(url: str) -> Ask:
    """`UpstreamBackend.astream`."""
    from modelyard import Message, Role
    from modelyard.protocols import CompletionRequest, ServedModel

    backend = backend_at(url)
    model = ServedModel("echo", backend.entries()[0])

    async def ask(stream: bool) -> None:
        requested = CompletionRequest("echo", (Message(Role.USER, "hello there"),), max_tokens=600, streamed=stream)
        async for _ in backend.astream(requested, model):
            pass

    return ask


async def asking_a_platform(url: str) -> Ask:
    """A platform in memory over the backend: accounting, limits and all."""
    from modelyard import open_platform

    platform = open_platform(backend=backend_at(url))

    async def ask(stream: bool) -> None:
        if not stream:
            await platform.chat.acomplete(**ASKED)
            return
        async with platform.chat.astream(**ASKED) as deltas:
            async for _ in deltas:
                pass

    return ask


WAYS = {"direct": asking_directly, "backend": asking_a_backend, "platform": asking_a_platform}


async def requested(ask: Ask, at_once: int, stream: bool) -> int:
    """Asks so many at once, some times over. Returns how often."""
    times = max(1, (64 if stream else 512) // at_once)

    async def again() -> None:
        for _ in range(times):
            await ask(stream)

    await asyncio.gather(*[again() for _ in range(at_once)])
    return times * at_once


async def cost(way: str, url: str, at_once: int, stream: bool) -> float:
    """CPU in microseconds per request, of this process."""
    ask = await WAYS[way](url)
    await ask(stream)
    began = time.process_time()
    count = await requested(ask, at_once, stream)
    return (time.process_time() - began) / count * 1e6


async def memory(way: str, url: str) -> float:
    """KiB of this process for each open stream."""
    ask = await WAYS[way](url)
    await ask(False)
    before = resident()
    waiting = [asyncio.create_task(ask(True)) for _ in range(OPEN)]
    held = 0.0
    while (now := resident()) > held:
        held = now
        await asyncio.sleep(1)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return (held - before) / OPEN


def resident() -> float:
    """KiB that this process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


# ---- the figures -------------------------------------------------------------------------------------------------


def in_a_process(*command: object) -> Any:
    """What another process of this script prints."""
    done = subprocess.run([sys.executable, __file__, *map(str, command)], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def compared(url: str, proxy: tuple[int, str, str]) -> dict[str, Any]:
    """Every way at every number at once, whole and streamed, in turn; and what a served modelyard spends between."""
    found: dict[str, Any] = {}
    for stream, unit, parts in ((False, "request", 1), (True, "token", TOKENS)):
        for at_once in AT_ONCE:
            costs = {way: in_a_process("cost", way, url, at_once, stream) / parts for way in WAYS}
            costs["served"] = asyncio.run(between(*proxy, at_once, stream)) / parts
            ratios = {f"{way}/direct": round(us / costs["direct"], 2) for way, us in costs.items() if way != "direct"}
            found[f"{unit}, {at_once} at once"] = {way: round(us, 2) for way, us in costs.items()} | ratios
    return found


async def between(pid: int, url: str, key: str, at_once: int, stream: bool) -> float:
    """CPU in microseconds per request, of the served modelyard that passes it on."""
    ask = await asking_directly(url, key)
    await ask(stream)
    before = cpu(pid)[0]
    count = await requested(ask, at_once, stream)
    return (cpu(pid)[0] - before) / count * 1e6


def main() -> None:
    """Measure all and print it."""
    url = "http://127.0.0.1:18090"
    with served(__file__, "far", 18090), served(__file__, "modelyard", 18091, 18090) as (pid, key):
        found = compared(f"{url}/v1", (pid, "http://127.0.0.1:18091/inference/v1", key))
        found["KiB for an open stream"] = {way: in_a_process("memory", way, f"{url}/held") for way in WAYS}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    match sys.argv[1:]:
        case ["serve", kind, *runtime]:
            serve_one(kind, *map(int, runtime))
        case ["cost", way, url, at_once, stream]:
            print(asyncio.run(cost(way, url, int(at_once), stream == "True")))
        case ["memory", way, url]:
            print(round(asyncio.run(memory(way, url)), 1))
        case _:
            main()
