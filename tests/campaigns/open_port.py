"""Measure what one caller does to others at a served port: `python -m tests.campaigns.open_port [--sabotage]`.

In turn, without a key: half-open heads, bodies that trickle, one endless header, endless short headers. With one:
100 MB of newlines as a request and as a file, and 128 answers of a prompt of 4 MB. Meanwhile somebody asks for /livez
on a new connection, again and again. Their median wait is compared with the one when they are alone: it may be twice
as long (and a few milliseconds). `--sabotage` takes the bounds of heads away, so it must fail.
"""

import argparse
import multiprocessing as mp
import resource
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from multiprocessing.synchronize import Event
from tempfile import TemporaryDirectory

SPAWN = mp.get_context("spawn")
Attack = Callable[[int, Event, ExitStack, str], None]
CHAT = "/inference/v1/chat/completions"
ASKED = 200
SECONDS = 8
"""How long each attack is watched."""

SLACK = 0.01
"""Seconds that do not count: those of a busy machine."""


def serve(port: int, sabotage: bool, keys: "mp.Queue[str]") -> None:
    from modelyard import open_platform
    from modelyard.asgi import asgi_app
    from modelyard.parts.server import bounded_heads, uvicorn_server

    if sabotage:
        bounded_heads.BoundedProtocol.data_received = bounded_heads.JoiningProtocol.data_received
    with TemporaryDirectory() as folder, open_platform(f"{folder}/yard.db") as platform:
        keys.put(platform.keys.create("busy").secret)
        uvicorn_server.run(asgi_app(platform), "127.0.0.1", port)


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 30)


def wait_of_one(port: int) -> float:
    began = time.perf_counter()
    with connect(port) as one, one.makefile("rb") as answer:
        one.sendall(b"GET /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        assert answer.read().startswith(b"HTTP/1.1 200")
    return time.perf_counter() - began


def half_open(port: int, over: Event, stack: ExitStack, key: str) -> None:
    for _ in range(10_000):
        if over.is_set():
            return
        one = stack.enter_context(connect(port))
        with suppress(OSError):
            one.sendall(b"GET /livez HTTP/1.1\r\nhost: a\r\n")


def slow_bodies(port: int, over: Event, stack: ExitStack, key: str) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n".encode()
    clients = [stack.enter_context(connect(port)) for _ in range(1000)]
    for client in clients:
        client.sendall(head)
    while not over.wait(0.5):
        for client in clients:
            with suppress(OSError):
                client.sendall(b" ")


def endless(piece: bytes, size: int) -> Attack:
    def send(port: int, over: Event, stack: ExitStack, key: str) -> None:
        while not over.wait(0.02):
            with suppress(OSError), connect(port) as client:
                client.sendall(b"GET /livez HTTP/1.1\r\nhost: a\r\nx: ")
                for _ in range(size // len(piece)):
                    client.sendall(piece)

    return send


def posts(path: str, kind: str, make: Callable[[], Iterable[bytes]]) -> Attack:
    """Post such a body again and again, read what is answered, and see that it is no fault of the server."""

    def send(port: int, over: Event, stack: ExitStack, key: str) -> None:
        length = sum(map(len, make()))
        head = f"POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\nauthorization: Bearer {key}\r\n"
        head += f"content-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
        while not over.wait(0.02):
            with connect(port) as client, client.makefile("rb") as answer:
                with suppress(OSError):  # the server may refuse it before all is sent
                    client.sendall(head.encode())
                    for piece in make():
                        client.sendall(piece)
                with suppress(OSError):
                    status = answer.readline()
                    assert not status or status.split()[1][:1] in (b"2", b"4"), status
                    while answer.read(2**20):
                        pass

    return send


def newlines() -> Iterable[bytes]:
    return [b"\n" * 10**6] * 100


def file_of_newlines() -> Iterable[bytes]:
    part = '--b\r\ncontent-disposition: form-data; name="%s"%s\r\n\r\n'
    yield (part % ("purpose", "") + "fine-tune\r\n" + part % ("file", '; filename="a.jsonl"')).encode()
    yield from newlines()
    yield b"\r\n--b--\r\n"


def many_choices() -> Iterable[bytes]:
    yield b'{"model":"echo","n":128,"messages":[{"role":"user","content":"'
    yield from [b"word " * 200_000] * 4
    yield b'"}]}'


ATTACKS: dict[str, Attack] = {
    "10,000 half-open heads": half_open,
    "1,000 slow bodies": slow_bodies,
    "one header of 60 MiB": endless(b"b" * 2**16, 60 * 2**20),
    "90 MiB of short headers": endless(b"b\r\nx: " * 2**13, 90 * 2**20),
    "100 MB of newlines": posts(CHAT, "application/json", newlines),
    "a file of 100 MB of newlines": posts("/v1/files", "multipart/form-data; boundary=b", file_of_newlines),
    "n=128 of 4 MB": posts(CHAT, "application/json", many_choices),
}


def attack(name: str, port: int, over: Event, key: str) -> None:
    """Attack from a process of its own, so that who asks does not share the interpreter."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with ExitStack() as stack:
        ATTACKS[name](port, over, stack, key)
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
    keys: mp.Queue[str] = SPAWN.Queue()
    server = SPAWN.Process(target=serve, args=(port, sabotage, keys), daemon=True)
    server.start()
    key = keys.get()
    broken = 0
    try:
        while True:
            with suppress(OSError):
                wait_of_one(port)
                break
        for name in ATTACKS:
            alone = statistics.median(wait_of_one(port) for _ in range(ASKED))
            over, before = SPAWN.Event(), memory(server.pid or 0)
            attacker = SPAWN.Process(target=attack, args=(name, port, over, key), daemon=True)
            attacker.start()
            began, waits = time.monotonic(), list[float]()
            while time.monotonic() < began + SECONDS:
                waits.append(wait_of_one(port))
            grew = memory(server.pid or 0) - before
            over.set()
            attacker.join()
            wrong = "" if attacker.exitcode == 0 else ", an answer 5xx"
            took = statistics.median(waits)
            bad = took > 2 * alone + SLACK or grew > 128 or bool(wrong)
            broken += bad
            said = f"alone {alone * 1e3:6.1f} ms, meanwhile {took * 1e3:6.1f} ms, longest {max(waits) * 1e3:5.0f} ms"
            print(f"{name:28} {said}, memory +{grew:.0f} MiB{wrong}{'  BROKEN' if bad else ''}", flush=True)
    finally:
        server.terminate()
        server.join()
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
