"""Questions to stored traffic over HTTP, with the key of a tenant."""

from collections.abc import Iterator
from typing import Any

import pytest

from http_client import Client, client_of
from modelyard import open_platform
from modelyard.testing import ManualClock

PATH = "/v1/what-ifs"
ASKED: dict[str, Any] = {"model": "tabular-mini", "since": "7d", "options": {"max_tokens": 20}, "budget": "0.5"}


@pytest.fixture
def client() -> Iterator[Client]:
    clock = ManualClock()
    with open_platform(entity="acme", clock=clock) as platform:
        for at in range(3):
            platform.chat.complete(model="echo", messages=f"hello {at}", store=True)
        clock.advance(1)
        yield client_of(platform)


def made(client: Client) -> str:
    client.platform.worker().beat()
    found: str = client.ok("POST", PATH, ASKED)["id"]
    client.platform.worker().run_until_idle()
    return found


def test_a_question_is_estimated_asked_shown_and_deleted(client: Client) -> None:
    estimate = client.ok("POST", f"{PATH}/estimate", ASKED)
    assert estimate["rows"] == 3
    assert float(estimate["cost"]) > 0
    path = f"{PATH}/{made(client)}"
    found = client.ok("GET", path)
    assert (found["status"], found["answers"]["done"], found["estimate"]) == ("succeeded", 3, estimate)
    assert found["repriced"]["calls"] == 3
    assert found["feedback"]["mean"] is None
    assert "no answer has an arm" in found["feedback"]["reason"]
    rows = client.ok("GET", f"{path}/rows", query={"limit": "2"})
    assert (len(rows["data"]), rows["has_more"]) == (2, True)
    more = client.ok("GET", f"{path}/rows", query={"limit": "2", "after": rows["last_id"]})
    assert len(more["data"]) == 1
    assert client.ok("POST", f"{path}/cancel")["status"] == "succeeded"
    listed = client.ok("GET", PATH)["data"]
    assert [(one["model"], one["asks"], one["budget"]) for one in listed] == [("tabular-mini", "answers", "0.5")]
    assert client.ok("DELETE", path)["spent"] == found["answers"]["spent"]
    assert client.send("GET", path).status == 404


def test_what_is_wrong_is_told_with_its_place(client: Client) -> None:
    for change, status, place in (
        ({"since": "soon"}, 422, ["body", "since"]),
        ({"model": "nobody"}, 404, None),
        ({"judge": {"type": "exact_match"}}, 422, ["body", "judge", "type"]),
        ({"prices": {"echo": {"prompt": 1.5}}}, 422, ["body", "prices", "echo"]),
        ({"asks": "nothing"}, 422, ["body", "asks"]),
        ({"limit": 0}, 422, ["body", "limit"]),
    ):
        answer = client.send("POST", f"{PATH}/estimate", {**ASKED, **change})
        assert answer.status == status, (change, answer.json)
        if place is not None:
            assert answer.json["detail"][0]["loc"][: len(place)] == place, change


def test_without_a_worker_nothing_is_queued(client: Client) -> None:
    assert client.send("POST", PATH, ASKED).status == 503
    assert client.ok("GET", PATH)["data"] == []
