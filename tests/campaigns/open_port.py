"""Measure what callers without a key do to others at a served port: `python -m tests.campaigns.open_port [--sabotage]`.

In turn: half-open heads, bodies that trickle, one endless header, endless short headers. Meanwhile somebody asks for
/livez on a new connection, again and again. Their median wait is compared with the one when they are alone: it may be
twice as long (and a few milliseconds). `--sabotage` takes the bounds away, so it must fail.
"""

import argparse
import multiprocessing as mp
import resource
import socket
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.synchronize import Event

SPAWN = mp.get_context("spawn")
ASKED = 200
SECONDS = 8
"""How long each attack is watched."""

SLACK = 0.01
"""Seconds that do not count: those of a busy machine."""


def serve(port: int, sabotage: bool) -> None:
    from modelyard import open_platform
    from modelyard.asgi import asgi_app
    from modelyard.parts.server import bounded_heads, uvicorn_server

    if sabotage:
        bounded_heads.BoundedProtocol.data_received = bounded_heads.JoiningProtocol.data_received
    with open_platform() as platform:
        uvicorn_server.run(asgi_app(platform), "127.0.0.1", port)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 30)


def wait_of_one(port: int) -> float:
    began = time.perf_counter()
    with connect(port) as one, one.makefile("rb") as answer:
        one.sendall(b"GET /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        assert answer.read().startswith(b"HTTP/1.1 200")
    return time.perf_counter() - began


def half_open(port: int, over: Event, stack: ExitStack) -> None:
    for _ in range(10_000):
        if over.is_set():
            return
        one = stack.enter_context(connect(port))
        with suppress(OSError):
            one.sendall(b"GET /livez HTTP/1.1\r\nhost: a\r\n")


def slow_bodies(port: int, over: Event, stack: ExitStack) -> None:
    head = b"POST /inference/v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n"
    clients = [stack.enter_context(connect(port)) for _ in range(1000)]
    for client in clients:
        client.sendall(head)
    while not over.wait(0.5):
        for client in clients:
            with suppress(OSError):
                client.sendall(b" ")


def endless(piece: bytes, size: int) -> Callable[[int, Event, ExitStack], None]:
    def send(port: int, over: Event, stack: ExitStack) -> None:
        while not over.wait(0.02):
            with suppress(OSError), connect(port) as client:
                client.sendall(b"GET /livez HTTP/1.1\r\nhost: a\r\nx: ")
                for _ in range(size // len(piece)):
                    client.sendall(piece)

    return send


ATTACKS = {
    "10,000 half-open heads": half_open,
    "1,000 slow bodies": slow_bodies,
    "one header of 60 MiB": endless(b"b" * 2**16, 60 * 2**20),
    "90 MiB of short headers": endless(b"b\r\nx: " * 2**13, 90 * 2**20),
}


def attack(name: str, port: int, over: Event) -> None:
    """Attack from a process of its own, so that who asks does not share the interpreter."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with ExitStack() as stack:
        ATTACKS[name](port, over, stack)
        over.wait()


def most_descriptors() -> int:
    return min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 2**15)


def memory(process: int) -> float:
    """Return the resident memory of a process in MiB."""
    with open(f"/proc/{process}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--sabotage", action="store_true")
    sabotage = options.parse_args().sabotage
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    server = SPAWN.Process(target=serve, args=(port, sabotage), daemon=True)
    server.start()
    broken = 0
    try:
        while True:
            with suppress(OSError):
                wait_of_one(port)
                break
        for name in ATTACKS:
            alone = statistics.median(wait_of_one(port) for _ in range(ASKED))
            over, before = SPAWN.Event(), memory(server.pid or 0)
            attacker = SPAWN.Process(target=attack, args=(name, port, over), daemon=True)
            attacker.start()
            began, waits = time.monotonic(), list[float]()
            while time.monotonic() < began + SECONDS:
                waits.append(wait_of_one(port))
            grew = memory(server.pid or 0) - before
            over.set()
            attacker.join()
            took = statistics.median(waits)
            bad = took > 2 * alone + SLACK or grew > 128
            broken += bad
            said = f"alone {alone * 1e3:6.1f} ms, meanwhile {took * 1e3:6.1f} ms, longest {max(waits) * 1e3:5.0f} ms"
            print(f"{name:24} {said}, memory +{grew:.0f} MiB{'  BROKEN' if bad else ''}", flush=True)
    finally:
        server.terminate()
        server.join()
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
