"""What it costs to ask a server through modelyard: beside httpx that asks the same server directly.

    python benchmarks/upstream.py [seconds]

Prints JSON. For 1, 16 and 64 requests at once: CPU in microseconds per request, and per token of a stream, of a program
that reads the answers with httpx alone (`direct`), with an `UpstreamBackend`, and with a platform over it, and the
ratios to `direct`. Then `served`: the CPU of a served modelyard that stands between a client and the server. Last, the
memory that a program holds for each of 1,000 open streams. Quote ratios of one run, never figures of two.
"""

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from serving import ANSWER, CHUNK, TOKENS, cpu, load, request_of

AT_ONCE = (1, 16, 64)
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
    asked = json.loads((await receive())["body"])
    kind = b"text/event-stream" if asked.get("stream") else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    if not asked.get("stream"):
        await send({"type": "http.response.body", "body": json.dumps(ANSWER).encode()})
        return
    held = scope["path"].startswith("/held")
    for _ in range(1 if held else TOKENS):
        await send({"type": "http.response.body", "body": event(CHUNK), "more_body": True})
    while held and (await receive())["type"] != "http.disconnect":
        pass
    await send({"type": "http.response.body", "body": b"".join(map(event, END)) + b"data: [DONE]\n\n"})


def serve(kind: str, port: int, behind: int) -> None:
    """Serve the far server, or a modelyard that asks the one at port `behind`; prints a key when ready."""
    import uvicorn

    app, key = far, "none"
    if kind == "modelyard":
        from modelyard.asgi import asgi_app
        from modelyard.compose import open_platform

        platform = open_platform(backend=backend_at(f"http://127.0.0.1:{behind}/v1"))
        app, key = asgi_app(platform), platform.keys.create("acme").secret
    config = uvicorn.Config(app, port=port, log_level="error", access_log=False, lifespan="off", backlog=2048)
    server = uvicorn.Server(config)

    async def main() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        print(key, flush=True)
        await serving

    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(main())


@contextmanager
def served(kind: str, port: int, behind: int = 0) -> Iterator[tuple[int, str]]:
    """A server process: its pid and key."""
    command = [sys.executable, __file__, "serve", kind, str(port), str(behind)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.terminate()


# ---- who asks ----------------------------------------------------------------------------------------------------


def backend_at(url: str) -> Any:
    """The backend under measurement."""
    from modelyard import Pricing
    from modelyard.backends.upstream import VLLM, UpstreamBackend, offer

    models = [offer("echo", context_length=100_000, pricing=Pricing(), capabilities=VLLM)]
    return UpstreamBackend(url, models=models, concurrency=2 * OPEN)


async def asking_directly(url: str) -> Ask:
    """httpx, and the reading of JSON that anybody needs."""
    client = httpx.AsyncClient(limits=httpx.Limits(max_connections=None), trust_env=False, timeout=60)

    async def ask(stream: bool) -> None:
        async with client.stream("POST", f"{url}/chat/completions", json={**ASKED, "stream": stream}) as response:
            if not stream:
                json.loads(await response.aread())
                return
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    json.loads(line[6:])

    return ask


async def asking_a_backend(url: str) -> Ask:
    """`UpstreamBackend.astream`."""
    from modelyard import CompletionRequest, Message, Role
    from modelyard.protocols import ServedModel

    backend = backend_at(url)
    model = ServedModel("echo", backend.entries()[0])

    async def ask(stream: bool) -> None:
        asked = CompletionRequest("echo", (Message(Role.USER, "hello there"),), max_tokens=600, streamed=stream)
        async for _ in backend.astream(asked, model):
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


async def cost(way: str, url: str, at_once: int, stream: bool, seconds: float) -> float:
    """CPU in microseconds per request, of this process."""
    ask, asked, until = await WAYS[way](url), 0, time.perf_counter() + seconds
    await ask(stream)

    async def again() -> None:
        nonlocal asked
        while time.perf_counter() < until:
            await ask(stream)
            asked += 1

    began = time.process_time()
    await asyncio.gather(*[again() for _ in range(at_once)])
    return (time.process_time() - began) / asked * 1e6


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


def compared(url: str, seconds: float) -> dict[str, Any]:
    """Every way at every number at once, whole and streamed, the better of two runs in turn."""
    found: dict[str, Any] = {}
    for stream, unit in ((False, "request"), (True, "token")):
        for at_once in AT_ONCE:
            runs = [{way: in_a_process("cost", way, url, at_once, stream, seconds) for way in WAYS} for _ in range(2)]
            best = {way: min(run[way] for run in runs) / (TOKENS if stream else 1) for way in WAYS}
            ratios = {f"{way}/direct": round(best[way] / best["direct"], 2) for way in ("backend", "platform")}
            found[f"{unit}, {at_once} at once"] = {way: round(us, 2) for way, us in best.items()} | ratios
    return found


def between(port: int, behind: int, seconds: float) -> dict[str, float]:
    """CPU in microseconds of a served modelyard per request, and per token, 16 at once."""
    found = {}
    with served("modelyard", port, behind) as (pid, key):
        for stream, unit in ((False, "request"), (True, "token")):
            request, end = request_of(key, stream), b"0\r\n\r\n" if stream else None
            asyncio.run(load(port, request, seconds / 4, end))
            before = cpu(pid)[0]
            answered = asyncio.run(load(port, request, seconds, end))
            found[unit] = round((cpu(pid)[0] - before) / answered / (TOKENS if stream else 1) * 1e6, 2)
    return found


def main() -> None:
    """Measure all and print it."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    with served("far", 18090):
        url = "http://127.0.0.1:18090"
        found = compared(f"{url}/v1", seconds)
        found["served, CPU us"] = between(18091, 18090, seconds)
        found["KiB for an open stream"] = {way: in_a_process("memory", way, f"{url}/held") for way in WAYS}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    match sys.argv[1:]:
        case ["serve", kind, port, behind]:
            serve(kind, int(port), int(behind))
        case ["cost", way, url, at_once, stream, seconds]:
            print(asyncio.run(cost(way, url, int(at_once), stream == "True", float(seconds))))
        case ["memory", way, url]:
            print(round(asyncio.run(memory(way, url)), 1))
        case _:
            main()
