"""Whoever has no key costs a connection and no more: heads, connections and unread answers are bounded."""

import asyncio
import gc
import resource
import socket
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any

import attrs
import httpx
import pytest

from modelyard.parts.doubles.clients.server import AsgiServer, asgi_server
from modelyard.parts.server import bounded_heads
from polling import until
from raw_connections import connected, echo, head_of, request

BYTES, LONG = 1000, 600.0
TOO_LARGE, TOO_LATE = b"HTTP/1.1 431 ", b"HTTP/1.1 408 "


@contextmanager
def bounded(protocol: Any, application: Any = echo, **bounds: float) -> Iterator[AsgiServer]:
    chosen = attrs.evolve(protocol.bounds, **{"head_bytes": BYTES, "head_seconds": LONG, **bounds})
    with asgi_server(application, http=type("Bounded", (protocol,), {"bounds": chosen})) as server:
        yield server


def hurry(server: AsgiServer) -> None:
    """Give what comes from now on no time."""
    kind = server._server.config.http_protocol_class
    kind.bounds = attrs.evolve(kind.bounds, head_seconds=0.0)


def padded(size: int, body: bytes = b"") -> bytes:
    """A request with a head of exactly so many bytes."""
    head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\nx: " % len(body)
    return head + b"b" * (size - len(head) - 4) + b"\r\n\r\n" + body


def ends(client: socket.socket, received: Any) -> bytes:
    """What comes before the server closes the connection, however it does."""
    try:
        return bytes(received.read())
    except ConnectionResetError:
        return b""


def send_until_refused(client: socket.socket, piece: bytes) -> None:
    for _ in range(100_000):
        try:
            client.sendall(piece)
        except OSError:
            return
    raise AssertionError("the server takes whatever comes")


def open_ones(server: AsgiServer) -> int:
    return len(server._server.server_state.connections)


