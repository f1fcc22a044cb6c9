"""ASGI: bytes carried both ways, a client's disappearance noticed at any moment, and a lifespan that ends."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from modelyard.asgi import asgi_app
from modelyard.compose import open_platform
from modelyard.domain.catalogue import CatalogueEntry, Quantization
from modelyard.domain.completion import Delta, FinishReason
from modelyard.errors import StoreClosed
from modelyard.executors.inline import InlineExecutor
from modelyard.http import lifespan as lifespan_module
from modelyard.http import message as message_module
from modelyard.http.late_look_fast import BegunRequests
from modelyard.http.sse_keep_alive import COMMENT
from modelyard.protocols import Capabilities
from polling import until

CHAT = "/inference/v1/chat/completions"


def scope_of(method: str, path: str, key: str = "", raw_path: bytes | None = b"", **more: Any) -> dict[str, Any]:
    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    raw = path.encode() if raw_path == b"" else raw_path
    scope = {"type": "http", "method": method, "path": path, "raw_path": raw, "query_string": b"", "headers": headers}
    return {**scope, **more}


class Connection:
    """The server's side of one request: messages to be received, and what was sent."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        for message in messages:
            self.inbox.put_nowait(message)
        self.sent: list[dict[str, Any]] = []
        self.on_send: Callable[[dict[str, Any]], None] = lambda message: None

    async def receive(self) -> dict[str, Any]:
        return await self.inbox.get()

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        self.on_send(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def raw(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


def chunk(data: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


GONE = {"type": "http.disconnect"}


def chat_body(model: str = "echo", **members: Any) -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "hello there"}], **members}).encode()


class Backend:
    """A backend of one model that keeps count of how often it was stopped."""

    blocking = False

    def __init__(self, words: int = 1) -> None:
        self.words, self.generated, self.stopped = words, 0, 0
        self.entered = threading.Event()

    def entries(self) -> tuple[CatalogueEntry, ...]:
        return (CatalogueEntry("waiter", "h", "Waiter", 0, Quantization.FP32, 10**6, 10**6),)

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities()

    def prompt_tokens(self, request: Any, model: Any) -> int:
        return 1


class Waiting(Backend):
    """Says its words, and then waits until it is stopped."""

    async def astream(self, request: Any, model: Any) -> AsyncIterator[Delta]:
        try:
            for _ in range(self.words):
                yield Delta("word ", 1)
            self.entered.set()
            await asyncio.Event().wait()
        finally:
            self.stopped += 1


class Endless(Backend):
    """Never waits, and hardly ever ends by itself."""

    def stream(self, request: Any, model: Any) -> Iterator[Delta]:
        try:
            for _ in range(400_000):
                self.generated += 1
                yield Delta("word ", 1)
            yield Delta(finish_reason=FinishReason.STOP)
        finally:
            self.stopped += 1


def run(platform: Any, scope: dict[str, Any], *messages: dict[str, Any]) -> Connection:
    async def main() -> Connection:
        connection = Connection(*messages)
        await asgi_app(platform)(scope, connection.receive, connection.send)
        return connection

    return asyncio.run(main())


@pytest.fixture
def platform() -> Iterator[Any]:
    with open_platform() as platform:
        yield platform


@pytest.fixture
def key(platform: Any) -> str:
    return str(platform.keys.create("acme").secret)


