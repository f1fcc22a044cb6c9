"""Connections to an upstream server: answers in any pieces, what is kept, host names, several addresses, and TLS."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import certifi
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.backends import Timeouts
from modelyard.backends.echo import EchoBackend
from modelyard.errors import BackendError
from modelyard.parts.doubles.clients.server import asgi_server
from modelyard.parts.upstream import connections
from modelyard.parts.upstream.address import Address
from modelyard.parts.upstream.connections import MOST_BUFFERED, MOST_WHOLE, AsyncConnection, IdleConnections
from modelyard.parts.upstream.fake_vllm.server import FakeVllm
from modelyard.parts.upstream.response import MOST_OF_A_HEAD, ConnectionBroken, UpstreamResponse
from server_pem import SERVER_PEM
from upstream_asking import TIMEOUTS, Hurried, ask_on_loop, backend_at, request_of, served, text_of

SAID = "one two three four"
LENGTH = b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\ncontent-length: 10\r\n\r\n0123456789"
CHUNKS = (
    b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\ntransfer-encoding: chunked\r\n\r\n"
    b"4;x=1\r\n0123\r\n6\r\n456789\r\n0\r\nt: 1\r\n\r\n"
)
WITHOUT = b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\n\r\n0123456789"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\ncontent-length: 3\r\n\r\n"


# ---- answers -------------------------------------------------------------------------------------------------------


class TestAnswers:
    @given(
        raw=st.sampled_from([LENGTH, CHUNKS, WITHOUT, INTERIM + LENGTH, INTERIM + CHUNKS]),
        cuts=st.lists(st.integers(0, 200), max_size=12),
    )
    def test_an_answer_is_the_same_however_it_is_cut(self, raw: bytes, cuts: list[int]) -> None:
        answer, body = UpstreamResponse(), b""
        places = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
        for start, end in pairwise(places):
            answer.feed(raw[start:end])
            body += answer.take()
        reusable = answer.reusable
        if not answer.complete:
            answer.feed(b"")
        assert answer.head is not None
        assert (answer.head.status, answer.head.content_type, body) == (200, "a/b", b"0123456789")
        assert (answer.complete, reusable) == (True, WITHOUT not in raw)

    @each_case("raw", [b"", LENGTH[:20], LENGTH[:-1], CHUNKS[:-3]])
    def test_an_end_within_an_answer_is_a_broken_connection(self, raw: bytes) -> None:
        answer = UpstreamResponse()
        if raw:
            answer.feed(raw)
        with pytest.raises(ConnectionBroken):
            answer.feed(b"")

    @each_case(
        "raw",
        [
            b"SSH-2.0-OpenSSH\r\n",
            b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nx: " + b"y" * MOST_OF_A_HEAD,
        ],
        ids=[
            "another protocol",
            "another protocol after it",
            "two lengths",
            "a head without end",
        ],
    )
    def test_what_is_not_an_answer_is_a_broken_connection(self, raw: bytes) -> None:
        with pytest.raises(ConnectionBroken):
            UpstreamResponse().feed(raw)

    def test_a_connection_with_more_than_the_answer_is_not_used_again(self) -> None:
        answer = UpstreamResponse()
        answer.feed(LENGTH + LENGTH)
        assert (answer.take(), answer.complete, answer.reusable) == (b"0123456789", True, False)

    def test_a_connection_that_the_server_closes_is_not_used_again(self) -> None:
        answer = UpstreamResponse()
        answer.feed(LENGTH.replace(b"content-type: a/b", b"connection: close"))
        assert (answer.complete, answer.reusable) == (True, False)


# ---- connections ---------------------------------------------------------------------------------------------------


class Idle:
    """A connection that carries nothing."""

    def __init__(self, stale: bool = False) -> None:
        self.response = UpstreamResponse()
        self.response.feed(LENGTH)
        self.stale, self.closed = stale, False

    def is_stale(self) -> bool:
        return self.stale

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the pools, in an item that a test may change."""
    moment = [100.0]
    monkeypatch.setattr(connections.time, "monotonic", lambda: moment[0])
    return moment


