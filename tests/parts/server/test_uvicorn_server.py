"""Connections whose writes are joined: clients get what uvicorn sends, in its order, and nothing is kept back."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from modelyard import open_platform
from modelyard.asgi import asgi_app
from modelyard.clock import SystemClock
from modelyard.parts.doubles.clients.server import asgi_server
from modelyard.parts.scripted.answers import pause, say
from modelyard.parts.scripted.backend import ScriptedBackend
from modelyard.parts.server.joined_writes import MOST, JoinedWrites
from modelyard.parts.server.uvicorn_server import OPTIONS
from raw_connections import connected, echo, head_of, request

CHAT = "/inference/v1/chat/completions"


class Loop:
    """Keeps what is to be called at the next turn."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def turn(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


class Transport:
    """Keeps what is done with it."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def write_eof(self) -> None:
        self.done.append("eof")

    def close(self) -> None:
        self.closing = True
        self.done.append("closed")

    def abort(self) -> None:
        self.closing = True
        self.done.append("aborted")

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str) -> str:
        return f"the {name}"


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def transport() -> Transport:
    return Transport()


@pytest.fixture
def joined(loop: Loop, transport: Transport) -> JoinedWrites:
    return JoinedWrites(transport, loop)  # type: ignore[arg-type]


class TestOneConnection:
    def test_what_is_written_in_a_turn_is_sent_at_the_next_one(self, joined: Any, loop: Loop, transport: Any) -> None:
        for word in (b"head", b"", b"body"):
            joined.write(word)
        assert transport.done == []
        loop.turn()
        joined.writelines([b"a", b"b"])
        loop.turn()
        loop.turn()
        assert transport.done == [b"headbody", b"ab"]

    def test_much_is_sent_at_once(self, joined: Any, loop: Loop, transport: Any) -> None:
        half = b"x" * (MOST // 2)
        for piece in (half, half, b"y"):
            joined.write(piece)
        assert transport.done == [half + half + b"y"]
        joined.write(b"z")
        loop.turn()
        assert transport.done[1:] == [b"z"]
        assert loop.soon == []

    @pytest.mark.parametrize(
        ("end", "done"),
        [("close", [b"word", "closed"]), ("write_eof", [b"word", "eof"]), ("abort", ["aborted"])],
    )
    def test_an_end_comes_after_what_was_written(
        self, end: str, done: list[object], joined: Any, loop: Loop, transport: Any
    ) -> None:
        joined.write(b"word")
        getattr(joined, end)()
        loop.turn()
        assert transport.done == done

    def test_a_connection_that_was_lost_meanwhile_gets_nothing(self, joined: Any, loop: Loop, transport: Any) -> None:
        joined.write(b"word")
        transport.closing = True
        loop.turn()
        assert transport.done == []
        assert joined.is_closing()

    def test_the_rest_is_what_the_transport_does(self, joined: Any) -> None:
        assert joined.get_extra_info("socket") == "the socket"


class WaitingClock(SystemClock):
    """Sleeps until it is told that the time is over."""

    def __init__(self) -> None:
        super().__init__()
        self.waited = threading.Event()

    async def asleep(self, seconds: float) -> None:
        await asyncio.to_thread(self.waited.wait, 60)


# ---- served ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_loops")
class TestServed:
    def test_answers_come_one_after_the_other_on_one_connection(self, protocol: Any) -> None:
        with asgi_server(echo, http=protocol) as server, connected(server.url) as (client, received):
            for word in (b"one", b"two"):
                client.sendall(request("POST", word))
                assert head_of(received).startswith(b"HTTP/1.1 200")
                assert received.read(3) == word

    def test_an_answer_has_the_date_and_does_not_name_the_server(self, protocol: Any) -> None:
        with asgi_server(echo, http=protocol, server_header=OPTIONS["server_header"]) as server:
            headers = httpx.post(server.url, timeout=60).headers
        assert sorted(headers) == ["content-length", "date"]

    def test_requests_sent_together_are_answered_in_order(self, protocol: Any) -> None:
        with asgi_server(echo, http=protocol) as server, connected(server.url) as (client, received):
            client.sendall(request("POST", b"one") + request("POST", b"two", "connection: close\r\n"))
            answers = received.read()
        assert answers.count(b"HTTP/1.1 200") == 2
        assert answers.index(b"\r\n\r\none") < answers.index(b"\r\n\r\ntwo")
        assert answers.endswith(b"two")

    def test_nothing_is_lost_when_the_connection_is_closed_after_the_answer(self, protocol: Any) -> None:
        body = bytes(range(256)) * 5000
        with asgi_server(echo, http=protocol) as server, connected(server.url) as (client, received):
            client.sendall(request("POST", b"x", "connection: close\r\n"))
            assert received.read().endswith(b"\r\n\r\nx")

        async def large(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                for at in range(0, len(body), 1000):
                    await send({"type": "http.response.body", "body": body[at : at + 1000], "more_body": True})
                await send({"type": "http.response.body", "body": b""})

        with asgi_server(large, http=protocol) as server:
            assert httpx.get(server.url, headers={"connection": "close"}, timeout=60).content == body

    def test_head_has_no_body(self, protocol: Any) -> None:
        with asgi_server(echo, http=protocol) as server, connected(server.url) as (client, received):
            client.sendall(request("HEAD"))
            assert b"content-length: 0" in head_of(received)
            client.sendall(request("POST", b"next"))
            head_of(received)
            assert received.read(4) == b"next"

    def test_a_client_is_told_to_go_on(self, protocol: Any) -> None:
        with asgi_server(echo, http=protocol) as server, connected(server.url) as (client, received):
            asked = request("POST", b"late", "expect: 100-continue\r\n")
            client.sendall(asked[:-4])
            assert head_of(received).startswith(b"HTTP/1.1 100")
            client.sendall(asked[-4:])
            assert head_of(received).startswith(b"HTTP/1.1 200")
            assert received.read(4) == b"late"

    def test_what_is_no_request_is_refused(self, protocol: Any) -> None:
        with asgi_server(echo, http=protocol) as server, connected(server.url) as (client, received):
            client.sendall(b"nonsense\r\n\r\n")
            assert received.read().startswith(b"HTTP/1.1 400")

    def test_an_application_that_fails_later_has_sent_what_it_sent(self, protocol: Any) -> None:
        async def failing(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"so far", "more_body": True})
                raise ValueError("no further")

        with asgi_server(failing, http=protocol) as server, connected(server.url) as (client, received):
            client.sendall(request())
            assert received.read().endswith(b"6\r\nso far\r\n")

    def test_a_client_that_leaves_harms_no_other(self, protocol: Any) -> None:
        left = threading.Event()

        async def late(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and scope["method"] == "PUT":
                await receive()
                assert (await receive())["type"] == "http.disconnect"
                left.set()
            await echo(scope, receive, send)

        with asgi_server(late, http=protocol) as server:
            with connected(server.url) as (client, _):
                client.sendall(request("PUT", b"gone"))
            assert left.wait(60)
            assert httpx.post(server.url, content=b"here", timeout=60).content == b"here"

    def test_a_client_that_does_not_read_stops_the_application(self, protocol: Any) -> None:
        pieces, sent, stopped = 4000, [0], threading.Event()

        async def large(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                return
            transport = send.__self__.transport
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(pieces):
                asyncio.get_running_loop().call_later(0, stopped.set)
                await send({"type": "http.response.body", "body": b"x" * 10_000, "more_body": True})
                sent[0] += 1
                assert transport.get_write_buffer_size() + transport._size < 4 * MOST
            await send({"type": "http.response.body", "body": b""})

        with asgi_server(large, http=protocol) as server, connected(server.url) as (client, received):
            client.sendall(request(more="connection: close\r\n"))
            head_of(received)
            assert stopped.wait(60)  # the loop turns: the application waits
            assert sent[0] < pieces
            assert received.read().count(b"x") == pieces * 10_000

    def test_a_websocket_is_turned_away(self, protocol: Any) -> None:
        upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
        upgrade += "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        with open_platform() as platform, asgi_server(asgi_app(platform), http=protocol) as server:
            with connected(server.url) as (client, received):
                client.sendall(f"GET / HTTP/1.1\r\nhost: localhost\r\n{upgrade}\r\n".encode())
                assert received.readline().startswith(b"HTTP/1.1 403")

    def test_a_head_does_not_wait_for_a_body(self, protocol: Any) -> None:
        begun = threading.Event()

        async def late(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await asyncio.to_thread(begun.wait, 60)
                await send({"type": "http.response.body", "body": b"late"})

        with asgi_server(late, http=protocol) as server, connected(server.url) as (client, received):
            client.sendall(request(more="connection: close\r\n"))
            assert head_of(received).startswith(b"HTTP/1.1 200")
            begun.set()
            assert b"late" in received.read()

    def test_a_word_does_not_wait_for_the_next_one(self, protocol: Any) -> None:
        clock = WaitingClock()
        backend = ScriptedBackend([say("hello", pause(1), " there")], clock=clock)
        body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        with open_platform(backend=backend) as platform, httpx.Client(timeout=60) as client:
            headers = {"authorization": f"Bearer {platform.keys.create().secret}"}
            with (
                asgi_server(asgi_app(platform), http=protocol) as server,
                client.stream("POST", server.url + CHAT, json=body, headers=headers) as answer,
            ):
                lines = answer.iter_lines()
                assert any("hello" in line for line in lines)
                clock.waited.set()
                assert [line for line in lines if line][-1] == "data: [DONE]"
