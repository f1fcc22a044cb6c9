"""Webhooks over HTTP, on the command line and in the dashboard; and who delivers them."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from modelyard import Platform, open_platform
from modelyard.asgi import Endpoint, Request
from modelyard.cli import main
from modelyard.http.lifespan import served
from modelyard.parts.webhooks.delivery import MAX_ATTEMPTS, Deliveries
from modelyard.parts.webhooks.service import NewWebhook
from modelyard.testing import ManualClock
from polling import until
from webhook_receiver import Receiver, answering


class Client:
    def __init__(self, platform: Platform, secret: str) -> None:
        self._endpoint, self._secret = Endpoint(platform), secret

    def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        raw, _, query = path.partition("?")
        headers = [("authorization", f"Bearer {self._secret}"), ("content-type", "application/json")]
        pieces = [] if body is None else [json.dumps(body).encode()]
        answer = self._endpoint.handle(Request(method, f"/v1/webhooks{raw}", query, headers, iter(pieces)))
        assert isinstance(answer.body, bytes)
        return answer.status, json.loads(answer.body)


@pytest.fixture
def ask(platform: Platform) -> Client:
    return Client(platform, platform.keys.create("acme").secret)


def test_a_misspelt_member_is_refused_with_the_nearest_name(ask: Client) -> None:
    status, refused = ask("POST", "", {"url": "https://example.org/hook", "event": ["job.ended"]})
    assert status in (400, 422)
    assert "did you mean 'events'?" in json.dumps(refused)
    assert ask("GET", "")[1]["data"] == []


def test_a_tenant_looks_after_its_own(ask: Client, platform: Platform) -> None:
    status, made = ask("POST", "", {"url": "https://example.org/hook", "events": ["job.ended"]})
    assert status == 200
    assert made["secret"].startswith("whsec_")
    shown = made["webhook"]
    assert shown["entity"] == "acme"
    assert ask("GET", f"/{shown['id']}") == (200, shown)
    assert ask("GET", "")[1]["data"] == [shown]
    assert ask("GET", "?entity=globex")[0] == 403
    status, rotated = ask("POST", f"/{shown['id']}/rotate")
    assert rotated["secret"] != made["secret"]
    assert ask("POST", f"/{shown['id']}/test")[0] == 200
    assert ask("DELETE", f"/{shown['id']}")[0] == 200
    assert ask("GET", f"/{shown['id']}")[0] == 404
    assert [*platform.webhooks.waiting()] == []


def test_what_a_tenant_may_not_have_is_refused(ask: Client) -> None:
    for body in ({"url": "http://example.org"}, {"url": "https://example.org", "events": ["x"]}, {}):
        status, answer = ask("POST", "", body)
        assert status == 422, answer
    assert ask("POST", "", {"url": "http://127.0.0.1:1/", "trusted": True})[0] == 403
    assert ask("POST", "", {"url": "https://example.org", "entity": "globex"})[0] == 403


def test_a_host_may_trust_an_endpoint(platform: Platform, receiver: Receiver) -> None:
    host = Client(platform, platform.keys.create("local", host=True).secret)
    status, made = host("POST", "", {"url": receiver.url, "trusted": True, "entity": "acme"})
    assert (status, made["webhook"]["trusted"]) == (200, True)


def test_a_dead_message_is_redelivered(
    platform: Platform, clock: ManualClock, receiver: Receiver, hook: NewWebhook
) -> None:
    mine = Client(platform, platform.keys.create("local").secret)
    receiver.answer = answering(500)
    kill(platform, clock, hook)
    (dead,) = mine("GET", "/dead")[1]["data"]
    assert dead["attempts"] == MAX_ATTEMPTS
    receiver.answer = answering(200)
    assert mine("POST", f"/dead/{dead['id']}/redeliver")[0] == 200
    assert platform.webhooks.deliver() == Deliveries(delivered=1)
    assert mine("GET", "/dead")[1]["data"] == []


def kill(platform: Platform, clock: ManualClock, hook: NewWebhook) -> str:
    message = platform.webhooks.test(hook.endpoint.id)
    for _ in range(MAX_ATTEMPTS):
        platform.webhooks.deliver()
        clock.advance(hours=6)
    return message.id


# ---- the dashboard


def test_the_page_shows_endpoints_and_what_is_dead(
    platform: Platform, clock: ManualClock, receiver: Receiver, hook: NewWebhook
) -> None:
    receiver.answer = answering(500)
    kill(platform, clock, hook)
    site = platform.site(reader=platform._principal)
    answer = site.handle(Request("GET", "/dashboard/webhooks", "", [("host", "localhost")], iter([])))
    assert isinstance(answer.body, bytes)
    page = answer.body.decode()
    assert receiver.url in page
    assert "answered 500" in page
    assert hook.secret not in page
    assert page.index(">address<") < page.index(">id<"), "what it is comes before its id"


# ---- the command line


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.chdir(tmp_path)

    def call(*words: str, fails: bool = False) -> str:
        done = CliRunner().invoke(main, ["webhooks", *words])
        assert bool(done.exit_code) is fails, done.output
        return done.output

    return call


def test_the_commands(run: Any, receiver: Receiver) -> None:
    made = json.loads(run("add", receiver.url, "--entity", "acme", "--trusted", "--event", "job.ended", "--json"))
    assert [one["id"] for one in json.loads(run("list", "--json"))] == [made["id"]]
    assert made["secret"] not in run("list")
    assert "  job.ended  " in run("list")
    assert "delivered" in run("test", made["id"])
    receiver.answer = answering(500)
    assert "answered 500" in run("test", made["id"], fails=True)
    assert run("rotate", made["id"]).startswith("whsec_")
    assert json.loads(run("dead", "--json")) == []
    with open_platform("yard.db") as platform:
        (message,) = platform.webhooks.waiting()
    assert "is due" in run("redeliver", message.id)
    assert "removed" in run("remove", made["id"])
    assert json.loads(run("list", "--json")) == []
    refused = run("add", "http://example.org", "--entity", "acme", fails=True)
    assert "must begin with https" in refused
    assert "--trusted" in refused
    run("add", "https://example.org", "--entity", "acme")
    assert "  all  " in run("list")


# ---- who delivers


def test_a_served_platform_delivers(receiver: Receiver) -> None:
    clock = ManualClock()

    async def serve(platform: Platform) -> None:
        async with served(platform, False, None):
            await asyncio.sleep(0)
            await clock.aadvance(1.5)
            while not receiver.received:
                await asyncio.sleep(0.001)

    with open_platform(clock=clock) as platform:
        hook = platform.webhooks.add(receiver.url, trusted=True)
        platform.webhooks.test(hook.endpoint.id)
        asyncio.run(serve(platform))


def test_a_worker_delivers(receiver: Receiver) -> None:
    clock = ManualClock()
    with open_platform(clock=clock) as platform:
        hook = platform.webhooks.add(receiver.url, trusted=True)
        platform.webhooks.test(hook.endpoint.id)
        with platform.worker():
            clock.advance(2)
            until(lambda: receiver.received)
