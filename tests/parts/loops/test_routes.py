"""Loops over HTTP."""

from collections.abc import Iterator
from typing import Any

import pytest

from http_client import Client, client_of
from modelyard import open_platform

JOBS = "/v1/preview/training-jobs"
LOOPS = "/v1/preview/training-loops"
LOOP: dict[str, Any] = {
    "tasks": [{"prompt": "hi", "expected": "hello"}, {"prompt": "bye", "expected": "see you"}],
    "held_out": [{"prompt": "hello", "expected": "hi"}],
    "reward": {"type": "token_f1"},
    "config": {"rounds": 1, "samples": 2, "max_tokens": 4, "seed": 7},
}


@pytest.fixture
def worked() -> Iterator[Client]:
    """A client of a platform where a worker has announced itself; jobs run when the test runs them."""
    with open_platform() as platform:
        platform.worker().beat()
        yield client_of(platform)


def model_of(client: Client) -> str:
    fields = {"project": "bots", "name": "m", "base_model": "tabular-mini"}
    return str(client.ok("POST", "/v1/preview/models", fields)["id"])


def test_a_loop_is_requested_with_a_declarative_reward(worked: Client) -> None:
    job = worked.ok("POST", LOOPS, {"model_id": model_of(worked), **LOOP})
    assert (job["kind"], job["status"], job["loop_id"]) == ("loop", "queued", None)
    worked.platform.worker().run_until_idle()
    assert worked.ok("GET", f"{JOBS}/{job['id']}")["step"] in (0, 1)
    events = worked.ok("GET", f"{JOBS}/{job['id']}/events")["data"]
    assert [event["type"] for event in events] == ["training_started", "training_round", "training_ended"]
    (trained,) = [one for one in worked.ok("GET", JOBS)["data"] if one["kind"] == "rl"]
    assert trained["loop_id"] == job["id"]


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"reward": "os:system"}, ["body", "reward"]),
        ({"reward": {"type": "token_f2"}}, ["body", "reward", "type"]),
        ({"reward": {"rule": None, "imported": "os:system"}}, ["body", "reward"]),
        ({"tasks": "/etc/passwd"}, ["body", "tasks"]),
        ({"tasks": [{"question": "x"}]}, ["body", "tasks", "0", "messages"]),
        ({"config": {"roundz": 3}}, ["body", "config", "roundz"]),
        ({"config": {"samples": 1}}, ["body", "config", "samples"]),
        ({"config": {"seed": -1}}, ["body", "config", "seed"]),
        ({"heldout": []}, ["body", "heldout"]),
    ],
)
def test_what_a_loop_cannot_do_is_refused_at_its_place(
    worked: Client, changes: dict[str, Any], place: list[str | int]
) -> None:
    answer = worked.send("POST", LOOPS, {"model_id": model_of(worked), **LOOP, **changes}, check=False)
    assert answer.status == 422
    assert [one["loc"][: len(place)] for one in answer.json["detail"]] == [place]


def test_an_unknown_member_is_refused_with_the_nearest_name(worked: Client) -> None:
    answer = worked.send("POST", LOOPS, {"model_id": model_of(worked), **LOOP, "heldout": []}, check=False)
    assert "'held_out'" in answer.json["detail"][0]["msg"]
    assert worked.ok("GET", JOBS)["data"] == []
