"""PostgreSQL is away for a while in the middle of everything: whoever asks is told to come back, and all come back."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from http_client import client_of
from modelyard import Platform, open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.backends.router import Router
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.domain.identity import host
from modelyard.domain.job import Job
from modelyard.domain.record import KEY
from modelyard.domain.schema import RECORDS
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.errors import StoreError
from modelyard.http.message import Request
from modelyard.parts.dashboard.app import Dashboard
from modelyard.parts.dashboard.exchange import PageExchange
from modelyard.parts.postgres.store import PostgresStore
from modelyard.platform.runtime import Settings
from modelyard.protocols import ServedModel, TrainItem
from polling import until
from postgres_server import PostgresServer, server_folder

IMPATIENT = 0.1
EXAMPLE = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
ASKED = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
CALLS: list[tuple[str, str, Any]] = [
    ("POST", "/v1/chat/completions", ASKED),
    ("POST", "/v1/chat/completions", {**ASKED, "store": True}),
    ("POST", "/v1/chat/completions", {**ASKED, "stream": True}),
    ("POST", "/v1/messages", {**ASKED, "max_tokens": 9}),
    ("POST", "/v1/responses", {"model": "echo", "input": "hi"}),
    ("POST", "/v1/embeddings", {"model": "echo", "input": "hi"}),
    ("GET", "/v1/chat/completions", None),
    ("GET", "/v1/files", None),
]


@pytest.fixture
def own_server(postgres: PostgresServer) -> Iterator[PostgresServer]:
    folder = server_folder()
    assert folder is not None
    server = PostgresServer(folder)
    yield server
    server.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_all_come_back_by_themselves_after_a_server_that_was_away(own_server: PostgresServer, how: str) -> None:
    store = PostgresStore(own_server.create_database(), RECORDS, patience=IMPATIENT)
    settings = Settings(poll=0.02, lease=1.0)
    with open_platform(store=store, artifacts="memory://", settings=settings) as platform:
        platform.usage.set_budget(100)
        client = client_of(platform)
        model = platform.models.create("m", base_model="tabular-mini")
        before = [client.send(method, path, body).status for method, path, body in CALLS]
        assert set(before) == {200}
        with platform.worker() as worker:
            first = platform.training.sft(model, [EXAMPLE])
            until(lambda: platform.jobs.get(first.id).ended_at is not None)
            followed: list[str] = []
            own_server.stop(how)
            for method, path, body in CALLS:
                refused = client.send(method, path, body)
                assert refused.status == 503, (path, refused.status, refused.raw)
                assert int(refused.headers["retry-after"]) >= 1
            until(lambda: client.send("GET", "/readyz").status == 503)  # it tells of the last look
            own_server.start()
            until(lambda: client.send("GET", "/readyz").status == 200)
            second = platform.training.sft(model, [EXAMPLE])

            def follow() -> None:
                followed.extend(event.type for event in second.events())

            follower = threading.Thread(target=follow)
            follower.start()
            follower.join(60)
            assert followed[-1] == "training_ended"
            assert not worker.failed
        after = [client.send(method, path, body).status for method, path, body in CALLS]
        assert set(after) == {200}
    store.close()


@attrs.define(eq=False)
class Held:
    """Something that goes on only when it is told to, after its second piece."""

    reached: threading.Event = attrs.field(factory=threading.Event)
    released: threading.Event = attrs.field(factory=threading.Event)

    def hold(self, pieces: Iterator[Any]) -> Iterator[Any]:
        for number, piece in enumerate(pieces):
            yield piece
            if number == 1:
                self.reached.set()
                assert self.released.wait(60)


class HeldTrainer(TabularTrainer):
    def __init__(self) -> None:
        super().__init__()
        self.held = Held()

    def train(self, *arguments: Any) -> Iterator[TrainItem]:
        return self.held.hold(super().train(*arguments))


class HeldBackend(EchoBackend):
    blocking = True

    def __init__(self) -> None:
        super().__init__(("held",))
        self.held = Held()

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        return self.held.hold(super().stream(request, model))


@contextmanager
def held_site(server: PostgresServer) -> Iterator[tuple[Platform, HeldTrainer, HeldBackend]]:
    """A platform whose trainings and answers of the model "held" stop in the middle."""
    trainer, backend = HeldTrainer(), HeldBackend()
    options: dict[str, Any] = {
        "trainers": [trainer],
        "backend": Router([EchoBackend(), TabularBackend(), backend]),
        "settings": Settings(poll=0.02, lease=1.0),
    }
    with closing(PostgresStore(server.create_database(), RECORDS, patience=IMPATIENT)) as store:
        with open_platform(store=store, artifacts="memory://", **options) as platform:
            yield platform, trainer, backend


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_who_waits_for_a_job_or_follows_it_hears_of_all_of_it(
    own_server: PostgresServer, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    with held_site(own_server) as (platform, trainer, _), platform.worker(), ThreadPoolExecutor(3) as pool:
        job = platform.training.sft(platform.models.create("m", base_model="tabular-mini"), [EXAMPLE] * 4)

        async def follow() -> list[str]:
            return [event.id async for event in job.aevents()]

        followers = [
            pool.submit(lambda: [event.id for event in job.events()]),
            pool.submit(lambda: asyncio.run(follow())),
        ]
        waiting = pool.submit(job.wait)
        try:
            assert trainer.held.reached.wait(60)
            own_server.stop(how)
            until(lambda: caplog.text.count("is looked at again in") >= 3 * len(followers))
        finally:
            trainer.held.released.set()
            own_server.start()
        assert waiting.result(60).status == "succeeded"
        stored = [event.id for event in platform.training.events(job.id)]
        assert [follower.result(60) for follower in followers] == [stored, stored]


@pytest.mark.slow
def test_the_command_that_watches_a_job_comes_back_by_itself(own_server: PostgresServer, tmp_path: Path) -> None:
    """It says that it waits. It waits ten seconds for each look, so three of them are an outage of half a minute."""
    with held_site(own_server) as (platform, trainer, _), platform.worker():
        job = platform.training.sft(platform.models.create("m", base_model="tabular-mini"), [EXAMPLE] * 4)
        assert trainer.held.reached.wait(60)
        words = ["jobs", "watch", job.id, "--store", own_server.address("yard1")]
        with subprocess.Popen(
            [sys.executable, "-m", "modelyard.cli", *words, "--artifacts", str(tmp_path / "artifacts")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as watch:
            assert watch.stdout is not None
            assert watch.stderr is not None
            try:
                assert watch.stdout.readline().strip() == job.id  # it follows
                own_server.stop()
                looks = 0
                while looks < 3:
                    line = watch.stderr.readline()
                    assert line, "it has ended"
                    looks += "waiting for the store; the job is looked at again in" in line
            finally:
                trainer.held.released.set()
                own_server.start()
            told, rest = watch.communicate(timeout=60)
        assert (watch.returncode, "Traceback" in rest) == (0, False), (told, rest)
        assert "succeeded" in told.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_an_answer_that_is_streamed_meanwhile_ends_readable(own_server: PostgresServer, how: str) -> None:
    """Either to its end, and then it is in the ledger, or by an error."""
    with held_site(own_server) as (platform, _, backend):
        client = client_of(platform)
        platform.usage.set_budget(10**6, entity="acme")
        asked = {"model": "held", "stream": True, "messages": [{"role": "user", "content": "one two three four"}]}
        head = [*client.credentials(), ("content-type", "application/json")]
        request = Request("POST", "/v1/chat/completions", "", head, iter([json.dumps(asked).encode()]))
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(lambda: b"".join(client.endpoint.handle(request).body))
            assert backend.held.reached.wait(60)
            own_server.stop(how)
            backend.held.released.set()
            last = [piece.removeprefix(b"data: ") for piece in answer.result(60).split(b"\n\n") if piece]
        own_server.start()
        assert last[-1] == b"[DONE]" or "error" in json.loads(last[-1])
        if last[-1] == b"[DONE]":
            until(lambda: [entry.id for entry in platform.usage.list()] == [json.loads(last[0])["id"]])
        until(lambda: client.send(*CALLS[0]).status == 200)
        budget = platform.usage.get_budget(entity="acme")
        assert budget is not None
        assert budget.reserved == 0


@pytest.mark.slow
def test_pages_and_metrics_are_to_be_asked_again_and_a_live_page_continues(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, update = list[PageExchange](), PageExchange.update
    monkeypatch.setattr("modelyard.parts.dashboard.app.LIVE_SECONDS", 0.01)
    monkeypatch.setattr(PageExchange, "update", lambda exchange: looked.append(exchange) or update(exchange))
    with held_site(own_server) as (platform, _, _):
        client, ops = client_of(platform), platform.keys.create("ops", host=True).secret
        pages = Dashboard(platform, reader=host())

        def page(query: str = "") -> Any:
            return pages.handle(Request("GET", "/dashboard/", query, [("host", "127.0.0.1")], iter(())))

        shown: list[str] = []
        seen, back = threading.Event(), threading.Event()

        async def watch() -> None:
            request = Request("GET", "/dashboard/", "live=1", [("host", "127.0.0.1")], aread_nothing())
            answer = await pages.ahandle(request)
            async for event in answer.body:
                shown.append(event.decode())
                seen.set()
                if back.is_set():
                    return

        assert page().status == 200
        with ThreadPoolExecutor(1) as pool:
            watching = pool.submit(lambda: asyncio.run(watch()))
            assert seen.wait(60)
            own_server.stop()
            refused = page()
            assert (refused.status, dict(refused.headers)["retry-after"]) == (503, "1")
            assert str(own_server.folder).encode() not in refused.body
            metrics = client.send("GET", "/metrics", key=ops)
            assert (metrics.status, metrics.headers["retry-after"]) == (503, "1")
            until(lambda: client.send("GET", "/readyz").status == 503)
            looked.clear()
            until(lambda: watching.done() or len(looked) > 2)
            own_server.start()
            until(lambda: page().status == 200)
            back.set()
            with platform.worker():
                platform.training.sft(platform.models.create("m", base_model="tabular-mini"), [EXAMPLE])
            watching.result(60)
        assert "event: end" not in "".join(shown)
        assert client.send("GET", "/metrics", key=ops).status == 200


async def aread_nothing() -> Any:
    """The body of a request that has none."""
    for piece in ():
        yield piece


@pytest.mark.slow
@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_closing_waits_for_no_server_that_is_away(own_server: PostgresServer, how: str) -> None:
    """Not even if a call waits for it, as long as that may."""
    store = PostgresStore(own_server.create_database(), RECORDS, patience=3600)
    own_server.stop(how)
    with closing(store), ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(store.transact, lambda tx: tx.find(Job, KEY, "none"))
        until(lambda: store._group._leader is not None)
        closing_it = pool.submit(store.close)
        assert isinstance(waiting.exception(60), StoreError)
        assert closing_it.exception(60) is None
