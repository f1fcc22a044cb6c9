"""What HTTP costs: a chat completion through uvicorn beside a bare ASGI callable that parses the same JSON.

    python benchmarks/serving.py [seconds of a turn]

Prints JSON: requests a second and server CPU in microseconds per request, whole and streamed, of the callable on
uvicorn ("bare"), of ours as `modelyard serve` runs it ("modelyard"), and of ours on uvicorn as it is ("on_uvicorn");
the ratio of each to the callable, and what is added per request or per token. All three serve in turns. CPU is read
from /proc, so this runs on Linux. Quote ratios of one run, never figures of two.
"""

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median
from typing import Any

from _served import cpu, serve, served

KINDS = ("bare", "modelyard", "on_uvicorn")
CONNECTIONS = 16
TURNS = 12
TOKENS = 500
ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "echo",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello there"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4},
}
CHUNK = {
    "id": "chatcmpl-1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "echo",
    "choices": [{"index": 0, "delta": {"content": " word"}, "logprobs": None, "finish_reason": None}],
}


# ---- what is served ----------------------------------------------------------------------------------------------


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """The floor: reads and parses the body, answers a constant, or one constant chunk a token."""
    if scope["type"] != "http":
        return
    requested = json.loads((await receive())["body"])
    if not requested.get("stream"):
        body = json.dumps(ANSWER).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for _ in range(TOKENS):
        chunk = b"data: " + json.dumps(CHUNK).encode() + b"\n\n"
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def serve_one(kind: str, port: int) -> None:
    """Serve one of the three in this process."""
    if kind == "bare":
        serve(bare, "none", port)
        return
    from modelyard.asgi import asgi_app
    from modelyard.compose import open_platform
    from modelyard.parts.server.uvicorn_server import OPTIONS

    platform = open_platform()
    options = OPTIONS if kind == "modelyard" else {}
    serve(asgi_app(platform), platform.keys.create("acme").secret, port, **options)


# ---- the load ----------------------------------------------------------------------------------------------------


class Client(asyncio.Protocol):
    """Sends one request after another on one connection and counts the answers."""

    def __init__(self, request: bytes, end: bytes | None) -> None:
        self.request, self.end = request, end
        self.answered, self.running, self.buffer = 0, True, b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self._complete():
            return
        assert self.buffer.startswith(b"HTTP/1.1 200"), self.buffer[:500]
        self.buffer = b""
        self.answered += 1
        if self.running:
            self.transport.write(self.request)
        else:
            self.transport.close()

    def _complete(self) -> bool:
        if self.end is not None:
            return self.buffer.endswith(self.end)
        head, found, body = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return False
        length = head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
        return len(body) >= int(length)


def request_of(key: str, stream: bool) -> bytes:
    """One chat completion as bytes."""
    content = "hello there" if not stream else " ".join(["word"] * TOKENS)
    body = json.dumps({"model": "echo", "messages": [{"role": "user", "content": content}], "stream": stream}).encode()
    head = (
        "POST /inference/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n"
        f"Content-Type: application/json\r\nAuthorization: Bearer {key}\r\nUser-Agent: bench\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def load(port: int, request: bytes, seconds: float, end: bytes | None) -> int:
    """How many requests were answered."""
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(lambda: Client(request, end), "127.0.0.1", port) for _ in range(CONNECTIONS)]
    await asyncio.sleep(seconds)
    for _, client in made:
        client.running = False
        client.transport.close()
    return sum(client.answered for _, client in made)


Figures = dict[str, float]


def measure(pid: int, port: int, request: bytes, seconds: float, end: bytes | None) -> Figures:
    """Requests a second and CPU per request, of one turn."""
    before, began = cpu(pid), time.perf_counter()
    answered = asyncio.run(load(port, request, seconds, end))
    took = time.perf_counter() - began
    spent, user = (now - then for now, then in zip(cpu(pid), before, strict=True))
    return {
        "requests_per_second": answered / took,
        "cpu_us": spent / answered * 1e6,
        "user_cpu_us": user / answered * 1e6,
    }


def in_turns(stream: bool, seconds: float) -> Mapping[str, list[Figures]]:
    """The figures of each server in each turn, the first of which only warms it up."""
    found: dict[str, list[Figures]] = {kind: [] for kind in KINDS}
    end = b"0\r\n\r\n" if stream else None
    with ExitStack() as stack:
        ports = {kind: 18080 + number for number, kind in enumerate(KINDS)}
        servers = {kind: stack.enter_context(served(__file__, kind, port)) for kind, port in ports.items()}
        for _ in range(1 + TURNS):
            for kind, (pid, key) in servers.items():
                found[kind].append(measure(pid, ports[kind], request_of(key, stream), seconds, end))
    return {kind: turns[1:] for kind, turns in found.items()}


def summary(name: str, turns: Mapping[str, list[Figures]], pieces: int) -> dict[str, Any]:
    """The least and the median of each server, and how they compare turn by turn."""
    report: dict[str, Any] = {}
    for kind, figures in turns.items():
        report[f"{name}/{kind}"] = {
            figure: least_and_median([turn[figure] for turn in figures]) for figure in figures[0]
        }
    floor, *ours = ([turn["cpu_us"] for turn in turns[kind]] for kind in KINDS)
    for kind, costs in zip(KINDS[1:], ours, strict=True):
        pairs = [*zip(costs, floor, strict=True)]
        report[f"{name}/{kind}/ratio"] = {
            "of the least": round(min(costs) / min(floor), 2),
            "median of turns": round(median(cost / bare for cost, bare in pairs), 2),
        }
        report[f"{name}/{kind}/added_us"] = round(median((cost - bare) / pieces for cost, bare in pairs), 2)
    return report


def least_and_median(values: list[float]) -> Figures:
    return {"minimum": round(min(values), 2), "median": round(median(values), 2)}


def main() -> None:
    """Measure all in turns, and print how they compare."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    found: dict[str, Any] = {}
    for name, stream in (("completion", False), ("stream", True)):
        found |= summary(name, in_turns(stream, seconds), TOKENS if stream else 1)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve_one(sys.argv[2], int(sys.argv[3]))
    else:
        main()
