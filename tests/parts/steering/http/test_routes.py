"""Steering over HTTP, with the key of a tenant."""

from collections.abc import Iterator

import pytest

from http_client import Client, client_of
from modelyard import open_platform
from modelyard.testing import ManualClock
from steered_runs import MORE, Counting, finish, submitted, whole


@pytest.fixture
def backend() -> Counting:
    return Counting()


@pytest.fixture
def client(backend: Counting) -> Iterator[Client]:
    with open_platform(entity="acme", clock=ManualClock(), backend=backend) as platform:
        yield client_of(platform)


def test_a_run_is_paused_limited_resumed_and_given_rows(client: Client, backend: Counting) -> None:
    backend.broken = {"say 3"}
    run = submitted(client.platform)
    path = f"/v1/runs/{run}/steering"
    client.ok("POST", path, {"action": "pause"})
    assert client.ok("GET", path)["paused"]
    client.ok("POST", path, {"action": "limits", "limits": {"concurrency": 2, "timeout": None}})
    client.ok("POST", path, {"action": "resume"})
    finish(client.platform)
    backend.broken = set()
    made = client.ok("POST", path, {"action": "requeue"})
    assert (made["applied_at"], made["rows"]) == (None, {"failed": True})
    client.ok("POST", path, {"action": "rows", "rows": MORE})
    finish(client.platform)
    whole(client.platform, run, 16)
    found = client.ok("GET", path)
    assert not found["paused"]
    assert [one["action"] for one in found["entries"]] == ["pause", "limits", "resume", "requeue", "rows"]
    assert all(one["applied_at"] and one["key_id"] and one["by"] for one in found["entries"])
    assert found["entries"][1]["changed"] == {"concurrency": [8, 2], "timeout": [None, None]}
    assert found["entries"][4]["changed"] == {"rows": [12, 16]}
    [kept] = client.ok("GET", f"/v1/runs/{run}/earlier-answers")["data"]
    assert (kept["index"], kept["entry_id"]) == (3, made["id"])


def test_a_request_under_a_key_is_done_once(client: Client) -> None:
    run = submitted(client.platform)
    path, body, key = f"/v1/runs/{run}/steering", {"action": "rows", "rows": MORE}, [("idempotency-key", "k")]
    one, other = (client.ok("POST", path, body, headers=key) for _ in range(2))
    assert one == other
    finish(client.platform)
    whole(client.platform, run, 16)


def test_what_is_wrong_is_said(client: Client) -> None:
    run = submitted(client.platform)
    path = f"/v1/runs/{run}/steering"
    for body, said in (
        ({"action": "odd"}, "action"),
        ({"action": "pause", "rows": MORE}, "goes with the action rows"),
        ({"action": "limits"}, "name what is to change"),
        ({"action": "limits", "limits": {"shards": 2}}, "is no limit"),
        ({"action": "limits", "limits": {"concurrency": 0}}, '["body","limits","concurrency"]'),
        ({"action": "requeue", "indices": [99]}, "row 99 is not in the run"),
        ({"action": "requeue", "indices": [99]}, '["body","indices"]'),
        ({"action": "rows"}, "there are none"),
    ):
        answer = client.send("POST", path, body)
        assert answer.status == 422, body
        assert said in answer.raw.decode()
    assert client.send("POST", path, {"action": "resume"}).status == 409
    assert client.send("POST", "/v1/runs/none/steering", {"action": "pause"}).status == 404
    assert client.ok("GET", path)["entries"] == []