@pytest.mark.usefixtures("_loops")
class TestHeads:
    def test_a_head_of_the_most_bytes_is_answered_and_a_longer_one_refused(self, protocol: Any) -> None:
        with bounded(protocol) as server:
            for size, answer in ((BYTES, b"HTTP/1.1 200"), (BYTES + 1, TOO_LARGE), (BYTES * 3, TOO_LARGE)):
                with connected(server.url) as (client, received):
                    client.sendall(padded(size))
                    assert head_of(received).startswith(answer)

    @pytest.mark.parametrize("endless", [b"a" * 100, b"x: b\r\n" * 20], ids=["one line", "short headers"])
    @pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nhost: a\r\nx: "], ids=["address", "header"])
    def test_an_endless_head_is_refused_before_it_is_kept(self, protocol: Any, start: bytes, endless: bytes) -> None:
        taken = 0

        class Counting(protocol):  # type: ignore[misc]
            def _receive(self, data: bytes) -> None:
                nonlocal taken
                taken += len(data)
                super()._receive(data)

        with bounded(Counting) as server, connected(server.url) as (client, received):
            client.sendall(start)
            send_until_refused(client, endless)
            until(lambda: open_ones(server) == 0)
            assert taken <= BYTES

    def test_what_follows_a_body_without_being_one_is_bounded_too(self, protocol: Any) -> None:
        with bounded(protocol) as server, connected(server.url) as (client, received):
            client.sendall(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n")
            send_until_refused(client, b"trailer: b\r\n" * 10)
            until(lambda: open_ones(server) == 0)

    def test_each_of_many_requests_has_the_whole_bound(self, protocol: Any) -> None:
        random = Random(1)
        with bounded(protocol) as server:
            for _ in range(20):
                bodies = [b"z" * random.randrange(4 * BYTES) for _ in range(random.randrange(1, 8))]
                sent = b"".join(padded(random.randrange(70, BYTES), body) for body in bodies)
                pieces = random.randrange(1, 2 * BYTES)
                with connected(server.url) as (client, received):
                    for at in range(0, len(sent), pieces):
                        client.sendall(sent[at : at + pieces])
                    for body in bodies:
                        assert head_of(received).startswith(b"HTTP/1.1 200")
                        assert received.read(len(body)) == body

    @pytest.mark.parametrize("begun", [b"G", b"GET / HTTP/1.1\r\nhost: a\r\n"])
    def test_a_head_that_is_not_whole_in_time_is_refused(self, protocol: Any, begun: bytes) -> None:
        with bounded(protocol, head_seconds=0.05) as server, connected(server.url) as (client, received):
            client.sendall(begun)
            assert head_of(received).startswith(TOO_LATE)
            assert received.read().endswith(b"Timeout")

    def test_a_second_head_has_a_time_too(self, protocol: Any) -> None:
        with bounded(protocol) as server, connected(server.url) as (client, received):
            client.sendall(request("POST", b"one"))
            assert head_of(received).startswith(b"HTTP/1.1 200")
            assert received.read(3) == b"one"
            hurry(server)
            client.sendall(b"GET / HT")
            assert head_of(received).startswith(TOO_LATE)
            until(lambda: open_ones(server) == 0)

    def test_nothing_at_all_is_closed_without_a_word(self, protocol: Any) -> None:
        with bounded(protocol, head_seconds=0.05) as server, connected(server.url) as (client, received):
            assert ends(client, received) == b""

    def test_a_body_that_goes_on_after_its_answer_is_not_waited_for(self, protocol: Any) -> None:
        async def early(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
                await send({"type": "http.response.body", "body": b""})

        with bounded(protocol, early) as server, connected(server.url) as (client, received):
            client.sendall(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\nx")
            assert head_of(received).startswith(b"HTTP/1.1 401")
            hurry(server)
            client.sendall(b"y")  # which ends uvicorn's own time for an idle connection
            until(lambda: open_ones(server) == 0)

    def test_a_request_that_is_answered_late_is_not_late(self, protocol: Any) -> None:
        class Late(protocol):  # type: ignore[misc]
            def _end_late(self) -> None:
                raise AssertionError("this one has a request")

        async def late(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                assert send.__self__.transport._transport.get_protocol()._late is None
            await echo(scope, receive, send)

        with bounded(Late, late) as server, httpx.Client(timeout=60) as client:
            for _ in range(2):
                assert client.post(server.url, content=b"here").content == b"here"


@pytest.mark.usefixtures("_loops")
class TestConnections:
    def test_while_too_many_are_open_the_oldest_without_a_request_are_closed(self, protocol: Any) -> None:
        most = 32
        with bounded(protocol, connections=most) as server, ExitStack() as stack:
            clients = [stack.enter_context(connected(server.url)) for _ in range(2)]
            for client, _ in clients:
                client.sendall(b"GET / HTTP/1.1\r\n")
            until(lambda: open_ones(server) == 2)
            flood = [stack.enter_context(connected(server.url)) for _ in range(5 * most)]
            assert httpx.post(server.url, content=b"here", timeout=60).content == b"here"
            until(lambda: open_ones(server) <= most + most // 16 + 1)
            assert [ends(*one) for one in (*clients, *flood[: 3 * most])] == [b""] * (3 * most + 2)

    def test_one_that_has_a_request_stays(self, protocol: Any) -> None:
        most, held = 16, []

        async def holding(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                held.append(1)
                await echo(scope, receive, send)

        with bounded(protocol, holding, connections=most) as server, ExitStack() as stack:
            client, received = stack.enter_context(connected(server.url))
            client.sendall(request("POST", b"four")[:-2])
            until(lambda: held)
            flood = [stack.enter_context(connected(server.url)) for _ in range(5 * most)]
            until(lambda: open_ones(server) <= most + most // 16 + 1)
            assert ends(*flood[0]) == b""
            client.sendall(b"ur")
            assert head_of(received).startswith(b"HTTP/1.1 200")

    def test_many_requests_in_one_piece_are_not_all_kept(self, protocol: Any) -> None:
        begun, go_on = [], threading.Event()

        async def waiting(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                begun.append(1)
                await asyncio.to_thread(go_on.wait, 60)
                await echo(scope, receive, send)

        with bounded(protocol, waiting, head_bytes=2**16) as server, connected(server.url) as (client, _):
            client.sendall(request() * 500)
            if hasattr(protocol, "on_message_begin"):
                until(lambda: open_ones(server) == 0)  # h11 reads no further by itself
            until(lambda: begun)
            go_on.set()

    def test_an_answer_that_nobody_reads_is_given_up(self, protocol: Any) -> None:
        gone = []

        async def large(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"x" * 30_000_000})
                gone.append(1)

        with bounded(protocol, large, unread_seconds=0.05) as server, connected(server.url) as (client, received):
            client.sendall(request())
            until(lambda: open_ones(server) == 0)
            until(lambda: gone)


def test_a_process_takes_as_many_descriptors_as_it_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (1024, 524288)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.update(now=wanted))
    assert bounded_heads.raise_descriptors() == 2**14
    assert limits["now"] == (2**16, 524288)
    limits["now"] = (256, 1024)
    assert bounded_heads.raise_descriptors() == 768
    assert limits["now"] == (1024, 1024)
    limits["now"] = (10**6, 10**6)
    assert bounded_heads.raise_descriptors() == 2**14
    assert limits["now"] == (10**6, 10**6)


# ---- what is kept by cycles


class Kept:
    """Keeps itself, as an error does whose traceback leads to it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.parametrize("pieces", [1, 100])
def test_bodies_that_cycles_keep_are_freed_before_many_have_come(
    protocol: Any, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, kept = b"a" * 10_000, list[weakref.ref[Kept]]()
    monkeypatch.setattr(sys.modules[protocol.__module__], "COLLECTED", 5 * len(body))

    async def keeping(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            kept.append(weakref.ref(Kept()))
        await echo(scope, receive, send)

    gc.disable()
    try:
        with bounded(protocol, keeping) as server, connected(server.url) as (client, received):
            for _ in range(20):
                sent = request("POST", body)
                for at in range(0, len(sent), len(sent) // pieces):
                    client.sendall(sent[at : at + len(sent) // pieces])
                head_of(received)
                assert received.read(len(body)) == body
                assert sum(one() is not None for one in kept) <= 5
    finally:
        gc.enable()
    assert len(kept) == 20
