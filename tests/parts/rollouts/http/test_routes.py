"""Rollouts over HTTP, with the key of a tenant."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from http_client import Client, client_of
from modelyard import open_platform
from modelyard.testing import ManualClock
from rolled_out import ALIAS, NAME, trained

START = {"model": NAME, "step": 1, "canary": [0.5, 1.0], "guard": {"margin": 0.3}, "least": 5}


@pytest.fixture
def client() -> Iterator[Client]:
    with open_platform(entity="acme", clock=ManualClock(), randomness=Random(1).randbytes) as platform:
        trained(platform)
        yield client_of(platform)


def ask(client: Client, user: str, path: str = "/inference/v1/chat/completions") -> dict[str, Any]:
    body = {"model": ALIAS, "messages": [{"role": "user", "content": "hello"}], "user": user, "max_tokens": 2}
    found: dict[str, Any] = client.ok("POST", path, body)
    return found


def test_a_rollout_is_started_scored_and_promoted(client: Client) -> None:
    made = client.ok("POST", "/v1/rollouts", START)
    path = f"/v1/rollouts/{made['id']}"
    assert (made["state"], made["stage"], made["baseline"], made["step"]) == ("canary", 0, 0, 1)
    for user in range(80):
        answer = ask(client, f"user {user}")
        scored = client.ok("PUT", f"/v1/rollouts/answers/{answer['id']}/scores/thumbs", {"value": True})
        assert (scored["answer"], scored["value"], scored["counted"]) == (answer["id"], 1.0, True)
    client.platform.rollouts.look(made["id"])
    assert client.ok("GET", path)["state"] == "watch"
    found = client.ok("GET", f"{path}/standing")
    assert (found["stage"], found["baseline"]["mean"], found["candidate"]["mean"]) == (1, 1.0, None)
    steps = client.ok("GET", f"{path}/steps")["data"]
    assert [one["change"] for one in steps] == ["started", "advanced"]
    answers = client.ok("GET", f"{path}/answers", query={"limit": "100"})["data"]
    assert {(one["arm"], one["propensity"]) for one in answers} == {("baseline", 0.5), ("candidate", 0.5)}
    assert [one["id"] for one in client.ok("GET", "/v1/rollouts", query={"model": NAME})["data"]] == [made["id"]]
    stopped = client.ok("POST", f"{path}/stop", {"reason": "enough"})
    assert (stopped["state"], stopped["reason"]) == ("rolled_back", "enough")
    assert client.ok("DELETE", path)["id"] == made["id"]
    assert client.send("GET", path).status == 404


def test_a_rollout_is_shown_in_the_form_in_which_it_is_given(client: Client) -> None:
    guard = {"metric": "edits", "margin": 0.3, "confidence": 0.9, "lower_is_better": True}
    shadow = {
        "answers": 7,
        "share": 0.5,
        "purse": "2",
        "lasts": "90m",
        "scorer": {"type": "regular_expression", "pattern": "a"},
    }
    asked = {**START, "guard": guard, "also": {"errors": 0.05}, "shadow": shadow}
    made = client.ok("POST", "/v1/rollouts", asked)
    scorer = made["shadow"].pop("scorer")
    assert (scorer["type"], scorer["pattern"]) == ("regular_expression", "a")
    assert made["shadow"] == {name: shadow[name] for name in ("answers", "share", "purse", "lasts")}
    made["shadow"]["scorer"] = scorer
    assert {name: made[name] for name in ("guard", "also", "canary", "least")} == {
        name: asked[name] for name in ("guard", "also", "canary", "least")
    }
    client.ok("POST", f"/v1/rollouts/{made['id']}/stop", {})
    again = client.ok("POST", "/v1/rollouts", {**{name: made[name] for name in asked}, "model": NAME})
    assert {name: again[name] for name in asked} == {name: made[name] for name in asked}
    client.ok("POST", f"/v1/rollouts/{again['id']}/stop", {})
    assert client.ok("POST", "/v1/rollouts", START)["shadow"] is None


def test_what_is_wrong_is_told_with_its_place(client: Client) -> None:
    for change, status, place in (
        ({"canary": [0.5]}, 422, ["body", "canary"]),
        ({"guard": {"margin": 0}}, 422, ["body", "guard", "margin"]),
        ({"shadow": {"purse": "much"}}, 422, ["body", "shadow", "purse"]),
        ({"shadow": {"scorer": {"type": "regex"}}}, 422, ["body", "shadow", "scorer", "type"]),
        ({"step": 9}, 404, None),
    ):
        answer = client.send("POST", "/v1/rollouts", {**START, **change})
        assert answer.status == status, answer.json
        if place:
            assert answer.json["detail"][0]["loc"] == place
    assert client.send("PUT", "/v1/rollouts/answers/none/scores/thumbs", {"value": True}).status == 404


def test_another_tenant_sees_and_scores_nothing(client: Client) -> None:
    made = client.ok("POST", "/v1/rollouts", START)
    answer = ask(client, "ann")
    other = client.another("globex")
    assert other.send("GET", f"/v1/rollouts/{made['id']}").status == 404
    assert other.send("PUT", f"/v1/rollouts/answers/{answer['id']}/scores/thumbs", {"value": True}).status == 404


def test_with_a_key_a_rollout_is_started_once(client: Client) -> None:
    first, again = (client.send("POST", "/v1/rollouts", START, headers=[("idempotency-key", "one")]) for _ in range(2))
    assert (first.status, again.json) == (200, first.json)
    assert client.send("POST", "/v1/rollouts", START).status == 409