class TestIdle:
    def test_the_last_one_is_taken_while_it_is_good_and_not_too_old(self, now: list[float]) -> None:
        pool: IdleConnections[Idle] = IdleConnections(8)
        old, stale, good = Idle(), Idle(stale=True), Idle()
        pool.give_back(old)
        now[0] += connections.KEPT - 1
        pool.give_back(good)
        pool.give_back(stale)
        assert pool.take() is good
        now[0] += 1
        assert pool.take() is None
        assert (old.closed, stale.closed, good.closed) == (True, True, False)

    def test_those_that_are_too_old_or_too_many_are_closed_when_another_is_given_back(self, now: list[float]) -> None:
        pool: IdleConnections[Idle] = IdleConnections(2)
        given = [Idle() for _ in range(4)]
        for connection in given[:3]:
            pool.give_back(connection)
        assert [one.closed for one in given] == [True, False, False, False]
        now[0] += connections.KEPT
        pool.give_back(given[3])
        assert [one.closed for one in given] == [True, True, True, False]

    def test_one_in_the_midst_of_an_answer_or_of_a_closed_pool_is_closed(self) -> None:
        pool: IdleConnections[Idle] = IdleConnections(8)
        midst, late = Idle(), Idle()
        midst.response = UpstreamResponse()
        pool.give_back(midst)
        pool.close()
        pool.give_back(late)
        assert midst.closed
        assert late.closed


class Pipe(asyncio.Transport):
    """A transport that notes whether it reads."""

    reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def write(self, data: Any) -> None:
        pass


def test_a_server_has_to_wait_for_a_slow_reader() -> None:
    connection, pipe = AsyncConnection(), Pipe()
    connection.connection_made(pipe)
    connection.send(b"")
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * MOST_BUFFERED)
    assert pipe.reading
    connection.data_received(b"x")
    assert not pipe.reading
    assert len(connection.take()) == MOST_BUFFERED + 1
    assert pipe.reading


