"""What HTTP costs: a chat completion through uvicorn beside a bare ASGI callable that parses the same JSON.

    python benchmarks/serving.py [seconds of a turn] [turns]

Prints JSON: requests a second and server CPU in microseconds per request, whole with 16 and 256 connections and
streamed, of the callable on uvicorn ("bare"), of ours as `modelyard serve` runs it in memory ("modelyard"), in a SQLite
file ("sqlite"), in two processes on one such file ("two processes", half of the connections to each) and on PostgreSQL
where a server is installed ("postgres", whose own CPU is not counted), and of ours on uvicorn as it is ("on_uvicorn");
the ratio of each to the callable, and what is added per request or per token. All serve in turns. CPU is read
from /proc, so this runs on Linux. Quote ratios of one run, never figures of two.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import count, cycle, islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from _served import cpu, serve, served

sys.path.append(str(Path(__file__).parents[1] / "tests" / "shared"))
from postgres_server import PostgresServer, server_folder

KINDS = ("bare", "modelyard", "on_uvicorn", "sqlite", "two processes", "postgres")
CONNECTIONS = 16, 256
PATIENCE = 60
"""How many times as long as a turn the first answer may take."""
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


def serve_one(kind: str, port: int, place: str = "") -> None:
    """Serve one of them in this process."""
    if kind == "bare":
        serve(bare, "none", port)
        return
    from modelyard.asgi import asgi_app
    from modelyard.compose import open_platform
    from modelyard.parts.server.uvicorn_server import OPTIONS, collecting_rarely

    platform = open_platform(place or None)
    app, key = asgi_app(platform), platform.keys.create("acme").secret
    if kind == "on_uvicorn":
        serve(app, key, port)
        return
    with collecting_rarely():
        serve(app, key, port, **OPTIONS)


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


async def load(ports: Sequence[int], requests: Sequence[bytes], of: int, seconds: float, end: bytes | None) -> int:
    """How many requests were answered on so many connections, in turns to each server."""
    loop = asyncio.get_running_loop()
    to = islice(cycle(zip(ports, requests, strict=True)), of)
    made = [await loop.create_connection(partial(Client, request, end), "127.0.0.1", port) for port, request in to]
    for _ in range(PATIENCE):  # a stream may take longer on a busy machine
        await asyncio.sleep(seconds)
        if any(client.answered for _, client in made):
            break
    else:
        raise RuntimeError("no request was answered: has the server ended?")
    for _, client in made:
        client.running = False
        client.transport.close()
    return sum(client.answered for _, client in made)


Figures = dict[str, float]
Server = Sequence[tuple[int, int, str]]
"""The processes of a server: the pid, the port and the key of each."""


def measure(server: Server, connections: int, stream: bool, seconds: float) -> Figures:
    """Requests a second and CPU per request, of one turn."""
    pids, ports, keys = zip(*server, strict=True)
    before, began = [cpu(pid) for pid in pids], time.perf_counter()
    requests = [request_of(key, stream) for key in keys]
    answered = asyncio.run(load(ports, requests, connections, seconds, b"0\r\n\r\n" if stream else None))
    took = time.perf_counter() - began
    after = [cpu(pid) for pid in pids]
    spent, user = (sum(now[at] - then[at] for now, then in zip(after, before, strict=True)) for at in (0, 1))
    return {
        "requests_per_second": answered / took,
        "cpu_us": spent / answered * 1e6,
        "user_cpu_us": user / answered * 1e6,
    }


@contextmanager
def all_served() -> Iterator[Mapping[str, Server]]:
    """Every kind that can be served here."""
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        places = {"sqlite": f"{folder}/one.db", "two processes": f"{folder}/two.db"}
        if (programs := server_folder()) is not None:
            database = stack.enter_context(closing(PostgresServer(programs)))
            places["postgres"] = database.create_database()
        ports, servers = count(18080), {}
        for kind in KINDS:
            if kind == "postgres" and kind not in places:
                continue
            processes = []
            for port in islice(ports, 2 if kind == "two processes" else 1):
                pid, key = stack.enter_context(served(__file__, kind, port, places.get(kind, "")))
                processes.append((pid, port, key))
            servers[kind] = processes
        yield servers


def in_turns(
    servers: Mapping[str, Server], stream: bool, connections: int, seconds: float, turns: int
) -> Mapping[str, list[Figures]]:
    """The figures of each server in each turn, the first of which only warms it up."""
    found: dict[str, list[Figures]] = {kind: [] for kind in servers}
    for _ in range(1 + turns):
        for kind, server in servers.items():
            found[kind].append(measure(server, connections, stream, seconds))
    return {kind: measured[1:] for kind, measured in found.items()}


def summary(name: str, turns: Mapping[str, list[Figures]], pieces: int) -> dict[str, Any]:
    """The least and the median of each server, and how they compare turn by turn."""
    report: dict[str, Any] = {}
    for kind, figures in turns.items():
        report[f"{name}/{kind}"] = {
            figure: least_and_median([turn[figure] for turn in figures]) for figure in figures[0]
        }
    floor, *ours = ([turn["cpu_us"] for turn in figures] for figures in turns.values())
    for kind, costs in zip([*turns][1:], ours, strict=True):
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=1.0, help="of each turn")
    parser.add_argument("turns", nargs="?", type=int, default=12)
    asked = parser.parse_args()
    seconds, turns = asked.seconds, asked.turns
    found: dict[str, Any] = {}
    with all_served() as servers:
        for connections in CONNECTIONS:
            measured = in_turns(servers, False, connections, seconds, turns)
            found |= summary(f"completion, {connections} connections", measured, 1)
        found |= summary("stream", in_turns(servers, True, CONNECTIONS[0], seconds, turns), TOKENS)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve_one(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main()