@pytest.fixture(params=["late", "at once"])
def looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the application looks at a request that waits: that is for speed alone."""
    if request.param == "at once":
        monkeypatch.setattr(BegunRequests, "add", lambda begun, receiver: receiver.look())


# ---- bytes, both ways --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("looks")
def test_a_body_may_come_in_any_number_of_chunks(platform: Any, key: str) -> None:
    raw = chat_body()
    chunks = [chunk(raw[at : at + 1], True) for at in range(len(raw))]
    for messages in (
        [chunk(raw)],
        [*chunks, chunk(b"")],
        [chunk(b"", True), chunk(raw, True), {"type": "http.request"}],
    ):
        connection = run(platform, scope_of("POST", CHAT, key), *messages)
        assert connection.status == 200
        assert json.loads(connection.raw)["choices"][0]["message"]["content"] == "hello there"


@pytest.mark.usefixtures("looks")
def test_an_answer_has_its_length_and_a_stream_has_none(platform: Any, key: str) -> None:
    whole = run(platform, scope_of("POST", CHAT, key), chunk(chat_body()))
    assert dict(whole.sent[0]["headers"])[b"content-length"] == str(len(whole.raw)).encode()
    stream = run(platform, scope_of("POST", CHAT, key), chunk(chat_body(stream=True)))
    assert b"content-length" not in dict(stream.sent[0]["headers"])
    assert stream.raw.endswith(b"data: [DONE]\n\n")
    assert stream.sent[-1] == {"type": "http.response.body", "body": b""}


def test_a_get_needs_no_body_at_all(platform: Any, key: str) -> None:
    assert run(platform, scope_of("GET", "/v1/health", key)).status == 200


@pytest.mark.parametrize(
    ("scope", "status"),
    [
        ({"path": "/v1/health", "raw_path": None}, 200),
        ({"path": "/ai/v1/health", "root_path": "/ai"}, 200),
        ({"path": "/ai/v1/health", "root_path": "/ai", "raw_path": None}, 200),
        ({"path": "/v1/health", "root_path": "/ai"}, 200),
        ({"path": "/ai/v1/health"}, 404),
        ({"path": "/v1/a/b", "raw_path": b"/v1/a%2Fb"}, 404),
    ],
)
def test_the_path_is_read_below_the_mount_point(platform: Any, key: str, scope: dict[str, Any], status: int) -> None:
    assert run(platform, scope_of("GET", key=key, **scope)).status == status


def test_header_names_of_any_case_and_values_of_any_bytes_are_taken(platform: Any, key: str) -> None:
    headers = [(b"Authorization", f"Bearer {key}".encode()), (b"x-other", b"\xff\x00\xe9")]
    assert run(platform, scope_of("GET", "/v1/health", headers=headers)).status == 200


def test_a_websocket_is_turned_away(platform: Any) -> None:
    assert run(platform, {"type": "websocket"}).sent == [{"type": "websocket.close", "code": 1000}]


def test_the_loop_is_never_blocked_by_a_store_that_waits(tmp_path: Any) -> None:
    with open_platform(tmp_path / "yard.db") as platform:
        key = platform.keys.create("acme").secret
        assert run(platform, scope_of("GET", "/v1/models", key)).status == 200
        for stream in (False, True):
            assert run(platform, scope_of("POST", CHAT, key), chunk(chat_body(stream=stream))).status == 200
        assert platform.usage.list().page().items[0].completion_tokens > 0


@pytest.mark.parametrize("path", [None, "yard.db"])
def test_a_request_never_asks_the_system_for_its_process(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    def refused() -> int:
        raise AssertionError("a system call for each request costs more than all that it is compared with")

    with open_platform(tmp_path / path if path else None) as platform:
        key = platform.keys.create("acme").secret
        scope = scope_of("POST", CHAT, key)
        assert run(platform, scope, chunk(chat_body())).status == 200  # begins threads, which may ask
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", refused)
            assert run(platform, scope, chunk(chat_body())).status == 200


def test_requests_side_by_side_do_not_mix(platform: Any, key: str) -> None:
    async def ask(app: Any, word: str) -> str:
        raw = json.dumps({"model": "echo", "messages": [{"role": "user", "content": word}]}).encode()
        connection = Connection(chunk(raw[:10], True), chunk(raw[10:]))
        await app(scope_of("POST", CHAT, key), connection.receive, connection.send)
        return str(json.loads(connection.raw)["choices"][0]["message"]["content"])

    async def main() -> list[str]:
        app = asgi_app(platform)
        return await asyncio.gather(*(ask(app, f"word{number}") for number in range(50)))

    assert asyncio.run(main()) == [f"word{number}" for number in range(50)]


# ---- clients that go away ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("looks")
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_who_goes_away_stops_the_backend_and_pays_for_what_was_said(stream: bool, late: bool) -> None:
    backend = Waiting(words=3)

    async def main(platform: Any, key: str) -> Connection:
        connection, body = Connection(), chat_body("waiter", stream=stream)
        task = asyncio.create_task(asgi_app(platform)(scope_of("POST", CHAT, key), connection.receive, connection.send))
        if late:
            connection.inbox.put_nowait(chunk(body[:10], True))
            for _ in range(8):  # until the time of its body is measured
                await asyncio.sleep(0)
        connection.inbox.put_nowait(chunk(body[10 if late else 0 :]))
        while not backend.entered.is_set():
            await asyncio.sleep(0)
        connection.inbox.put_nowait(GONE)
        await task
        assert not task.cancelled()
        return connection

    with open_platform(backend=backend) as platform:  # type: ignore[arg-type]
        connection = asyncio.run(main(platform, platform.keys.create("acme").secret))
        (entry,) = platform.usage.list().page().items
    assert backend.stopped == 1
    assert entry.completion_tokens == 3
    assert bool(connection.sent) is stream
    assert b"[DONE]" not in connection.raw


@pytest.mark.usefixtures("looks")
def test_a_client_who_goes_away_from_a_stream_that_never_waits_is_noticed() -> None:
    backend = Endless()

    async def main(platform: Any, key: str) -> None:
        connection = Connection(chunk(chat_body("waiter", stream=True)))
        connection.on_send = lambda message: connection.inbox.put_nowait(GONE) if len(connection.sent) == 3 else None
        await asgi_app(platform)(scope_of("POST", CHAT, key), connection.receive, connection.send)

    with open_platform(backend=backend) as platform:  # type: ignore[arg-type]
        asyncio.run(main(platform, platform.keys.create("acme").secret))
        (entry,) = platform.usage.list().page().items
    assert backend.stopped == 1
    assert backend.generated < 5000
    assert entry.completion_tokens == backend.generated


@pytest.mark.usefixtures("looks")
def test_a_client_who_goes_away_while_sending_leaves_nothing(platform: Any, key: str) -> None:
    run(platform, scope_of("POST", CHAT, key), chunk(b'{"model"', True), GONE)
    assert platform.usage.list().page().items == ()


@pytest.mark.usefixtures("looks")
def test_of_requests_that_begin_together_only_the_one_whose_client_goes_away_is_stopped() -> None:
    backend = Waiting()

    async def main(platform: Any, key: str) -> list[bool]:
        app = asgi_app(platform)
        connections = [Connection(chunk(chat_body("waiter"))) for _ in range(3)]
        scopes = [scope_of("POST", CHAT, key) for _ in connections]
        tasks = [
            asyncio.create_task(app(scope, connection.receive, connection.send))
            for scope, connection in zip(scopes, connections, strict=True)
        ]
        while not backend.entered.is_set():
            await asyncio.sleep(0)
        connections[1].inbox.put_nowait(GONE)
        await tasks[1]
        done = [task.done() for task in tasks]
        for connection in connections:
            connection.inbox.put_nowait(GONE)
        await asyncio.gather(*tasks)
        return done

    with open_platform(backend=backend) as platform:  # type: ignore[arg-type]
        assert asyncio.run(main(platform, platform.keys.create("acme").secret)) == [False, True, False]


def test_requests_whose_bookings_share_a_commit_are_answered_before_their_disconnect_is_watched(tmp_path: Any) -> None:
    async def main(platform: Any, key: str) -> list[tuple[int, int]]:
        app, first = asgi_app(platform), Connection(chunk(chat_body()))
        await app(scope_of("POST", CHAT, key), first.receive, first.send)  # reads the settings in a thread
        connections = [Connection(chunk(chat_body()), GONE) for _ in range(8)]
        asking = (app(scope_of("POST", CHAT, key), connection.receive, connection.send) for connection in connections)
        await asyncio.gather(*asking)
        return [(connection.status, connection.inbox.qsize()) for connection in connections]

    with open_platform(tmp_path / "yard.db") as platform:
        key = platform.keys.create("acme").secret
        assert asyncio.run(main(platform, key)) == [(200, 1)] * 8
        assert len(platform.usage.list().page().items) == 9


def test_one_application_serves_event_loops_in_several_threads_at_once() -> None:
    backend, loops = Waiting(), 3

    with open_platform(backend=backend) as platform:  # type: ignore[arg-type]
        app, key = asgi_app(platform), platform.keys.create("acme").secret
        begun = threading.Barrier(loops)

        async def leave_many() -> int:
            begun.wait(60)
            for _ in range(20):
                connection = Connection(chunk(chat_body("waiter")), GONE)
                await app(scope_of("POST", CHAT, key), connection.receive, connection.send)
            return len(asyncio.all_tasks())

        left: list[int] = []
        threads = [threading.Thread(target=lambda: left.append(asyncio.run(leave_many()))) for _ in range(loops)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert left == [1] * loops


@pytest.mark.usefixtures("looks")
def test_a_cancelled_server_task_stays_cancelled() -> None:
    backend = Waiting()

    async def main(platform: Any, key: str) -> None:
        connection = Connection(chunk(chat_body("waiter")))
        task = asyncio.create_task(asgi_app(platform)(scope_of("POST", CHAT, key), connection.receive, connection.send))
        while not backend.entered.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with open_platform(backend=backend) as platform:  # type: ignore[arg-type]
        asyncio.run(main(platform, platform.keys.create("acme").secret))
    assert backend.stopped == 1


@pytest.mark.usefixtures("looks")
def test_no_task_remains(platform: Any, key: str) -> None:
    async def main() -> set[Any]:
        app = asgi_app(platform)
        for stream in (False, True):
            connection = Connection(chunk(chat_body(stream=stream)))
            await app(scope_of("POST", CHAT, key), connection.receive, connection.send)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(main()) == set()


@pytest.mark.usefixtures("looks")
def test_a_body_that_comes_too_slowly_is_408(platform: Any, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_module, "PATIENCE", 0.02)
    connection = run(platform, scope_of("POST", CHAT, key), chunk(b'{"model"', True))
    assert connection.status == 408
    assert json.loads(connection.raw)["error"]["code"] == "body_timeout"


@pytest.mark.usefixtures("looks")
def test_a_reader_who_stalls_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelyard.asgi.STALLED", 0.02)
    backend = Endless()

    async def main(platform: Any, key: str) -> None:
        connection = Connection(chunk(chat_body("waiter", stream=True)))

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        await asgi_app(platform)(scope_of("POST", CHAT, key), connection.receive, send)

    with open_platform(backend=backend) as platform:  # type: ignore[arg-type]
        asyncio.run(main(platform, platform.keys.create("acme").secret))
    assert backend.stopped == 1


class Thinking(Backend):
    """Says a word, lets the event loop turn a few times, and says another."""

    async def astream(self, request: Any, model: Any) -> AsyncIterator[Delta]:
        yield Delta("first ", 1)
        for _ in range(20):
            await asyncio.sleep(0)
        yield Delta("last", 1, finish_reason=FinishReason.STOP)


def thought(monkeypatch: pytest.MonkeyPatch, sending: int = 0) -> list[bytes]:
    """The pieces of a stream whose backend thinks for longer than is quiet. A piece takes `sending` turns of the loop,
    in which no other may begin.
    """
    monkeypatch.setattr("modelyard.http.sse_keep_alive.QUIET", 0.0)
    pieces: list[bytes] = []

    async def main(platform: Any, key: str) -> None:
        connection, busy = Connection(chunk(chat_body("waiter", stream=True))), False

        async def send(message: dict[str, Any]) -> None:
            nonlocal busy
            assert not busy
            busy = True
            for _ in range(sending):
                await asyncio.sleep(0)
            busy = False
            pieces.append(message.get("body", b""))

        await asgi_app(platform)(scope_of("POST", CHAT, key), connection.receive, send)
        for _ in range(2):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with open_platform(backend=Thinking()) as platform:  # type: ignore[arg-type]
        asyncio.run(main(platform, platform.keys.create("acme").secret))
    return pieces


@pytest.mark.parametrize("sending", [0, 1, 5, 50])
def test_a_stream_in_which_nothing_is_said_for_long_is_kept_alive_by_comments(
    sending: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = thought(monkeypatch, sending)
    (first,) = (at for at, piece in enumerate(pieces) if b"first " in piece)
    (last,) = (at for at, piece in enumerate(pieces) if b"last" in piece)
    assert COMMENT in pieces[first + 1 : last]
    generated = b"".join(piece for piece in pieces if piece != COMMENT)
    assert [json.loads(line[6:])["object"] for line in generated.split(b"\n\n")[:-2]] == ["chat.completion.chunk"] * 4
    assert generated.endswith(b"data: [DONE]\n\n")


def test_a_body_that_is_not_an_event_stream_has_no_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelyard.asgi.EVENT_STREAM", ("content-type", "of something else"))
    assert COMMENT not in thought(monkeypatch)


def test_a_connection_that_breaks_at_the_first_word_stops_the_backend() -> None:
    backend = Endless()

    async def main(platform: Any, key: str) -> int:
        connection = Connection(chunk(chat_body("waiter", stream=True)))

        async def send(message: dict[str, Any]) -> None:
            raise OSError("the connection is gone")

        await asgi_app(platform)(scope_of("POST", CHAT, key), connection.receive, send)
        return backend.stopped

    with open_platform(backend=backend) as platform:  # type: ignore[arg-type]
        assert asyncio.run(main(platform, platform.keys.create("acme").secret)) == 1


def test_a_connection_that_breaks_at_a_whole_answer_raises_nothing(platform: Any, key: str) -> None:
    async def main() -> None:
        connection = Connection(chunk(chat_body()))

        async def send(message: dict[str, Any]) -> None:
            raise OSError("the connection is gone")

        await asgi_app(platform)(scope_of("POST", CHAT, key), connection.receive, send)

    asyncio.run(main())
    assert platform.usage.list().page().items[0].completion_tokens > 0


# ---- lifespan ----------------------------------------------------------------------------------------------------


def lifespan(platform: Any, during: Callable[[], Any] = lambda: None, **options: Any) -> list[str]:
    async def main() -> list[str]:
        connection = Connection({"type": "lifespan.startup"})

        def answered(message: dict[str, Any]) -> None:
            if message["type"] == "lifespan.startup.complete":
                asyncio.get_running_loop().create_task(shut_down())

        async def shut_down() -> None:
            await asyncio.to_thread(during)
            connection.inbox.put_nowait({"type": "lifespan.shutdown"})

        connection.on_send = answered
        await asgi_app(platform, **options)({"type": "lifespan"}, connection.receive, connection.send)
        return [message["type"] for message in connection.sent]

    return asyncio.run(main())


def test_the_worker_lives_as_long_as_the_application_when_it_is_wanted(platform: Any) -> None:
    alive = []
    complete = ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    def look() -> None:
        alive.append(platform.health.system_check().worker.success)

    before = set(threading.enumerate())
    assert lifespan(platform, look, worker=True) == complete
    assert lifespan(platform, look) == complete
    look()
    assert alive == [True, False, False]
    until(lambda: set(threading.enumerate()) <= before)


def test_the_worker_of_a_served_platform_uses_the_given_executor(platform: Any) -> None:
    class Counting(InlineExecutor):
        jobs = 0

        def submit(self, claim: Any, run: Callable[[Any], None], needs: Any = None) -> str:
            self.jobs += 1
            return super().submit(claim, run, needs)

    executor = Counting()
    model = platform.models.create("m", project="p", base_model="tabular-mini")
    job = platform.training.sft(
        model, [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    )
    lifespan(platform, lambda: job.wait(60), worker=True, executor=executor)
    assert (executor.jobs, job.refresh().status) == (1, "succeeded")


def test_the_store_is_synced_while_served_and_at_the_end(platform: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = threading.Semaphore(0)
    monkeypatch.setattr(lifespan_module, "SYNC_SECONDS", 0.001)
    monkeypatch.setattr(type(platform), "sync", lambda self: synced.release())
    lifespan(platform, lambda: [synced.acquire(timeout=60) for _ in range(3)])
    assert synced.acquire(timeout=60)


def test_a_worker_that_cannot_start_fails_the_start(platform: Any) -> None:
    async def main() -> list[str]:
        app = asgi_app(platform, worker=True)
        platform.close()
        connection = Connection({"type": "lifespan.startup"})
        with pytest.raises(StoreClosed):
            await app({"type": "lifespan"}, connection.receive, connection.send)
        return [message["type"] for message in connection.sent]

    assert asyncio.run(main()) == ["lifespan.startup.failed"]