def test_an_answer_that_is_wanted_whole_is_read_on_up_to_a_limit() -> None:
    async def ended(pieces: int) -> int:
        connection, pipe = AsyncConnection(), Pipe()
        connection.connection_made(pipe)
        connection.send(b"")
        connection.data_received(f"HTTP/1.1 200 OK\r\ncontent-length: {pieces * MOST_BUFFERED}\r\n\r\n".encode())
        whole = asyncio.ensure_future(connection.end())
        for _ in range(pieces):
            await asyncio.sleep(0)  # the reader has its turn
            if whole.done():
                break
            assert pipe.reading
            connection.data_received(b"x" * MOST_BUFFERED)
        await whole
        return len(connection.take())

    assert asyncio.run(ended(4)) == 4 * MOST_BUFFERED
    with pytest.raises(ConnectionBroken, match="longer than"):
        asyncio.run(ended(2 + MOST_WHOLE // MOST_BUFFERED))


# ---- names ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Names for servers: `named(name, *addresses)`; the look-up of one without addresses waits for the test's end."""
    known: dict[str, tuple[str, ...]] = {}
    over, original = threading.Event(), socket.getaddrinfo

    def look_up(host: Any, port: Any, *more: Any, **options: Any) -> Any:
        if host not in known:
            return original(host, port, *more, **options)
        if not known[host]:
            over.wait()
            raise socket.gaierror("no such host")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, port)) for place in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield known.__setitem__
    over.set()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Where a server answers on 127.0.0.1."""
    with FakeVllm(EchoBackend()).serve() as url:
        yield int(url.rpartition(":")[2])


class TestNames:
    def test_a_resolver_that_hangs_delays_no_other_server_and_nothing_else_of_the_loop(
        self, named: Any, port: int
    ) -> None:
        named("hangs.test", ())
        named("answers.test", ("127.0.0.1",))

        async def main() -> tuple[str, int, list[Any]]:
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
            waiting = [asyncio.create_task(drained(hanging)) for _ in range(8)]
            generated = await drained(other)
            free = await asyncio.to_thread(lambda: 1)  # the loop's own threads
            for task in waiting:
                task.cancel()
            return generated, free, await asyncio.gather(*waiting, return_exceptions=True)

        with (
            backend_at(f"http://hangs.test:{port}/v1", timeouts=Timeouts(connect=1e6)) as hanging,
            backend_at(f"http://answers.test:{port}/v1") as other,
        ):
            generated, free, ended = asyncio.run(main())
        assert (generated, free) == (SAID, 1)
        assert all(isinstance(error, asyncio.CancelledError) for error in ended)

    def test_connections_to_one_server_share_a_look_up(self, named: Any, port: int) -> None:
        named("hangs.test", ())

        async def main() -> int:
            before = resolving()
            waiting = [asyncio.create_task(drained(backend)) for _ in range(8)]
            for _ in range(20):
                await asyncio.sleep(0)
            started = len(resolving() - before)
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            return started

        with backend_at(f"http://hangs.test:{port}/v1", timeouts=Timeouts(connect=1e6)) as backend:
            assert asyncio.run(main()) == 1

    def test_a_name_that_is_not_found_is_a_server_that_cannot_be_reached(self, either: Any, named: Any) -> None:
        named("nowhere.test", ("127.0.0.1",))
        with backend_at("http://nowhere.test:9/v1", clock=Hurried(), timeouts=TIMEOUTS) as backend:
            with pytest.raises(BackendError, match="cannot be reached"):
                either(backend)

    def test_each_address_of_a_name_is_tried(self, either: Any, named: Any, port: int) -> None:
        named("many.test", ("127.0.0.2", "127.0.0.1"))
        with backend_at(f"http://many.test:{port}/v1") as backend:
            assert text_of(either(backend)) == SAID

    def test_an_address_that_does_not_answer_holds_the_next_one_up_for_a_moment_only(
        self, named: Any, port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        named("many.test", ("127.0.0.3", "127.0.0.1"))
        original, cancelled = connections.LoopConnections._connect, []

        async def connect(self: Any, place: str) -> AsyncConnection:
            if place == "127.0.0.3":
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.append(place)
            return await original(self, place)

        monkeypatch.setattr(connections.LoopConnections, "_connect", connect)
        with backend_at(f"http://many.test:{port}/v1", timeouts=Timeouts(connect=1e6)) as backend:
            assert text_of(ask_on_loop(backend)) == SAID
        assert cancelled == ["127.0.0.3"]


def resolving() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("modelyard-resolver")}


async def drained(backend: Any) -> str:
    return text_of([deltas async for deltas in backend.astream(request_of(), served(backend))])


# ---- addresses and TLS ---------------------------------------------------------------------------------------------


@each_case(
    ("url", "place", "target"),
    [
        ("http://gpu/v1/", "gpu", "/v1/x"),
        ("http://gpu:8000", "gpu:8000", "/x"),
        ("http://[::1]:8000/v1", "[::1]:8000", "/v1/x"),
        ("https://bücher.example/ä", "xn--bcher-kva.example", "/%C3%A4/x"),
    ],
)
def test_a_request_names_the_server_and_the_path(url: str, place: str, target: str) -> None:
    head, _, body = Address(url, "k").request("POST", "/x", b"{}").partition(b"\r\n\r\n")
    first, *headers = head.decode().split("\r\n")
    assert (first, body) == (f"POST {target} HTTP/1.1", b"{}")
    assert {f"host: {place}", "authorization: Bearer k", "content-length: 2"} <= set(headers)


@pytest.fixture(scope="module")
def https(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The URL of a server with a certificate for localhost, and the file of the certificate."""
    pem = tmp_path_factory.mktemp("tls") / "server.pem"
    pem.write_text(SERVER_PEM)
    with asgi_server(FakeVllm(EchoBackend()), lifespan="off", ssl_certfile=str(pem)) as server:
        yield f"{server.url.replace('http://127.0.0.1', 'https://localhost')}/v1", pem


class TestTls:
    def test_a_server_with_a_certificate_of_a_known_authority_answers(
        self, https: tuple[str, Path], either: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(certifi, "where", lambda: str(https[1]))
        for url in (https[0], https[0].replace("localhost", "127.0.0.1")):
            with backend_at(url) as backend:
                assert text_of(either(backend, streamed=True)) == SAID

    def test_one_of_an_unknown_authority_is_refused_whatever_the_environment_trusts(
        self, https: tuple[str, Path], either: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(https[1]))
        with backend_at(https[0], clock=Hurried(), timeouts=TIMEOUTS) as backend:
            with pytest.raises(BackendError, match="cannot be reached"):
                either(backend)
