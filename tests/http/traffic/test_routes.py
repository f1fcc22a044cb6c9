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
    made = client.ok("POST", PATH, body)
    assert (made["train"]["rows"], made["held_out"], made["left_out"]) == (3, None, {"equal": 1})
    platform.worker().run_until_idle()
    job = platform.training.get(made["training_job_id"])
    assert (job.status, job.step) == ("succeeded", 1)
    rows = [*platform.traffic.lineage(job.model_id, 1)]
    assert {row.dataset for row in rows} == {made["train"]["url"]}
    asked = [platform.chat.get(row.sources[0]) for row in rows]
    assert {one.entity for one in asked} == {"acme"}
    assert client.ok("POST", PATH, {"name": "asked", "redact": ["email"]})["train"] == made["train"]


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({}, ["body", "name"]),
        ({"name": "x", "sources": ["chats"]}, ["body", "sources", "0"]),
        ({"name": "x", "redact": ["(a+)+$"]}, ["body", "redact", "0"]),
        ({"name": "x", "pairs": True}, ["body", "score"]),
        ({"name": "x", "at_least": 1}, ["body", "score"]),
        ({"name": "x", "score": {"type": "llm_judge"}}, ["body", "score"]),
        ({"name": "x", "holdout": 1}, ["body", "holdout"]),
        ({"name": "x", "limit": 0}, ["body", "limit"]),
        ({"name": "x", "since": 1e300}, ["body", "since"]),
        ({"name": "x", "hold_out": 0.1}, ["body", "hold_out"]),
        ({"name": "x", "model": "nothing", "train": "acme/bots/bot"}, ["body", "train"]),
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
