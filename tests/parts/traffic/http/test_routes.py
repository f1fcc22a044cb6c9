"""Training data from what was asked, over HTTP, with the key of a tenant."""

from collections.abc import Iterator

import pytest

from http_client import Client, client_of
from modelyard import open_platform

PATH = "/v1/preview/traffic-datasets"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client with a key of acme, which has asked four questions; the host has asked one."""
    with open_platform() as platform:
        client = client_of(platform)
        platform.chat.complete(model="echo", messages="the host's", store=True)
        for words in ("one", "two", "three ada@x.org", "two"):
            body = {"model": "echo", "messages": [{"role": "user", "content": words}], "store": True}
            assert client.send("POST", CHAT, body).status == 200
        platform.models.create("bot", project="bots", entity="acme", base_model="tabular-mini")
        yield client


def test_answers_are_collected_and_trained_on_in_one_call(client: Client) -> None:
    platform = client.platform
    assert client.send("POST", PATH, {"name": "asked", "train": "acme/bots/bot"}).status == 503
    platform.worker().beat()
    body = {"name": "asked", "redact": ["email"], "train": "acme/bots/bot", "until": 253402300799}
    queued = client.ok("POST", PATH, body)
    assert (queued["status"], queued["train"]) == ("queued", None)
    platform.worker().run_until_idle()
    made = client.ok("GET", f"{PATH}/{queued['id']}")
    assert (made["train"]["rows"], made["held_out"], made["left_out"]) == (3, None, {"equal": 1})
    assert (made["status"], made["read"], made["total"]) == ("succeeded", 4, 4)
    job = platform.training.get(made["training_job_id"])
    assert (job.status, job.step) == ("succeeded", 1)
    rows = [*platform.traffic.lineage(job.model_id, 1)]
    assert {row.dataset for row in rows} == {made["train"]["url"]}
    asked = [platform.chat.get(row.sources[0]) for row in rows]
    assert {one.entity for one in asked} == {"acme"}
    again = client.ok("POST", PATH, {"name": "asked", "redact": ["email"]})
    platform.worker().run_until_idle()
    assert client.ok("GET", f"{PATH}/{again['id']}")["train"] == made["train"]
    early = {"name": "early", "train": "acme/bots/bot", "needs": {"priority": 3}}
    first = client.ok("POST", PATH, early)
    platform.worker().run_until_idle()
    trained = client.ok("GET", f"{PATH}/{first['id']}")["training_job_id"]
    assert [platform.jobs.get(id).priority for id in (first["id"], trained)] == [3, 3]
    listed = client.ok("GET", PATH)
    assert [one["id"] for one in listed["data"]] == [first["id"], again["id"], queued["id"]]


def test_the_same_request_under_a_key_is_one_collection(client: Client) -> None:
    client.platform.worker().beat()
    first, again = (
        client.send("POST", PATH, {"name": "keyed"}, headers=[("idempotency-key", "one")]).json for _ in range(2)
    )
    assert first["id"] == again["id"]
    other = client.send("POST", PATH, {"name": "other"}, headers=[("idempotency-key", "one")])
    assert other.status == 409
    assert client.ok("POST", f"{PATH}/{first['id']}/cancel")["status"] == "cancelled"


def test_a_judge_selects_answers(client: Client) -> None:
    platform = client.platform
    platform.worker().beat()
    judge = {"type": "llm_judge", "model": "echo", "prompt": "{output}: yes"}
    body = {"name": "judged", "score": judge, "at_least": 1, "limit": 2}
    queued = client.ok("POST", PATH, body)
    before = len([*platform.usage.list(entity="acme")])
    platform.worker().run_until_idle()
    made = client.ok("GET", f"{PATH}/{queued['id']}")
    assert (made["status"], made["train"]["rows"]) == ("succeeded", 2), made
    booked = [*platform.usage.list(entity="acme")][before:]
    assert {one.model for one in booked} == {"echo"}
    assert len(booked) >= 2


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({}, ["body", "name"]),
        ({"name": "x", "sources": ["chats"]}, ["body", "sources", "0"]),
        ({"name": "x", "redact": ["(a+)+$"]}, ["body", "redact", "0"]),
        ({"name": "x", "pairs": True}, ["body", "score"]),
        ({"name": "x", "at_least": 1}, ["body", "score"]),
        ({"name": "x", "score": {"type": "llm_judge", "model": "m"}}, ["body", "score", "prompt"]),
        ({"name": "x", "score": {"type": "exact_match"}}, ["body", "score", "type"]),
        ({"name": "x", "score": 3}, ["body", "score"]),
        ({"name": "x", "holdout": 1}, ["body", "holdout"]),
        ({"name": "x", "limit": 0}, ["body", "limit"]),
        ({"name": "x", "since": 1e300}, ["body", "since"]),
        ({"name": "x", "hold_out": 0.1}, ["body", "hold_out"]),
    ],
)
def test_a_body_that_does_not_fit_is_refused_at_its_place(client: Client, body: object, loc: list[object]) -> None:
    client.platform.worker().beat()
    answer = client.send("POST", PATH, body)
    assert answer.status == 422
    assert answer.locs == [loc]


def test_what_is_of_another_entity_is_refused(client: Client) -> None:
    assert client.send("POST", PATH, {"name": "x", "entity": "local"}).status == 403
    model = client.platform.models.create("m", project="p", entity="other", base_model="tabular-mini")
    assert client.send("POST", PATH, {"name": "x", "train": model.id}).status == 404


def test_a_collection_is_seen_by_its_entity_alone(client: Client) -> None:
    theirs = client.platform.traffic.submit("theirs").id
    assert client.send("GET", f"{PATH}/{theirs}").status == 404
    assert client.send("POST", f"{PATH}/{theirs}/cancel").status == 404
    assert theirs not in [one["id"] for one in client.ok("GET", PATH)["data"]]


def test_training_on_nothing_fails_with_what_was_left_out(client: Client) -> None:
    client.platform.worker().beat()
    queued = client.ok("POST", PATH, {"name": "x", "model": "nothing", "train": "acme/bots/bot"})
    client.platform.worker().run_until_idle()
    made = client.ok("GET", f"{PATH}/{queued['id']}")
    assert made["status"] == "failed"
    assert "another model 4" in made["error_message"]
