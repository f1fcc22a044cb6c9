"""PostgreSQL is away for a while in the middle of everything: whoever asks is told to come back, and all come back."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from http_client import client_of
from modelyard import open_platform
from modelyard.domain.schema import RECORDS
from modelyard.parts.postgres.store import PostgresStore
from modelyard.platform.runtime import Settings
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
